"""Estimated priors P̂(Θ′): what a run makes of the levels it drew from the ground truth, where P̄ itself is unknown.

An estimate sees levels of origin `prior` only: they are samples of P̄, and what a teacher replays is not. It is part of
a run's state, keeps sufficient statistics instead of levels, and lends its prior to the formulas of an exact posterior.
"""

import abc
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

P = TypeVar("P")

ITERATIONS = 256
"""Steps towards the most likely Beta each time levels were seen; each run goes on from its last estimate."""

WEIGHT = 0.1
"""What α = β = 1 weighs against levels that were seen: little, but it keeps the estimate finite."""


class PriorEstimate(eqx.Module):
    """What was seen of P̄(Θ′), and the prior that it suggests."""

    @abc.abstractmethod
    def observe(self, aleatoric: PyTree, sampled: Bool[Array, " n"]) -> "PriorEstimate":
        """The estimate after `n` more θ′, of which only those `sampled` from P̄ count."""

    @abc.abstractmethod
    def applied(self, posterior: P) -> P:
        """A posterior with this prior in place of its own."""

    @abc.abstractmethod
    def metrics(self) -> dict[str, Float[Array, ""]]:
        """Named figures of the estimate."""


class BetaEstimate(PriorEstimate):
    """rate ~ Beta(α, β), fitted to fields of `n` bits by maximum likelihood of how many of them are 1.

    Nothing but the bits is looked at: in a pile of samples nobody wrote down the rate.
    """

    ones: Float[Array, " n"]
    """How many fields had more than j ones, for each j below n."""
    zeros: Float[Array, " n"]
    """The same for zeros."""
    alpha: Float[Array, ""]
    beta: Float[Array, ""]

    @classmethod
    def empty(cls, size: int) -> "BetaEstimate":
        """Nothing seen of fields of `size` bits: a uniform prior."""
        return cls(jnp.zeros(size), jnp.zeros(size), jnp.ones(()), jnp.ones(()))

    @property
    def levels(self) -> Float[Array, ""]:
        """How many fields were seen."""
        # Every field has more than j ones, or more than n − 1 − j zeros.
        return self.ones[..., 0] + self.zeros[..., -1]

    def observe(self, aleatoric: Any, sampled: Bool[Array, " n"]) -> "BetaEstimate":
        """Count the ones, and go some steps towards the α and β that make all counts so far most likely."""
        bits: Bool[Array, "n bits"] = aleatoric.bits
        places = jnp.arange(bits.shape[1])

        def tally(bits: Bool[Array, "n bits"]) -> Float[Array, " bits"]:
            more = jnp.sum(bits, axis=1)[:, None] > places
            return jnp.sum(more & sampled[:, None], axis=0, dtype=jnp.float32)

        seen = BetaEstimate(self.ones + tally(bits), self.zeros + tally(~bits), self.alpha, self.beta)
        return jax.lax.fori_loop(0, ITERATIONS, lambda _, estimate: estimate.improved(), seen)

    def improved(self) -> "BetaEstimate":
        """One step of Minka's fixed-point iteration for the Beta-binomial ("Estimating a Dirichlet distribution").

        α ← α·Σᵢ[ψ(kᵢ+α) − ψ(α)] / Σᵢ[ψ(n+α+β) − ψ(α+β)], and β alike, which never makes the counts less likely. The
        differences of digammas are sums of reciprocals. `WEIGHT` adds a Gamma prior with its mode at 1.
        """
        places = jnp.arange(self.ones.size)
        below = WEIGHT + self.levels * jnp.sum(1 / (self.alpha + self.beta + places))
        alpha = (WEIGHT + self.alpha * jnp.sum(self.ones / (self.alpha + places))) / below
        beta = (WEIGHT + self.beta * jnp.sum(self.zeros / (self.beta + places))) / below
        return BetaEstimate(self.ones, self.zeros, alpha, beta)

    def applied(self, posterior: P) -> P:
        """The posterior with the estimated α and β."""
        return eqx.tree_at(lambda p: (p.alpha, p.beta), posterior, (self.alpha, self.beta))

    def metrics(self) -> dict[str, Float[Array, ""]]:
        """α, β, and how many levels they are fitted to."""
        return {"prior/alpha": self.alpha, "prior/beta": self.beta, "prior/levels": self.levels}


class FrequencyEstimate(PriorEstimate):
    """A finite Θ′: how often each candidate was seen, and once more than that (Laplace)."""

    candidates: PyTree
    counts: Float[Array, " s"]

    @classmethod
    def empty(cls, candidates: PyTree) -> "FrequencyEstimate":
        """Nothing seen: all candidates as likely."""
        return cls(candidates, jnp.zeros(jax.tree.leaves(candidates)[0].shape[0]))

    def observe(self, aleatoric: PyTree, sampled: Bool[Array, " n"]) -> "FrequencyEstimate":
        """Count the candidates."""

        def same(one: PyTree, other: PyTree) -> Bool[Array, ""]:
            equal = jax.tree.map(lambda a, b: jnp.all(a == b), one, other)
            return jnp.all(jnp.stack(jax.tree.leaves(equal)))

        matches = jax.vmap(lambda one: jax.vmap(lambda other: same(one, other))(self.candidates))(aleatoric)
        counts = jnp.sum(matches & sampled[:, None], axis=0, dtype=jnp.float32)
        return FrequencyEstimate(self.candidates, self.counts + counts)

    def applied(self, posterior: P) -> P:
        """The posterior with the estimated prior."""
        return eqx.tree_at(lambda p: p.log_prior, posterior, jnp.log(self.counts + 1))

    def metrics(self) -> dict[str, Float[Array, ""]]:
        """How many levels were seen."""
        return {"prior/levels": jnp.sum(self.counts)}
