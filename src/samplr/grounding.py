"""Grounding: which θ′ an episode begins with, and which transition the student learns from.

- `none`: the level's own θ′; real transitions.
- `naive`: θ′ redrawn from P̄ at every reset, so that the curriculum has no say in it; real transitions.
- `fictitious` (SAMPLR): the level's own θ′, but each transition the student learns from is computed from a state whose
  unrevealed θ′ was redrawn from the posterior P̄(θ′|τ).

No grounding knows who proposed the level, and no teacher knows how transitions are grounded.
"""

import abc
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from samplr import trees
from samplr.envs.api import (
    Aleatoric,
    Environment,
    Evidence,
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


class Moment(eqx.Module):
    """Where an episode stands, and what the agent does next."""

    world: World
    state: State
    action: Array
    aleatoric: Aleatoric
    """The θ′ of the episode."""
    belief: Belief
    """The posterior's belief about it, after the history τ."""
    key: PRNGKeyArray
    """The step's luck, which real and fictitious steps share (common random numbers)."""


class Versions(eqx.Module):
    """The θ′ that a fictitious transition is computed with: `m` of them, weighted."""

    aleatoric: Aleatoric
    """Stacked along a leading axis."""
    weight: Float[Array, " m"]
    met: Aleatoric
    """One θ′ as the posterior draws it."""


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

    def scored_by_real_steps(self) -> bool:
        """Whether levels are scored by what really followed, although the student learns from something else."""
        return False

    def versions(self, env: Environment, belief: Belief, evidence: Evidence, *, key: PRNGKeyArray) -> Versions | None:
        """The θ′ to redraw what is unrevealed with; without any, the student learns from what really happened."""
        return None

    def step(self, env: Environment, moment: Moment, *, key: PRNGKeyArray) -> tuple[TimeStep, PrimedStep]:
        """Take the step: what really follows, and what the student learns from.

        The same action is taken with the same key in the real state and in every version of it.
        """
        if self.posterior(env) is None:
            real = env.step(moment.world, moment.state, moment.action, key=moment.key)
            return real, as_it_happened(real, moment.aleatoric)
        assert isinstance(env, GroundedEnvironment)
        versions = self.versions(env, moment.belief, env.evidence(moment.state), key=key)
        assert versions is not None

        def step(is_real: Bool[Array, ""], version: Aleatoric) -> TimeStep:
            redrawn = env.substitute(moment.state, version)
            # What `substitute` leaves alone is the same for all, and so is what follows from it alone.
            state = jax.tree.map(
                lambda own, new: own if new is own else jnp.where(is_real, own, new), moment.state, redrawn
            )
            return env.step(moment.world, state, moment.action, key=moment.key)

        # The real state goes first, so that all are one batch for the simulator.
        aleatoric = trees.prepend(moment.aleatoric, versions.aleatoric)
        steps = jax.vmap(step)(jnp.arange(len(versions.weight) + 1) == 0, aleatoric)
        real = jax.tree.map(lambda leaf: leaf[0], steps)
        return real, as_redrawn(real, jax.tree.map(lambda leaf: leaf[1:], steps), versions)


def as_it_happened(real: TimeStep, aleatoric: Aleatoric) -> PrimedStep:
    """The real transition, under the θ′ of the episode."""
    observation = jax.tree.map(lambda leaf: leaf[None], real.observation)
    return PrimedStep(observation, real.reward[None], real.terminated[None], jnp.ones(1), jnp.ones(()), aleatoric)


def as_redrawn(real: TimeStep, redrawn: TimeStep, versions: Versions) -> PrimedStep:
    """The transitions of the versions; the leaves of `redrawn` lead with the version."""
    same = jax.vmap(lambda step: _same_transition(step, real))(redrawn)
    matched = jnp.sum(versions.weight * same)
    return PrimedStep(redrawn.observation, redrawn.reward, redrawn.terminated, versions.weight, matched, versions.met)


class Ungrounded(Grounding):
    """`none`: learn from what really happened on the level as proposed."""

    def aleatoric(self, env: Environment, level: Level, *, key: PRNGKeyArray) -> Aleatoric:
        """The level's own."""
        return level.aleatoric


class Naive(Ungrounded):
    """`naive`: as `none`, with θ′ ~ P̄(Θ′|layout) at every reset."""

    def aleatoric(self, env: Environment, level: Level, *, key: PRNGKeyArray) -> Aleatoric:
        """A fresh draw from the ground truth."""
        return env.sample_aleatoric(level.layout, key=key)


class Fictitious(Grounding):
    """`fictitious`: SAMPLR's transitions.

    **Arguments:**

    - `samples`: how many fictitious transitions δₜ averages over (the paper: 1), or `"exact"` for all of them.
    - `believed`: the posterior to use in place of the environment's own: see `samplr.posteriors.beliefs`.
    - `scores`: whether levels are scored by `"fictitious"` transitions, as the student learns, or by `"real"` ones.
    """

    samples: int | str = eqx.field(static=True, default=1)
    believed: Posterior | None = None
    scores: Literal["fictitious", "real"] = eqx.field(static=True, default="fictitious")

    def aleatoric(self, env: Environment, level: Level, *, key: PRNGKeyArray) -> Aleatoric:
        """The level's own: the curriculum keeps its freedom."""
        return level.aleatoric

    def scored_by_real_steps(self) -> bool:
        """As asked for."""
        return self.scores == "real"

    def posterior(self, env: Environment) -> Posterior:
        """The one believed in, or the environment's."""
        return require_grounded(env).posterior if self.believed is None else self.believed

    def versions(self, env: Environment, belief: Belief, evidence: Evidence, *, key: PRNGKeyArray) -> Versions:
        """Draws from the posterior, or all it has."""
        posterior = self.posterior(env)

        def draw(draw_key: PRNGKeyArray) -> Aleatoric:
            return posterior.sample(belief, evidence, key=draw_key)

        if self.samples == EXACT:
            return Versions(*posterior.support(belief, evidence), met=draw(key))
        samples = int(self.samples)
        drawn = jax.vmap(draw)(jax.random.split(key, samples))
        return Versions(drawn, jnp.full(samples, 1 / samples), jax.tree.map(lambda leaf: leaf[0], drawn))


def require_grounded(env: Environment) -> GroundedEnvironment:
    """The environment, or an error where it cannot say what a history reveals."""
    if not isinstance(env, GroundedEnvironment):
        raise SamplrError(
            f"{type(env).__name__} has no posterior, so it cannot be trained with grounding 'fictitious': "
            "choose 'none' or 'naive', or make it a GroundedEnvironment"
        )
    return env


def refuse_sum(posterior: Posterior | None, samples: int | str) -> None:
    """Raise now what would only come up while compiling: not every posterior can be summed."""
    if samples == EXACT and posterior is not None and type(posterior).support is Posterior.support:
        posterior.support(None, None)


def _same_transition(a: TimeStep, b: TimeStep) -> Bool[Array, ""]:
    """Whether the agent could not tell two transitions apart."""
    seen = [(step.observation, step.reward, step.terminated) for step in (a, b)]
    equal = jax.tree.map(lambda x, y: jnp.all(x == y), *seen)
    return jnp.all(jnp.stack(jax.tree.leaves(equal)))
