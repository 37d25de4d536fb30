"""What a teacher is: phases with a schedule, levels proposed, outcomes observed.

A teacher's phases and schedule are functions of the configuration and the update index alone, never of a run's own
history, so that a batch of runs takes the same branch and compiles to one program.
"""

import abc
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from samplr.compiling import jit
from samplr.envs.api import Environment, Level
from samplr.student.networks import ActorCritic


@dataclass(frozen=True)
class Phase:
    """One kind of update: a name, and whether the student learns from it."""

    name: str
    learn: bool


class Outcome(eqx.Module):
    """What a rollout showed about each of `n` levels."""

    levels: Level
    advantages: Float[Array, "t n"]
    values: Float[Array, "t n"]
    best_return: Float[Array, " n"]
    """The highest undiscounted return of an episode on the level in this rollout."""
    return_scale: Float[Array, ""]
    """What returns must be divided by to be in the units of `values`."""
    network: ActorCritic


class Teacher(eqx.Module):
    """Proposes levels. Teachers carry no state of their own: it is passed in and handed back."""

    @property
    @abc.abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """The kinds of update this teacher asks for."""

    @abc.abstractmethod
    def schedule(self, update: Int[Array, ""]) -> Int[Array, ""]:
        """Which phase an update belongs to: the index into `phases`."""

    @abc.abstractmethod
    def init(self, env: Environment) -> PyTree:
        """The teacher's state at the start of a run."""

    @abc.abstractmethod
    def propose(self, phase: Phase, state: PyTree, env: Environment, workers: int, *, key: PRNGKeyArray) -> Level:
        """Levels for a batch of workers, stacked."""

    @abc.abstractmethod
    def observe(self, state: PyTree, env: Environment, outcome: Outcome) -> PyTree:
        """Learn from how the levels went, whatever the phase (a level's `origin` tells); returns the new state."""

    def scheduled(self, updates: int) -> Int[np.ndarray, " updates"]:
        """Which phase each of the first `updates` updates belongs to."""
        return np.asarray(jit(jax.vmap(self.schedule), runs_once=True)(jnp.arange(updates)))

    def learns(self, updates: int) -> Bool[np.ndarray, " updates"]:
        """Whether the student learns from each of the first `updates` updates."""
        return np.array([phase.learn for phase in self.phases])[self.scheduled(updates)]

    def metrics(self, state: PyTree) -> dict[str, Float[Array, ""]]:
        """Named figures of the teacher's state, logged with every update that the student learns in."""
        return {}
