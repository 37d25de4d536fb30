"""Runs: train them, with a folder to keep them in, load them again, and use their policies."""

import contextlib
import dataclasses
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from rich.progress import Progress

from samplr.config import Config, from_json, to_json
from samplr.envs.api import Environment
from samplr.envs.gymnasium import GymnasiumEnvironment
from samplr.errors import GroundingWarning, RunFolderError, SamplrWarning
from samplr.progress import progress_bar
from samplr.shift import ShiftCounts, none_for_nan
from samplr.store import Arrays, RunFolder, read_checkpoint, read_config, read_metrics
from samplr.store.policies import read_policies, write_policies
from samplr.store.record import CONFIG
from samplr.student.networks import ActorCritic, Memory, are_finite
from samplr.training import Log, Training, TrainState, memory_warning, student_shapes
from samplr.trees import named_leaves, with_named_leaves

MAY_CHANGE = ("steps", "gradient_updates", "log_every", "checkpoint_seconds", "processes", "patience_seconds")
"""What a resumed run may change: how long and how talkative it is, and where it runs, but not what it computes."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """A trained student, ready to act."""

    network: ActorCritic

    def initial_memory(self) -> Memory:
        """The memory to begin an episode with."""
        return self.network.initial_memory()

    def act(
        self, observation: PyTree, memory: Memory = None, *, key: PRNGKeyArray | None = None
    ) -> tuple[Array, Memory]:
        """Choose an action.

        **Arguments:**

        - `observation`: one observation, not a batch.
        - `memory`: what the last call returned; at the start of an episode, nothing.
        - `key`: randomness to sample with; without it the most likely action is taken.

        **Returns:** the action as the environment takes it, and the memory to go on with.
        """
        action, memory, _ = _act(self.network, observation, self.initial_memory() if memory is None else memory, key)
        return action, memory

    def value(self, observation: PyTree, memory: Memory = None) -> Float[Array, ""]:
        """What the student expects to collect from here on (in its own, possibly normalised, units)."""
        return _act(self.network, observation, self.initial_memory() if memory is None else memory, None)[2]


@dataclasses.dataclass(frozen=True)
class Run:
    """A batch of runs: what it was made from, what it logged, and the students that came out."""

    config: Config
    networks: ActorCritic
    """The students, stacked along a leading axis with one entry per seed."""
    metrics: list[dict[str, Any]]
    summary: Mapping[str, Any]
    beliefs: PyTree = None
    """What the runs learned about θ′, stacked likewise, where their posterior is not the environment's own."""
    teacher: PyTree = None
    """What the runs' teachers remember, stacked likewise: the level buffers, of a teacher that replays levels."""

    @property
    def env(self) -> Environment:
        """The environment it was trained in."""
        return self.config.env

    @property
    def policies(self) -> list[Policy]:
        """One policy per seed."""
        return [Policy(jax.tree.map(lambda leaf, i=i: leaf[i], self.networks)) for i in range(self.config.seeds)]

    @property
    def policy(self) -> Policy:
        """The policy of the first seed."""
        return self.policies[0]

    def save_policies(self, path: str | Path, *, students: int | None = None) -> None:
        """Write the students to one small file, which `load` takes like a run folder.

        **Arguments:**

        - `path`: the file.
        - `students`: how many of them at most; by default all.
        """
        seeds = self.config.seeds if students is None else min(students, self.config.seeds)
        config = dataclasses.replace(self.config, seeds=seeds)
        kept = {name: np.asarray(leaf)[: config.seeds] for name, leaf in named_leaves(self.networks).items()}
        write_policies(Path(path), to_json(config), kept)


Watch = Callable[[Mapping[str, Any], ActorCritic], None]
"""Told of every line of metrics, with the students as they are then. They are gone after the call: training goes on in
the same memory, so what is to be kept must be copied (`np.asarray`)."""


def train(
    config: Config,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    progress: bool = False,
    watch: Watch | None = None,
    program: Training | None = None,
) -> Run:
    """Train a batch of runs.

    **Arguments:**

    - `config`: see `samplr.default_config`.
    - `out`: a folder to keep the runs in; without one nothing is written.
    - `resume`: go on where the runs in `out` stopped, if there are any.
    - `progress`: whether to show a progress bar.
    - `watch`: called with every line of metrics and the students at that time, before they are saved: a run that is
      killed and resumed calls it again with the same.
    - `program`: what `training_of(config)` gave, where it was compiled already; it is closed at the end.

    **Returns:** the trained batch.
    """
    training = program or training_of(config)
    warning = memory_warning(config)
    if warning:
        warnings.warn(warning, GroundingWarning, stacklevel=2)
    bar = progress_bar(shown=progress)
    with contextlib.closing(training):
        if out is None:
            return _train(training, None, bar, watch)
        if unloadable := _unloadable_warning(config):
            warnings.warn(unloadable, SamplrWarning, stacklevel=2)
        if resume:
            _refuse_fewer_steps(training, Path(out))
        with RunFolder.open(Path(out), to_json(config), resume=resume, may_change=MAY_CHANGE) as folder:
            return _train(training, folder, bar, watch)


