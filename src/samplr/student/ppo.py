"""PPO (Schulman et al., 2017), with every detail of the paper's table as a field.

Details that matter, and where they are:

- one Adam over all parameters, after clipping by the global norm of the gradient: `optimizer`;
- advantages normalised over the whole rollout before the epochs, not for each minibatch: `update`;
- value targets are advantages plus the values at collection time, clipped as in the original code or not: `loss`;
- minibatches of single steps for a student without memory, of whole sequences for a recurrent one: `_minibatches`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from samplr.rollout import Rollout
from samplr.student.advantages import generalized_advantages, td_error
from samplr.student.networks import ActorCritic
from samplr.student.normalisation import ReturnScale

Scalar = Float[Array, ""]


class Batch(eqx.Module):
    """What PPO learns from; leaves lead with time, then sequence."""

    observation: PyTree
    action: Array
    log_prob: Float[Array, "t n"]
    value: Float[Array, "t n"]
    start: Bool[Array, "t n"]
    advantage: Float[Array, "t n"]
    target: Float[Array, "t n"]
    hidden: Float[Array, "t n k"] | None = None


class Losses(eqx.Module):
    """The parts of the loss, and how far the policy moved."""

    policy: Scalar
    value: Scalar
    entropy: Scalar
    kl: Scalar
    gradient_norm: Scalar


_CACHED = 1 << 20
"""Of so many bytes of observations, and what a network makes of them, a CPU learns at once: its caches hold them."""


class PPO(eqx.Module):
    """The learning algorithm. Numbers that do not change shapes are leaves, so that a sweep is a `vmap`."""

    learning_rate: Scalar
    discount: Scalar
    gae_lambda: Scalar
    clip: Scalar
    value_coefficient: Scalar
    entropy_coefficient: Scalar
    max_gradient_norm: Scalar
    adam_epsilon: Scalar
    epochs: int = eqx.field(static=True)
    minibatches: int = eqx.field(static=True)
    clip_values: bool = eqx.field(static=True)
    normalise_returns: bool = eqx.field(static=True)
    normalise_advantages: bool = eqx.field(static=True)
    matched_trace: bool = eqx.field(static=True)

    def optimizer(self) -> optax.GradientTransformation:
        """Clip by the global norm, then Adam."""
        return optax.chain(
            optax.clip_by_global_norm(self.max_gradient_norm),
            optax.adam(self.learning_rate, eps=self.adam_epsilon),
        )

    def init(self, network: ActorCritic) -> optax.OptState:
        """The optimiser's state for a fresh network."""
        return self.optimizer().init(eqx.filter(network, eqx.is_inexact_array))

    def advantages(self, rollout: Rollout, scale: ReturnScale) -> Float[Array, "t n"]:
        """A grounded advantage for every step: primed quantities in the TD errors, real ends of episodes."""
        reward = scale.apply(rollout.primed_reward) if self.normalise_returns else rollout.primed_reward

        def of_step(r: Array, terminated: Array, v_tp1: Array, weight: Array, v_t: Array) -> Array:
            return td_error(r, terminated, v_tp1, weight, v_t, self.discount)

        def of_worker(delta: Array, end: Array, trace: Array) -> Array:
            return generalized_advantages(delta, end, trace, self.discount, self.gae_lambda)

        delta = jax.vmap(jax.vmap(of_step))(
            reward, rollout.primed_terminated, rollout.primed_value, rollout.primed_weight, rollout.value
        )
        trace = rollout.matched if self.matched_trace else jnp.ones_like(delta)
        return jax.vmap(of_worker, in_axes=1, out_axes=1)(delta, rollout.end, trace)

    def update(
        self,
        network: ActorCritic,
        opt_state: optax.OptState,
        rollout: Rollout,
        advantages: Float[Array, "t n"],
        *,
        key: PRNGKeyArray,
    ) -> tuple[ActorCritic, optax.OptState, Losses]:
        """Learn from one rollout.

        **Returns:** the network, the optimiser's state, and the losses averaged over minibatches.
        """
        target = advantages + rollout.value
        if self.normalise_advantages:
            advantages = (advantages - jnp.mean(advantages)) / (jnp.std(advantages) + 1e-8)
        batch = Batch(
            rollout.observation,
            rollout.action,
            rollout.log_prob,
            rollout.value,
            rollout.start,
            advantages,
            target,
            rollout.hidden,
        )
        parameters, structure = eqx.partition(network, eqx.is_inexact_array)

        def learn(carry: Any, minibatch: Batch) -> tuple[Any, Losses]:
            parameters, opt_state = carry
            gradient, losses = self.gradient(eqx.combine(parameters, structure), minibatch)
            updates, opt_state = self.optimizer().update(gradient, opt_state)
            losses = eqx.tree_at(lambda x: x.gradient_norm, losses, optax.tree.norm(gradient))
            return (optax.apply_updates(parameters, updates), opt_state), losses

        def epoch(carry: Any, epoch_key: PRNGKeyArray) -> tuple[Any, Losses]:
            return jax.lax.scan(learn, carry, self._minibatches(batch, network.recurrent, key=epoch_key))

        keys = jax.random.split(key, self.epochs)
        (parameters, opt_state), losses = jax.lax.scan(epoch, (parameters, opt_state), keys)
        return eqx.combine(parameters, structure), opt_state, jax.tree.map(jnp.mean, losses)

    def gradient(self, network: ActorCritic, batch: Batch) -> tuple[ActorCritic, Losses]:
        """The gradient of the loss of one minibatch, and the parts of that loss.

        All of them are means over steps, and so are those of pieces of one size, averaged.
        """
        parameters, structure = eqx.partition(network, eqx.is_inexact_array)

        def of_piece(piece: Batch) -> tuple[ActorCritic, Losses]:
            return jax.grad(lambda p: self.loss(eqx.combine(p, structure), piece), has_aux=True)(parameters)

        count = 1 if network.recurrent else _pieces(batch)
        if count == 1:
            return of_piece(batch)
        split = jax.tree.map(lambda leaf: leaf.reshape(count, 1, -1, *leaf.shape[2:]), batch)

        def add(total: Any, piece: Batch) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, of_piece(piece)), None

        nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(of_piece, batch))
        total, _ = jax.lax.scan(add, nothing, split)
        return jax.tree.map(lambda leaf: leaf / count, total)

    def loss(self, network: ActorCritic, batch: Batch) -> tuple[Scalar, Losses]:
        """The clipped surrogate, the value loss and the entropy bonus of one minibatch."""
        policy, value = jax.vmap(network.unroll, in_axes=1, out_axes=1)(
            batch.observation, batch.start, batch.action, batch.hidden
        )
        over_steps = jax.vmap(jax.vmap(lambda p, a: (p.log_prob(a), p.entropy())))
        log_prob, entropy = over_steps(policy, batch.action)
        log_ratio = log_prob - batch.log_prob
        ratio = jnp.exp(log_ratio)
        clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
        policy_loss = -jnp.mean(jnp.minimum(ratio * batch.advantage, clipped * batch.advantage))
        value_loss = 0.5 * jnp.mean(self._squared_error(value, batch))
        mean_entropy = jnp.mean(entropy)
        total = policy_loss + self.value_coefficient * value_loss - self.entropy_coefficient * mean_entropy
        kl = jnp.mean(ratio - 1 - log_ratio)
        return total, Losses(policy_loss, value_loss, mean_entropy, kl, jnp.zeros(()))

    def _squared_error(self, value: Float[Array, "t n"], batch: Batch) -> Float[Array, "t n"]:
        error = (value - batch.target) ** 2
        if not self.clip_values:
            return error
        near = batch.value + jnp.clip(value - batch.value, -self.clip, self.clip)
        return jnp.maximum(error, (near - batch.target) ** 2)

    def _minibatches(self, batch: Batch, recurrent: bool, *, key: PRNGKeyArray) -> Batch:
        """Shuffle and split; leaves lead with minibatch, time, sequence."""
        if not recurrent:
            # Without memory every step is a sequence of its own.
            batch = jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), batch)
        sequences = batch.log_prob.shape[1]
        order = jax.random.permutation(key, sequences).reshape(self.minibatches, -1)
        return jax.tree.map(lambda leaf: jnp.swapaxes(leaf[:, order], 0, 1), batch)


def _pieces(batch: Batch) -> int:
    """Into how many pieces of one size a minibatch of single steps is best divided.

    A CPU waits for its memory where hundreds of pictures go through a network layer by layer: in pieces, learning from
    them takes half of the time. A GPU is the faster the more it is given.
    """
    if jax.default_backend() != "cpu":
        return 1
    steps = batch.log_prob.size
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(batch.observation))
    divisors = (count for count in range(1, steps) if steps % count == 0)
    return next((count for count in divisors if size <= count * _CACHED), steps)
