"""A fixed curriculum: levels from a suite, or from one of its conditions, however the student fares.

It shifts the distribution of θ′ by as much as one likes, with no score in between, so that what a grounding makes of a
shift can be measured alone.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from samplr.envs.api import Environment, Level, LevelSampler, Origin
from samplr.errors import UnknownNameError
from samplr.teachers.api import Phase
from samplr.teachers.dr import DomainRandomisation


def levels_named(env: Environment, path: str) -> LevelSampler:
    """The levels of `SUITE/CONDITION`, or of `SUITE`: all of its conditions, equally often."""
    suite, slash, condition = path.partition("/")
    suites = env.suites()
    if suite not in suites:
        raise UnknownNameError("suite", suite, suites)
    conditions = suites[suite]
    if not slash:
        return _one_of(list(conditions.values()))
    if condition not in conditions:
        raise UnknownNameError(f"condition of suite '{suite}'", condition, conditions)
    return conditions[condition]


def _one_of(samplers: Sequence[LevelSampler]) -> LevelSampler:
    def sample(key: PRNGKeyArray) -> Level:
        which_key, level_key = jax.random.split(key)
        which = jax.random.randint(which_key, (), 0, len(samplers))
        level: Level = jax.lax.switch(which, samplers, level_key)
        return level

    return sample


class FixedCurriculum(DomainRandomisation):
    """Domain randomisation, but over a suite instead of the ground truth."""

    presents: str = eqx.field(static=True)

    def propose(self, phase: Phase, state: None, env: Environment, workers: int, *, key: PRNGKeyArray) -> Level:
        """Fresh levels of the suite, marked as not the ground truth's, so that no belief is learned from them."""
        levels: Level = jax.vmap(levels_named(env, self.presents))(jax.random.split(key, workers))
        return eqx.tree_at(lambda level: level.origin, levels, jnp.full(workers, Origin.ADVERSARY, jnp.int32))
