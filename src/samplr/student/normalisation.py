"""Return normalisation: rewards are divided by the running standard deviation of the discounted real return."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

CLIP = 10.0


class ReturnScale(eqx.Module):
    """Running moments of the discounted return of one run (Chan's parallel update)."""

    count: Float[Array, ""]
    mean: Float[Array, ""]
    squares: Float[Array, ""]

    @classmethod
    def empty(cls) -> "ReturnScale":
        """Before any rollout."""
        return cls(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))

    def update(self, returns: Float[Array, "..."]) -> "ReturnScale":
        """Take in the discounted returns of one more rollout."""
        count = self.count + returns.size
        delta = jnp.mean(returns) - self.mean
        mean = self.mean + delta * returns.size / count
        squares = (
            self.squares + jnp.sum((returns - jnp.mean(returns)) ** 2) + delta**2 * self.count * returns.size / count
        )
        return ReturnScale(count, mean, squares)

    @property
    def deviation(self) -> Float[Array, ""]:
        """The standard deviation, kept off zero."""
        return jnp.sqrt(self.squares / jnp.maximum(self.count, 1) + 1e-8)

    def apply(self, reward: Float[Array, "..."]) -> Float[Array, "..."]:
        """Scale rewards, real or fictitious, and clip them."""
        return jnp.clip(reward / self.deviation, -CLIP, CLIP)