def training_of(config: Config) -> Training:
    """The program that trains a configuration: all of it in JAX, or with simulators on the host."""
    if not isinstance(config.env, GymnasiumEnvironment):
        return Training(config)
    from samplr.host.training import HostTraining  # it needs gymnasium

    return HostTraining(config)


def _refuse_fewer_steps(training: Training, path: Path) -> None:
    """A run cannot go back, and its folder must not say that it is shorter than it is."""
    rows = read_metrics(path) if (path / CONFIG).is_file() else []
    if rows and rows[-1]["update"] > training.total_updates():
        raise RunFolderError(
            f"'{path}' has {rows[-1]['steps']:,} steps and {rows[-1]['gradient_updates']:,} gradient updates already: "
            "resume it with at least as many, or choose another --out"
        )


def _unloadable_warning(config: Config) -> str | None:
    """A line for a world that no other program will find by its name."""
    world = type(config.env)
    if world.__module__ != "__main__":
        return None
    return (
        f"{world.__name__} is defined in the program itself, so no other program can load this run: "
        "move it to a module of its own"
    )


def load(path: str | Path) -> Run:
    """Load what a run folder holds, as of its last checkpoint.

    **Arguments:**

    - `path`: the folder that `train` wrote, or a file that `Run.save_policies` wrote.

    **Returns:** the batch of runs; from a file, without metrics and all that is not a student's.
    """
    if Path(path).is_file():
        return _load_policies(Path(path))
    config = from_json(read_config(path))
    checkpoint = read_checkpoint(path)
    training = training_of(config)
    progress = _Progress.restored(training, checkpoint.arrays, path)
    rows = [row for row in read_metrics(path) if row["update"] <= checkpoint.update]
    runs = progress.state.runs
    return Run(config, runs.network, rows, _summary(training, progress, rows), runs.beliefs, runs.teacher)


def _load_policies(file: Path) -> Run:
    stored, parameters = read_policies(file)
    config = from_json(stored)
    networks = with_named_leaves(student_shapes(config), parameters)
    if networks is None:
        raise RunFolderError(f"'{file}' holds students of another version of samplr: train them again")
    return Run(config, networks, [], {})


class _Progress:
    """How far a batch has come: the state on the device, and on the host what was met so far."""

    def __init__(self, state: TrainState, shift: ShiftCounts) -> None:
        self.state = state
        self.shift = shift

    @classmethod
    def fresh(cls, training: Training, *, template: bool = False) -> "_Progress":
        """Before the first update; a template has shapes instead of a state."""
        shift = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float64), jax.eval_shape(training.empty_shift))
        return cls(training.shapes() if template else training.init(), shift)

    def include(self, log: Log) -> None:
        """Add up in double precision: counts of a long run outgrow float32."""
        self.shift = jax.tree.map(lambda a, b: a + np.asarray(b, np.float64), self.shift, log.shift)

    def arrays(self) -> Arrays:
        return {name: np.asarray(_plain(leaf)) for name, leaf in self._leaves()}

    @classmethod
    def restored(cls, training: Training, arrays: Arrays, path: str | Path) -> "_Progress":
        """The progress of a training that `arrays` was taken from."""
        template = cls.fresh(training, template=True)
        leaves = template._leaves()
        shapes = {name: jax.eval_shape(_plain, leaf).shape for name, leaf in leaves}
        if shapes != {name: array.shape for name, array in arrays.items()}:
            raise RunFolderError(f"'{path}' was written by a version of samplr with another state: train it again")
        values = [_like(leaf, arrays[name]) for name, leaf in leaves]
        state, shift = jax.tree.unflatten(jax.tree.structure((template.state, template.shift)), values)
        return cls(state, shift)

    def _leaves(self) -> list[tuple[str, Any]]:
        leaves = jax.tree_util.tree_leaves_with_path((self.state, self.shift))
        return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def _train(training: Training, folder: RunFolder | None, bar: Progress, watch: Watch | None) -> Run:
    config, total = training.config, training.total_updates()
    checkpoint = folder.latest() if folder else None
    if folder and checkpoint:
        progress, rows = _Progress.restored(training, checkpoint.arrays, folder.path), read_metrics(folder.path)
    else:
        progress, rows = _Progress.fresh(training), []
    saved, told = time.monotonic(), set[str]()
    began = saved - (rows[-1]["seconds"] if rows else 0.0)
    with bar, _stopped_between_lines(training, bar) as asked_to_stop:
        per_update = training.steps_per_update * config.seeds
        description = f"{config.method} × {config.seeds}"
        update = int(progress.state.update)
        task = bar.add_task(description, total=total * per_update, completed=update * per_update, note="")
        learned = training.gradient_updates(total)
        while update < total:
            state, log = training.advance(progress.state, min(config.log_every, total - update))
            progress.state = state
            update = int(state.update)
            progress.include(log)
            rows.append(_row(training, log, update, int(learned[update - 1]), time.monotonic() - began))
            bar.update(task, completed=update * per_update, note=_note(rows[-1]))
            _warn(_diverged(config, state.runs.network), told)
            if watch:
                watch(rows[-1], state.runs.network)
            if folder:
                folder.log(rows[-1])
                due = time.monotonic() - saved >= config.checkpoint_seconds
                if update == total or due or asked_to_stop():
                    folder.save(update, progress.arrays())
                    saved = time.monotonic()
            if update < total and asked_to_stop():
                raise KeyboardInterrupt
    summary = _summary(training, progress, rows)
    _warn(_diverged(config, progress.state.runs.network), told)  # again, for a run that was done before
    _warn(summary["warnings"], told, GroundingWarning)
    if folder and not folder.finished:
        folder.finish({**summary, "seconds": time.monotonic() - began, "device": jax.devices()[0].device_kind})
    runs = progress.state.runs
    return Run(config, runs.network, rows, summary, runs.beliefs, runs.teacher)


