"""Posteriors P̄(θ′|τ): what the ground truth implies about θ′ once the history has revealed some of it.

They need only the evidence, and carry an empty belief; a learned posterior carries a recurrent one.
"""

import abc
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from samplr.errors import SamplrError
from samplr.posteriors.priors import BetaEstimate, FrequencyEstimate, PriorEstimate
from samplr.sampling import sample_beta

Belief: TypeAlias = Any


class Posterior(eqx.Module):
    """A belief that follows the history, and a way to draw θ′ from it."""

    def init(self, observation: Any) -> Belief:
        """The belief after the first observation."""
        return None

    def update(self, belief: Belief, observation: Any, action: Array, done: Bool[Array, ""]) -> Belief:
        """The belief after one more step."""
        return belief

    @abc.abstractmethod
    def sample(self, belief: Belief, evidence: Any, *, key: PRNGKeyArray) -> Any:
        """Draw θ′ ~ P̄(θ′|τ); a draw agrees with everything the evidence revealed."""

    def support(self, belief: Belief, evidence: Any) -> tuple[Any, Float[Array, " s"]]:
        """A finite weighted set of θ′ under which the next transition is distributed as under the posterior.

        **Returns:** θ′ with a leading axis, and weights that sum to 1. With it the expected TD error is exact.
        """
        raise SamplrError(
            f"{type(self).__name__} cannot be summed exactly: give a number of samples instead of 'exact'"
        )

    def estimate(self, aleatoric: Any) -> PriorEstimate:
        """An estimate of the prior that has seen nothing yet; `aleatoric` has the shapes of a θ′."""
        raise SamplrError(
            f"the prior of {type(self).__name__} cannot be estimated: choose 'known', or give the class an `estimate`"
        )


class BernoulliField(eqx.Module):
    """A hierarchical θ′: a rate, and bits drawn independently at that rate."""

    rate: Float[Array, ""]
    bits: Bool[Array, " n"]


class BernoulliEvidence(eqx.Module):
    """Which bits of a field were revealed, and what they were; the values elsewhere mean nothing."""

    revealed: Bool[Array, " n"]
    values: Bool[Array, " n"]

    def completed(self, rate: Float[Array, ""], *, key: PRNGKeyArray) -> BernoulliField:
        """A field of this rate that agrees with what was revealed."""
        redrawn = jax.random.bernoulli(key, rate, self.revealed.shape)
        return BernoulliField(rate, jnp.where(self.revealed, self.values, redrawn))


class BetaBernoulli(Posterior):
    """rate ~ Beta(α, β), bits ~ Bernoulli(rate): the posterior is Beta(α+N₊, β+N₋), the unrevealed bits redrawn."""

    alpha: float
    beta: float

    def sample_prior(self, size: int, *, key: PRNGKeyArray) -> BernoulliField:
        """Draw a field of `size` bits from the prior."""
        nothing = BernoulliEvidence(jnp.zeros(size, bool), jnp.zeros(size, bool))
        return self.sample(None, nothing, key=key)

    def rate_given(self, evidence: BernoulliEvidence) -> dist.Beta:
        """The posterior of the rate."""
        ones = jnp.sum(evidence.revealed & evidence.values)
        zeros = jnp.sum(evidence.revealed & ~evidence.values)
        return dist.Beta(self.alpha + ones, self.beta + zeros)

    def sample(self, belief: Belief, evidence: BernoulliEvidence, *, key: PRNGKeyArray) -> BernoulliField:
        """Draw the rate from its posterior, then the unrevealed bits given the rate."""
        rate_key, bits_key = jax.random.split(key)
        posterior = self.rate_given(evidence)
        rate = sample_beta(posterior.concentration1, posterior.concentration0, key=rate_key)
        return evidence.completed(rate, key=bits_key)

    def estimate(self, aleatoric: BernoulliField) -> BetaEstimate:
        """α and β, by the bits of fields of this size."""
        return BetaEstimate.empty(aleatoric.bits.size)


class Enumerated(Posterior):
    """Exact Bayes over a finite Θ′.

    **Arguments:**

    - `candidates`: every possible θ′, stacked along a leading axis.
    - `log_prior`: log P̄(θ′) of each, up to a constant.
    - `log_likelihood`: log P(evidence|θ′) for one candidate, up to a constant; −∞ rules it out.
    """

    candidates: PyTree
    log_prior: Float[Array, " s"]
    log_likelihood: Callable[[Any, Any], Float[Array, ""]] = eqx.field(static=True)

    def log_posterior(self, evidence: Any) -> Float[Array, " s"]:
        """log P̄(θ′|evidence) of each candidate, normalised."""
        likelihood = jax.vmap(lambda candidate: self.log_likelihood(evidence, candidate))(self.candidates)
        return jax.nn.log_softmax(self.log_prior + likelihood)

    def sample(self, belief: Belief, evidence: Any, *, key: PRNGKeyArray) -> Any:
        """Draw one candidate."""
        chosen = jax.random.categorical(key, self.log_posterior(evidence))
        return jax.tree.map(lambda leaf: leaf[chosen], self.candidates)

    def support(self, belief: Belief, evidence: Any) -> tuple[Any, Float[Array, " s"]]:
        """All candidates with their posterior probabilities."""
        return self.candidates, jnp.exp(self.log_posterior(evidence))

    def estimate(self, aleatoric: Any) -> FrequencyEstimate:
        """How often each candidate comes."""
        return FrequencyEstimate.empty(self.candidates)
