"""Where a run's posterior comes from, when it is not the environment's own: an estimated prior, or a learned network.

Both are part of a run's state and learn as the student does, in the same compiled program, from what a rollout on
levels of origin `prior` shows. Levels of any other origin are never looked at: a belief that learned from them would
take the curriculum for the ground truth, which is what grounding is there to prevent.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from samplr import trees
from samplr.envs.api import GroundedEnvironment, Level, Origin
from samplr.errors import SamplrError
from samplr.posteriors import Posterior
from samplr.posteriors.learned import BeliefNetwork, Bins, LearnedPosterior, cross_entropy, first_episodes
from samplr.posteriors.priors import PriorEstimate
from samplr.rollout import Rollout
from samplr.student.networks import build_encoder

AVERAGED = 1 / 3
"""The belief in use is an average of the network's weights over about this share of all gradient steps, the last of
them: single levels are noisy examples, and the average is far closer to the posterior than the last weights are."""

Metrics = dict[str, Float[Array, ""]]


class Beliefs(eqx.Module):
    """How the posterior of a run begins, and how it learns from each rollout."""

    env: GroundedEnvironment

    @abc.abstractmethod
    def init(self, *, key: PRNGKeyArray) -> PyTree:
        """What a run knows before its first rollout."""

    @abc.abstractmethod
    def posterior(self, state: PyTree) -> Posterior:
        """The posterior that a run believes in."""

    @abc.abstractmethod
    def learn(self, state: PyTree, levels: Level, rollout: Rollout) -> tuple[PyTree, Metrics]:
        """Learn from a rollout on `levels`, as far as they are samples of P̄.

        **Returns:** what the run knows then, and figures for its log.
        """


def exact_posterior(env: GroundedEnvironment) -> Posterior | None:
    """The environment's own posterior, if it has one."""
    try:
        return env.posterior
    except SamplrError:
        return None


def sampled_from_ground_truth(levels: Level) -> Bool[Array, " n"]:
    """Which levels are samples of P̄."""
    return levels.origin == Origin.PRIOR


class EstimatedPrior(Beliefs):
    """The environment's posterior with a prior fitted to the levels seen."""

    def init(self, *, key: PRNGKeyArray) -> PriorEstimate:
        """Nothing seen."""
        return self.env.posterior.estimate(self.env.level_shapes()[0].aleatoric)

    def posterior(self, state: PriorEstimate) -> Posterior:
        """The exact formulas with the estimated prior."""
        return state.applied(self.env.posterior)

    def learn(self, state: PriorEstimate, levels: Level, rollout: Rollout) -> tuple[PriorEstimate, Metrics]:
        """Count the θ′ of new levels: what happened on them does not matter."""
        state = state.observe(levels.aleatoric, sampled_from_ground_truth(levels))
        return state, state.metrics()


class LearnedState(eqx.Module):
    """A belief network in training."""

    network: BeliefNetwork
    average: BeliefNetwork
    """Its weights, averaged over training: the belief in use."""
    opt_state: optax.OptState
    steps: Float[Array, ""]
    """How many gradient steps were taken."""


class LearnedBeliefs(Beliefs):
    """A network qψ(θ′|τ) that learns from the first episodes on new levels.

    **Arguments:**

    - `encoder`, `hidden`: as for the student, whose encoder it copies but does not share.
    - `memory`: size of the GRU.
    - `epochs`: gradient steps for each rollout.
    """

    bins: Bins
    encoder: str
    hidden: tuple[int, ...]
    memory: int
    learning_rate: float
    epochs: int

    def init(self, *, key: PRNGKeyArray) -> LearnedState:
        """A network that believes the prior."""
        encoder_key, network_key = jax.random.split(key)
        encoder = build_encoder(self.env, self.encoder, self.hidden, key=encoder_key)
        features = jax.eval_shape(encoder, self.env.observation_shapes()).size
        space = self.env.action_space
        network = BeliefNetwork(encoder, features, self.memory, self.bins, space, key=network_key)
        opt_state = self._optimizer.init(eqx.filter(network, eqx.is_inexact_array))
        return LearnedState(network, network, opt_state, jnp.zeros(()))

    def posterior(self, state: LearnedState) -> LearnedPosterior:
        """The network's belief."""
        return LearnedPosterior(self.env, self.bins, state.average)

    def learn(self, state: LearnedState, levels: Level, rollout: Rollout) -> tuple[LearnedState, Metrics]:
        """Some steps of gradient descent on the cross-entropy of θ′ at every step of the examples."""
        counted = first_episodes(rollout.end) & sampled_from_ground_truth(levels)
        actions = jax.vmap(jax.vmap(self.env.action_space.decode))(rollout.action)
        hidden = jax.vmap(self.env.hidden)(levels.aleatoric)
        parameters, structure = eqx.partition(state.network, eqx.is_inexact_array)
        average_before = eqx.filter(state.average, eqx.is_inexact_array)

        def loss(parameters: PyTree) -> Float[Array, ""]:
            network = eqx.combine(parameters, structure)
            return cross_entropy(network, self.bins, rollout.observation, actions, hidden, counted)

        def descend(_: Array, carry: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
            parameters, average, opt_state, steps = carry
            changes, opt_state = self._optimizer.update(jax.grad(loss)(parameters), opt_state)
            parameters = optax.apply_updates(parameters, changes)
            average = optax.incremental_update(parameters, average, 1 / (1 + AVERAGED * steps))
            return parameters, average, opt_state, steps + 1

        before = (parameters, average_before, state.opt_state, state.steps)
        after = jax.lax.fori_loop(0, self.epochs, descend, before)
        # Without a single example the gradient is zero, but Adam would still go on as it went before.
        parameters, average, *rest = trees.where(jnp.any(counted), after, before)
        learned = LearnedState(eqx.combine(parameters, structure), eqx.combine(average, structure), *rest)
        # Of the belief in use, and on levels it has not seen: an honest estimate.
        return learned, {"belief/cross_entropy": loss(average_before)}

    @property
    def _optimizer(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(self.learning_rate))
