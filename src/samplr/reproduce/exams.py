"""Exams in which students play a suite: the levels of `samplr eval`, many conditions in one batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from samplr.config import Config
from samplr.evaluation import CompiledPlayer, suite_named
from samplr.reproduce.records import Row
from samplr.reproduce.studies import Examiner
from samplr.statistics import cvar
from samplr.student.networks import ActorCritic

LEVELS_SEED = 0
"""All students of all variants play the levels of this seed, with the same luck."""

WORST = 0.1
"""The share of its levels that a run's CVaR looks at."""


@dataclass(frozen=True)
class SuiteExam:
    """Play every condition of a suite."""

    suite: str
    episodes: int
    at: Literal["every", "ends", "last"] = "every"
    together: int = 1
    """How many conditions are one batch: a GPU has room for many, and each batch waits for its longest episode."""
    describe: Callable[[str], Mapping[str, Any]] = lambda condition: {}
    """Further columns for a condition."""

    @property
    def name(self) -> str:
        """What its file is called."""
        return self.suite

    def parts(self, config: Config) -> int:
        """One for each batch."""
        return -(-len(suite_named(config.env, self.suite)) // self.together)

    def prepare(self, config: Config, run: Path) -> Examiner:
        """Compile the player, and draw the levels."""
        suite = suite_named(config.env, self.suite)
        player = CompiledPlayer(config.env.for_evaluation(), deterministic=False)
        names = list(suite)
        drawn = [self._draw(suite[name], index) for index, name in enumerate(names)]

        def examine(networks: ActorCritic, tick: Callable[[], None]) -> list[Row]:
            rows: list[Row] = []
            for first in range(0, len(names), self.together):
                batch = drawn[first : first + self.together]
                levels, keys = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *batch)
                figures = {name: np.asarray(v) for name, v in player.play(networks, levels, keys).items()}
                for place, condition in enumerate(names[first : first + self.together]):
                    part = slice(place * self.episodes, (place + 1) * self.episodes)
                    rows += self._rows(condition, {name: values[:, part] for name, values in figures.items()})
                tick()
            return rows

        return examine

    def _draw(self, sample: Any, index: int) -> Any:
        """The levels of a condition and the luck in playing them, as `evaluate` draws them."""
        level_key, play_key = jax.random.split(jax.random.fold_in(jax.random.key(LEVELS_SEED), index))
        levels = jax.vmap(sample)(jax.random.split(level_key, self.episodes))
        return levels, jax.random.split(play_key, self.episodes)

    def _rows(self, condition: str, figures: Mapping[str, np.ndarray]) -> list[Row]:
        return [
            {
                "seed": place,
                "condition": condition,
                **self.describe(condition),
                "episodes": self.episodes,
                **{name: float(values[place].mean()) for name, values in figures.items()},
                "return_cvar": cvar(figures["return"][place], WORST),
            }
            for place in range(len(figures["return"]))
        ]
