"""Level galleries: what each curriculum ended on, next to draws from the ground truth."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import jax
import numpy as np

from samplr.compiling import jit
from samplr.config import Config
from samplr.envs.api import Environment, Level, State, World
from samplr.envs.gymnasium import GymnasiumEnvironment
from samplr.report.media import picture_uri
from samplr.report.runs import Batch
from samplr.teachers.buffer import LevelBuffer, Prioritisation, replay_weights
from samplr.teachers.dr import sample_levels

T = TypeVar("T")


@dataclass(frozen=True)
class Shown:
    """A level as a gallery shows it."""

    picture: str | None
    """A data URI; None where the world draws no pictures."""
    facts: Mapping[str, float]
    """The summaries of its θ′."""
    score: float | None = None
    weight: float | None = None
    """The probability with which it would be replayed next, of all the levels kept."""


@dataclass(frozen=True)
class Curriculum:
    """The levels one run's teacher kept in the end, those most likely to be replayed first."""

    seed: int
    kept: int
    shown: list[Shown]
    means: Mapping[str, float]
    """The means of the summaries of θ′ over all kept levels, by replay weight."""


class Painter:
    """Draws levels of one world; what it compiles serves all of them."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.can_draw = type(env).render is not Environment.render and not isinstance(env, GymnasiumEnvironment)
        self._begin = jit(lambda level: self._begin_uncompiled(level))
        self._summaries = jit(jax.vmap(env.summaries))

    def _begin_uncompiled(self, level: Level) -> tuple[World, State]:
        world = self.env.build(level.layout)
        return world, self.env.reset(world, level.aleatoric, key=jax.random.key(0))[0]

    def picture(self, level: Level) -> str | None:
        """A level at its start, with what the agent cannot see."""
        return picture_uri(self.env.render_level(*self._begin(level))) if self.can_draw else None

    def facts(self, levels: Level) -> dict[str, np.ndarray]:
        """The summaries of the θ′ of stacked levels."""
        return {name: np.asarray(values) for name, values in self._summaries(levels.aleatoric).items()}


def draws(env: Environment, count: int) -> Level:
    """Levels from the ground truth, stacked; the same in every report."""
    levels: Level = jit(lambda key: sample_levels(env, count, key=key), runs_once=True)(jax.random.key(0))
    return levels


def show_draws(painter: Painter, levels: Level) -> list[Shown]:
    """Levels as a gallery shows them, without scores."""
    facts = painter.facts(levels)
    count = jax.tree.leaves(levels)[0].shape[0]
    return [Shown(painter.picture(one(levels, i)), {n: float(v[i]) for n, v in facts.items()}) for i in range(count)]


def curriculum(painter: Painter, batch: Batch, place: int, count: int) -> Curriculum | None:
    """The levels that a run's teacher kept; None for a teacher that keeps none.

    **Arguments:**

    - `place`: which of the batch's runs, counted from 0.
    - `count`: how many levels to show.
    """
    buffers = batch.run.teacher
    if not isinstance(buffers, LevelBuffer):
        return None
    buffer = one(buffers, place)
    weights = _weights(buffer, batch.run.config)
    kept = int(np.sum(buffer.filled))
    facts = painter.facts(buffer.levels)
    shown = [
        Shown(
            painter.picture(one(buffer.levels, slot)),
            {name: float(values[slot]) for name, values in facts.items()},
            float(buffer.score[slot]),
            float(weights[slot]),
        )
        for slot in np.argsort(-weights, kind="stable")[: min(count, kept)]
    ]
    means = {name: float(np.sum(weights * values)) for name, values in facts.items()}
    return Curriculum(batch.seeds[place], kept, shown, means)


def one(stacked: T, index: int) -> T:
    """One of some stacked levels or buffers."""
    found: T = jax.tree.map(lambda leaf: leaf[index], stacked)
    return found


def _weights(buffer: LevelBuffer, config: Config) -> np.ndarray:
    replay = config.replay
    return np.asarray(
        replay_weights(buffer, Prioritisation(replay.prioritisation), replay.temperature, replay.staleness)
    )
