"""A fixed curriculum: levels from one condition of a suite, however the student fares.

It shifts the distribution of θ′ by as much as one likes, with no score in between, so that what a grounding makes of a
shift can be measured alone.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from samplr.envs.api import Environment, Level, LevelSampler, Origin
from samplr.errors import UnknownNameError
from samplr.teachers.api import Outcome, Phase, Teacher


def condition_named(env: Environment, path: str) -> LevelSampler:
    """The levels of `SUITE/CONDITION`."""
    suite, _, condition = path.partition("/")
    suites = env.suites()
    if suite not in suites:
        raise UnknownNameError("suite", suite, suites)
    if condition not in suites[suite]:
        raise UnknownNameError(f"condition of suite '{suite}'", condition, suites[suite])
    return suites[suite][condition]


class FixedCurriculum(Teacher):
    """One phase, no memory."""

    presents: str = eqx.field(static=True)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """New levels, learned from."""
        return (Phase("new", learn=True),)

    def schedule(self, update: Int[Array, ""]) -> Int[Array, ""]:
        """Always the one phase."""
        return jnp.zeros_like(update)

    def init(self, env: Environment) -> None:
        """Nothing to remember."""
        return None

    def propose(self, phase: Phase, state: None, env: Environment, workers: int, *, key: PRNGKeyArray) -> Level:
        """Fresh levels of the condition, marked as not the ground truth's, so that no belief is learned from them."""
        levels: Level = jax.vmap(condition_named(env, self.presents))(jax.random.split(key, workers))
        return eqx.tree_at(lambda level: level.origin, levels, jnp.full(workers, Origin.ADVERSARY, jnp.int32))

    def observe(self, state: None, env: Environment, outcome: Outcome) -> None:
        """Nothing to learn."""
        return None
