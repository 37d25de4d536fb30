"""A fixed curriculum: levels from one condition of a suite, however the student fares.

It shifts the distribution of θ′ by as much as one likes, with no score in between, so that what a grounding makes of a
shift can be measured alone.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from samplr.envs.api import Environment, Level, LevelSampler, Origin
from samplr.errors import UnknownNameError
from samplr.teachers.api import Phase
from samplr.teachers.dr import DomainRandomisation


def condition_named(env: Environment, path: str) -> LevelSampler:
    """The levels of `SUITE/CONDITION`."""
    suite, _, condition = path.partition("/")
    suites = env.suites()
    if suite not in suites:
        raise UnknownNameError("suite", suite, suites)
    if condition not in suites[suite]:
        raise UnknownNameError(f"condition of suite '{suite}'", condition, suites[suite])
    return suites[suite][condition]


class FixedCurriculum(DomainRandomisation):
    """Domain randomisation, but over a condition instead of the ground truth."""

    presents: str = eqx.field(static=True)

    def propose(self, phase: Phase, state: None, env: Environment, workers: int, *, key: PRNGKeyArray) -> Level:
        """Fresh levels of the condition, marked as not the ground truth's, so that no belief is learned from them."""
        levels: Level = jax.vmap(condition_named(env, self.presents))(jax.random.split(key, workers))
        return eqx.tree_at(lambda level: level.origin, levels, jnp.full(workers, Origin.ADVERSARY, jnp.int32))
