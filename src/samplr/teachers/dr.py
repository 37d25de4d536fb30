"""Domain randomisation: every level is a fresh draw from the ground truth."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from samplr.envs.api import Environment, Level
from samplr.teachers.api import Outcome, Phase, Teacher


def sample_levels(env: Environment, count: int, *, key: PRNGKeyArray) -> Level:
    """Levels from the ground truth, stacked."""
    return jax.vmap(lambda level_key: env.sample_level(key=level_key))(jax.random.split(key, count))


class DomainRandomisation(Teacher):
    """One phase, no memory."""

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
        """Fresh levels."""
        return sample_levels(env, workers, key=key)

    def observe(self, state: None, env: Environment, outcome: Outcome) -> None:
        """Nothing to learn."""
        return None
