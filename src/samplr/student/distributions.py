"""The distributions a policy draws actions from, one for each kind of action space.

An action has one or more independent components. What is sampled is `raw`: an integer for each choice, a number in the
unit interval for each dimension of a box; `space.decode` turns it into what the environment takes.
"""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int, PRNGKeyArray

from samplr.envs.spaces import ActionSpace, Box
from samplr.errors import SamplrError
from samplr.sampling import sample_beta

IMPOSSIBLE = -1e9
"""The logit of a choice that does not exist; finite, so that entropies stay finite."""


class Policy(eqx.Module):
    """π(·|τ) at one step."""

    @abc.abstractmethod
    def sample(self, *, key: PRNGKeyArray) -> Array:
        """Draw a raw action."""

    @abc.abstractmethod
    def most_likely(self) -> Array:
        """The raw action of a deterministic agent."""

    @abc.abstractmethod
    def log_prob(self, raw: Array) -> Float[Array, ""]:
        """log π(a|τ) of a raw action."""

    @abc.abstractmethod
    def entropy(self) -> Float[Array, ""]:
        """The entropy of the policy."""


class Categorical(Policy):
    """Independent choices."""

    logits: Float[Array, "d n"]

    @property
    def probabilities(self) -> Float[Array, "d n"]:
        """The probability of every choice of every component."""
        return jax.nn.softmax(self.logits)

    @property
    def _components(self) -> dist.Categorical:
        return dist.Categorical(logits=self.logits)

    def sample(self, *, key: PRNGKeyArray) -> Int[Array, " d"]:
        """Draw each choice."""
        return self._components.sample(key)

    def most_likely(self) -> Int[Array, " d"]:
        """The most probable choices."""
        return jnp.argmax(self.logits, axis=-1)

    def log_prob(self, raw: Int[Array, " d"]) -> Float[Array, ""]:
        """The sum over components."""
        # Not NumPyro's: the gradient of its gather is a scatter, and a one-hot product is several times faster.
        chosen = jax.nn.one_hot(raw, self.logits.shape[-1])
        return jnp.sum(chosen * jax.nn.log_softmax(self.logits))

    def entropy(self) -> Float[Array, ""]:
        """The sum over components."""
        return jnp.sum(self._components.entropy())


class Beta(Policy):
    """Independent Beta distributions on the unit interval; α and β above 1, so that the density has one mode."""

    alpha: Float[Array, " d"]
    beta: Float[Array, " d"]

    @property
    def _components(self) -> dist.Beta:
        return dist.Beta(self.alpha, self.beta)

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " d"]:
        """Draw each dimension, kept off the ends where the density can be zero."""
        tiny = jnp.finfo(self.alpha.dtype).eps
        return jnp.clip(sample_beta(self.alpha, self.beta, key=key), tiny, 1 - tiny)

    def most_likely(self) -> Float[Array, " d"]:
        """The mean: unlike the mode it does not jump between the ends."""
        return self._components.mean

    def log_prob(self, raw: Float[Array, " d"]) -> Float[Array, ""]:
        """The sum over dimensions."""
        return jnp.sum(self._components.log_prob(raw))

    def entropy(self) -> Float[Array, ""]:
        """The sum over dimensions."""
        return jnp.sum(self._components.entropy())


def policy_outputs(space: ActionSpace) -> int:
    """How many numbers a network must give for a policy over this space."""
    if isinstance(space, Box):
        if not space.bounded:
            raise SamplrError(f"actions need finite bounds, and {space} has none")
        return 2 * math.prod(space.shape)
    return len(space.sizes) * max(space.sizes)


def policy_from(outputs: Float[Array, " outputs"], space: ActionSpace) -> Policy:
    """The policy that a network's outputs stand for."""
    if isinstance(space, Box):
        alpha, beta = jnp.split(1 + jax.nn.softplus(outputs), 2)
        return Beta(alpha, beta)
    exists = jnp.arange(max(space.sizes)) < jnp.asarray(space.sizes)[:, None]
    return Categorical(jnp.where(exists, outputs.reshape(exists.shape), IMPOSSIBLE))
