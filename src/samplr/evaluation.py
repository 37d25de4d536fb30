"""Evaluation: a student plays fixed levels, the same for every seed and method."""

import contextlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from samplr.compiling import jit
from samplr.envs.api import Environment, Level, State, Suite
from samplr.envs.gymnasium import GymnasiumEnvironment
from samplr.errors import SamplrWarning, UnknownNameError
from samplr.progress import progress_bar
from samplr.student.networks import ActorCritic

LONGEST_EPISODE = 100_000
"""How many steps an episode may take. Where a student never gets to an end and the world sets none, one comes here."""


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error."""

    mean: float
    standard_error: float

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> "Estimate":
        """Of independent values; the error of a single one is unknown (NaN)."""
        values = np.asarray(values, float)
        error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return cls(float(values.mean()), float(error))

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if math.isnan(self.standard_error) else f" ± {self.standard_error:.2f}")


@dataclass(frozen=True)
class Condition:
    """How every run did in one condition of a suite: an array of run × episode for each named figure."""

    figures: Mapping[str, Float[np.ndarray, "runs episodes"]]

    def estimate(self, name: str) -> Estimate:
        """Over runs, each the mean of its episodes; over the episodes where there is a single run."""
        values = self.figures[name]
        return Estimate.of(values.mean(axis=1) if len(values) > 1 else values[0])

    def to_json(self) -> dict[str, Any]:
        """The estimate of each figure, with the means per run."""
        return {
            name: {
                "mean": self.estimate(name).mean,
                "standard_error": None if math.isnan(e := self.estimate(name).standard_error) else e,
                "per_run": values.mean(axis=1).tolist(),
            }
            for name, values in self.figures.items()
        }


def suite_named(env: Environment, name: str) -> Suite:
    """One of the environment's suites."""
    suites = env.suites()
    if name not in suites:
        raise UnknownNameError("suite", name, suites)
    return suites[name]


def suite_of_levels(levels: Sequence[Level]) -> Suite:
    """A suite with one condition for each given level."""

    def always(level: Level) -> Any:
        return lambda key: level

    return {f"level {index}": always(level) for index, level in enumerate(levels)}


def evaluate(
    env: Environment,
    networks: ActorCritic,
    suite: Suite,
    *,
    episodes: int = 100,
    deterministic: bool = False,
    seed: int = 0,
    processes: int = 2,
    patience_seconds: float = 60.0,
    progress: bool = False,
) -> dict[str, Condition]:
    """Let a batch of runs play a suite.

    **Arguments:**

    - `networks`: the students, stacked along a leading axis.
    - `episodes`: how many levels each condition draws; every run plays the same ones.
    - `deterministic`: take the most likely action instead of sampling.
    - `seed`: which levels, and which luck.
    - `processes`, `patience_seconds`: for simulators on the host, as in `Config`.
    - `progress`: whether to show a progress bar.

    **Returns:** for each condition, `return`, `length` and the environment's own figures of every episode.
    """
    player = _player(env.for_evaluation(), episodes, deterministic, processes, patience_seconds)
    results = {}
    with contextlib.closing(player), progress_bar("episodes", shown=progress, stays=False) as bar:
        task = bar.add_task("playing", total=len(suite) * episodes, note="")
        for index, (name, sample) in enumerate(suite.items()):
            level_key, play_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), index))
            levels = jit(jax.vmap(sample), runs_once=True)(jax.random.split(level_key, episodes))
            figures = player.play(networks, levels, jax.random.split(play_key, episodes))
            results[name] = Condition({figure: np.asarray(values) for figure, values in figures.items()})
            _warn_of_endless_episodes(name, results[name])
            bar.update(task, advance=episodes, note=name)
    return results


def _warn_of_endless_episodes(name: str, outcome: Condition) -> None:
    endless = outcome.figures["length"] >= LONGEST_EPISODE
    if endless.any():
        warnings.warn(
            f"{endless.sum()} of {endless.size} episodes of '{name}' had no end and were cut off after "
            f"{LONGEST_EPISODE:,} steps: give the environment a limit of its own, and truncate there",
            SamplrWarning,
            stacklevel=3,
        )


class Player(Protocol):
    """Lets every run play every level, and tells what came of it as arrays of run × episode."""

    def play(self, networks: ActorCritic, levels: Level, keys: PRNGKeyArray) -> Mapping[str, Any]: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


def _player(env: Environment, episodes: int, deterministic: bool, processes: int, patience: float) -> Player:
    if not isinstance(env, GymnasiumEnvironment):
        return CompiledPlayer(env, deterministic=deterministic)
    from samplr.host.evaluation import HostPlayer  # it needs gymnasium

    return HostPlayer(env, episodes=episodes, deterministic=deterministic, processes=processes, patience=patience)


class CompiledPlayer:
    """Plays in a world in JAX: all episodes of all runs are one compiled program."""

    def __init__(self, env: Environment, *, deterministic: bool) -> None:
        def play(network: ActorCritic, level: Level, key: PRNGKeyArray) -> dict[str, Array]:
            return play_episode(env, network, level, deterministic=deterministic, key=key)[0]

        over_episodes = jax.vmap(play, in_axes=(None, 0, 0))
        self._play = jit(jax.vmap(over_episodes, in_axes=(0, None, None)), pictures=env.shows_pictures)

    def play(self, networks: ActorCritic, levels: Level, keys: PRNGKeyArray) -> dict[str, Array]:
        """Every run plays every level."""
        figures: dict[str, Array] = self._play(networks, levels, keys)
        return figures

    def close(self) -> None:
        """Nothing to give back."""


def play_episode(
    env: Environment, network: ActorCritic, level: Level, *, deterministic: bool, key: PRNGKeyArray
) -> tuple[dict[str, Float[Array, ""]], State]:
    """Play one level to its end.

    **Returns:** figures of the episode, and the state it ended in.
    """
    world = env.build(level.layout)
    reset_key, steps_key = jax.random.split(key)
    state, observation = env.reset(world, level.aleatoric, key=reset_key)

    def step(carry: Any) -> Any:
        state, observation, memory, figures, _ = carry
        action_key, step_key = jax.random.split(jax.random.fold_in(steps_key, figures["length"].astype(jnp.int32)))
        policy, _, memory = network(observation, memory)
        raw = policy.most_likely() if deterministic else policy.sample(key=action_key)
        action = network.action_space.decode(raw)
        after = env.step(world, state, action, key=step_key)
        figures = {
            "return": figures["return"] + after.reward,
            "length": figures["length"] + 1,
            **after.metrics,
        }
        return after.state, after.observation, network.remember(memory, action), figures, after.done

    # Every name an episode tells must be there from the start, so that the loop's carry keeps its shape.
    counters = {"return": jnp.zeros(()), "length": jnp.zeros(())}
    begin = (state, observation, network.initial_memory(), counters, jnp.array(False))
    told = jax.eval_shape(step, begin)[3]
    figures = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in told.items()}
    begin = (*begin[:3], figures, begin[4])

    def goes_on(carry: Any) -> Bool[Array, ""]:
        return ~carry[4] & (carry[3]["length"] < LONGEST_EPISODE)

    last, _, _, figures, _ = jax.lax.while_loop(goes_on, step, begin)
    return figures, last
