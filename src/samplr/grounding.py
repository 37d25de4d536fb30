"""Grounding: which θ′ an episode begins with, and which transition the student learns from.

- `none`: the level's own θ′; real transitions.
- `naive`: θ′ redrawn from P̄ at every reset, so that the curriculum has no say in it; real transitions.
- `fictitious` (SAMPLR): the level's own θ′, but each transition the student learns from is computed from a state whose
  unrevealed θ′ was redrawn from the posterior P̄(θ′|τ).

No grounding knows who proposed the level, and no teacher knows how transitions are grounded.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from samplr.envs.api import (
    Aleatoric,
    Environment,
    GroundedEnvironment,
    Level,
    Observation,
    State,
    TimeStep,
    World,
)
from samplr.errors import SamplrError
from samplr.posteriors import Belief, Posterior

EXACT = "exact"
"""The number of samples that stands for all of them: the expected TD error under the posterior (M = ∞)."""


class RealStep(eqx.Module):
    """One step of a running episode, as it happened."""

    world: World
    state: State
    action: Array
    after: TimeStep
    aleatoric: Aleatoric
    """The θ′ of the episode."""
    belief: Belief
    """The posterior's belief about it, after the history τ."""
    key: PRNGKeyArray
    """The key the step was taken with, which a fictitious step shares (common random numbers)."""


class PrimedStep(eqx.Module):
    """The transition a student learns from: `m` weighted versions (r′, o′) of what followed the action."""

    observation: Observation
    reward: Float[Array, " m"]
    terminated: Bool[Array, " m"]
    weight: Float[Array, " m"]
    matched: Float[Array, ""]
    """The weight of the versions that equal the real transition."""
    aleatoric: Aleatoric
    """The θ′ the student met: a draw from the posterior, or the real one."""


class Grounding(eqx.Module):
    """The middle axis of teacher × grounding × student."""

    @abc.abstractmethod
    def aleatoric(self, env: Environment, level: Level, *, key: PRNGKeyArray) -> Aleatoric:
        """The θ′ with which an episode on this level begins."""

    def posterior(self, env: Environment) -> Posterior | None:
        """The posterior whose belief the rollout carries along."""
        return None

    @abc.abstractmethod
    def transition(self, env: Environment, step: RealStep, *, key: PRNGKeyArray) -> PrimedStep:
        """What the student learns from a step."""


class Ungrounded(Grounding):
    """`none`: learn from what really happened on the level as proposed."""

    def aleatoric(self, env: Environment, level: Level, *, key: PRNGKeyArray) -> Aleatoric:
        """The level's own."""
        return level.aleatoric

    def transition(self, env: Environment, step: RealStep, *, key: PRNGKeyArray) -> PrimedStep:
        """The real transition."""
        after, one = step.after, jnp.ones(1)
        observation = jax.tree.map(lambda leaf: leaf[None], after.observation)
        return PrimedStep(observation, after.reward[None], after.terminated[None], one, jnp.ones(()), step.aleatoric)


class Naive(Ungrounded):
    """`naive`: as `none`, with θ′ ~ P̄(Θ′|layout) at every reset."""

    def aleatoric(self, env: Environment, level: Level, *, key: PRNGKeyArray) -> Aleatoric:
        """A fresh draw from the ground truth."""
        return env.sample_aleatoric(level.layout, key=key)


class Fictitious(Grounding):
    """`fictitious`: SAMPLR's transitions.

    **Arguments:**

    - `samples`: how many fictitious transitions δₜ averages over (the paper: 1), or `"exact"` for all of them.
    """

    samples: int | str = eqx.field(static=True, default=1)

    def aleatoric(self, env: Environment, level: Level, *, key: PRNGKeyArray) -> Aleatoric:
        """The level's own: the curriculum keeps its freedom."""
        return level.aleatoric

    def posterior(self, env: Environment) -> Posterior:
        """The environment's."""
        if not isinstance(env, GroundedEnvironment):
            raise SamplrError(
                f"{type(env).__name__} has no posterior, so it cannot be trained with grounding 'fictitious': "
                "choose 'none' or 'naive', or make it a GroundedEnvironment"
            )
        return env.posterior

    def transition(self, env: Environment, step: RealStep, *, key: PRNGKeyArray) -> PrimedStep:
        """Redraw what is unrevealed, take the same action with the same key, and look."""
        assert isinstance(env, GroundedEnvironment)
        posterior, evidence = env.posterior, env.evidence(step.state)

        def draw(draw_key: PRNGKeyArray) -> Aleatoric:
            return posterior.sample(step.belief, evidence, key=draw_key)

        if self.samples == EXACT:
            versions, weight = posterior.support(step.belief, evidence)
            met = draw(key)
        else:
            versions = jax.vmap(draw)(jax.random.split(key, int(self.samples)))
            weight = jnp.full(int(self.samples), 1 / int(self.samples))
            met = jax.tree.map(lambda leaf: leaf[0], versions)

        def fictitious_step(version: Aleatoric) -> TimeStep:
            return env.step(step.world, env.substitute(step.state, version), step.action, key=step.key)

        steps = jax.vmap(fictitious_step)(versions)
        matched = jax.vmap(lambda fictitious: _same_transition(fictitious, step.after))(steps)
        return PrimedStep(steps.observation, steps.reward, steps.terminated, weight, jnp.sum(weight * matched), met)


def _same_transition(a: TimeStep, b: TimeStep) -> Bool[Array, ""]:
    """Whether the agent could not tell two transitions apart."""
    seen = [(step.observation, step.reward, step.terminated) for step in (a, b)]
    equal = jax.tree.map(lambda x, y: jnp.all(x == y), *seen)
    return jnp.all(jnp.stack(jax.tree.leaves(equal)))