@contextlib.contextmanager
def _stopped_between_lines(training: Training, bar: Progress) -> Iterator[Callable[[], bool]]:
    """Inside, the first interrupt (Ctrl-C) only asks to stop after the line of metrics in the making, so that what was
    computed can be saved; the second stops at once. Compiled programs cannot be stopped half way in any case.
    """
    asked = threading.Event()
    compiled = not isinstance(training.env, GymnasiumEnvironment)
    if not compiled or threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def note(*_: Any) -> None:
        asked.set()
        # A job that a script started in the background ignores interrupts, but whoever sends it two means it.
        signal.signal(signal.SIGINT, signal.default_int_handler if before is signal.SIG_IGN else before)
        bar.console.print("Stopping after this line of metrics; once more stops at once.")

    before = signal.signal(signal.SIGINT, note) or signal.default_int_handler
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _row(training: Training, log: Log, update: int, learned: int, seconds: float) -> dict[str, Any]:
    """A line of metrics: means over the updates since the last one, a list with one number for each run."""
    row: dict[str, Any] = {
        "update": update,
        "steps": update * training.steps_per_update,
        "gradient_updates": learned,
        "seconds": round(seconds, 3),
    }
    for name, mean in sorted(log.metrics.items()):
        count = np.asarray(mean.count)
        values = np.where(count > 0, np.asarray(mean.total) / np.maximum(count, 1), np.nan)
        row[name] = none_for_nan(values)
    return row | training.monitor.report(jax.tree.map(np.asarray, log.shift))


def _note(row: Mapping[str, Any]) -> str:
    returns = row.get("replay/return") or row.get("new/return") or []
    known = [value for value in returns if value is not None]
    return f"return {np.mean(known):.2f}" if known else ""


def _summary(training: Training, progress: _Progress, rows: list[dict[str, Any]]) -> dict[str, Any]:
    config, update = training.config, int(progress.state.update)
    shifted = training.monitor.warnings(progress.shift) if config.grounding == "none" else []
    last = {name: value for name, value in (rows[-1] if rows else {}).items() if name != "seconds"}
    return {
        "env": to_json(config)["env"],
        "method": config.method,
        "seeds": list(range(config.first_seed, config.first_seed + config.seeds)),
        "updates": update,
        "steps": update * training.steps_per_update,
        "last": last,
        "whole_run": training.monitor.report(progress.shift),
        "warnings": shifted + _diverged(config, progress.state.runs.network),
    }


def _diverged(config: Config, networks: ActorCritic) -> list[str]:
    """A line for each run whose student is lost. The others of its batch know nothing of it, and go on."""
    lost = np.flatnonzero(~np.asarray(are_finite(networks)))
    return [
        f"the run of seed {config.first_seed + place} has diverged, the parameters of its student are not finite: "
        "choose a lower --student.learning-rate"
        for place in lost
    ]


def _warn(lines: Sequence[str], told: set[str], kind: type[SamplrWarning] = SamplrWarning) -> None:
    """Warn of what was not told yet."""
    for line in lines:
        if line not in told:
            warnings.warn(line, kind, stacklevel=4)
    told.update(lines)


@jax.jit
def _act(
    network: ActorCritic, observation: PyTree, memory: Memory, key: PRNGKeyArray | None
) -> tuple[Array, Memory, Array]:
    policy, value, memory = network(observation, memory)
    raw = policy.most_likely() if key is None else policy.sample(key=key)
    action = network.action_space.decode(raw)
    return action, network.remember(memory, action), value


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    """A random key as the numbers it is made of."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _like(leaf: Any, array: np.ndarray) -> Any:
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(array))
    return array if isinstance(leaf, np.ndarray) else jnp.asarray(array)
