"""Films: a trained student plays one level, drawn for people."""

import contextlib
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import jax
import numpy as np
from jaxtyping import PRNGKeyArray, UInt8

from samplr.compiling import jit
from samplr.envs.api import Environment, Level
from samplr.errors import SamplrError
from samplr.progress import progress_bar
from samplr.run import Policy

FORMATS = (".mp4", ".gif")


def film(
    env: Environment,
    policy: Policy,
    level: Level,
    out: Path,
    *,
    key: PRNGKeyArray,
    deterministic: bool = False,
    seconds: float = 60.0,
    progress: bool = False,
) -> int:
    """Film one episode, or its beginning.

    **Arguments:**

    - `out`: an `.mp4` or `.gif` file.
    - `key`: the luck of student and world.
    - `deterministic`: take the most likely action instead of sampling.
    - `seconds`: how long the film may be.
    - `progress`: whether to show a progress bar.

    **Returns:** the number of pictures.
    """
    if out.suffix.lower() not in FORMATS:
        raise SamplrError(f"a film is an .mp4 or a .gif file, not '{out.name}'")
    if not seconds > 0:
        raise SamplrError(f"a film of {seconds:g} seconds has no pictures: ask for more than 0")
    limit, count = max(seconds * env.pictures_per_second, 1), 0
    with (
        _appearing_whole(out) as unfinished,
        progress_bar("pictures", shown=progress) as bar,
        film_writer(unfinished, env.pictures_per_second) as writer,
    ):
        task = bar.add_task("filming", total=limit if math.isfinite(limit) else None, note="")
        for picture in play(env, policy, level, key=key, deterministic=deterministic):
            writer.append_data(picture)
            bar.advance(task)
            count += 1
            if count + 1 > limit:
                break
        bar.update(task, total=count)
    return count


def play(
    env: Environment, policy: Policy, level: Level, *, key: PRNGKeyArray, deterministic: bool
) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
    """Every picture of an episode, from the first to the last."""
    env = env.for_evaluation()
    reset_key, steps_key = jax.random.split(key)
    world = jit(env.build)(level.layout)
    state, observation = env.reset(world, level.aleatoric, key=reset_key)
    step, show = jit(env.step), jit(env.states_between)
    memory, done, count = policy.initial_memory(), False, 0
    yield env.render(world, state)
    while not done:
        action_key, step_key = jax.random.split(jax.random.fold_in(steps_key, count))
        action, memory = policy.act(observation, memory, key=None if deterministic else action_key)
        shown = show(world, state, action, key=step_key)
        after = step(world, state, action, key=step_key)
        for index in range(jax.tree.leaves(shown)[0].shape[0]):
            yield env.render(world, jax.tree.map(lambda leaf, i=index: leaf[i], shown))
        state, observation, done, count = after.state, after.observation, bool(after.done), count + 1


@contextlib.contextmanager
def _appearing_whole(out: Path) -> Iterator[Path]:
    """Another name to film under, so that a film that fails leaves none, nor takes the place of an older one."""
    unfinished = out.with_name(f".{out.stem}.{os.getpid()}{out.suffix}")
    try:
        # Found out before filming: the writers are bad at telling.
        out.parent.mkdir(parents=True, exist_ok=True)
        (out if out.exists() else unfinished).open("ab").close()
    except OSError as error:
        raise SamplrError(f"cannot write '{out}': {error.strerror}") from error
    try:
        yield unfinished
        os.replace(unfinished, out)
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def film_writer(out: Path, pictures_per_second: float) -> Iterator[Any]:
    """What takes one picture after the other: a minute of them would fill a gigabyte."""
    options: dict[str, Any] = {"fps": pictures_per_second, "macro_block_size": 2}
    if out.suffix.lower() == ".gif":
        options = {"duration": 1000 / pictures_per_second, "loop": 0}
    with warnings.catch_warnings():
        # The encoder is a process of its own, and JAX warns of every fork; this one ends in another program at once.
        warnings.filterwarnings("ignore", message=r"os\.fork\(\)")
        with imageio.get_writer(out, **options) as writer:
            yield writer
