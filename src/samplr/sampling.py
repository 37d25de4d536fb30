"""Draws that a compiled rollout can afford."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

PROPOSALS = 8


def sample_beta(alpha: Float[Array, "*d"], beta: Float[Array, "*d"], *, key: PRNGKeyArray) -> Float[Array, "*d"]:
    """Draw from Beta(α, β) without a loop: x/(x+y) of two Gammas by Marsaglia and Tsang (2000).

    Libraries repeat their proposals in a loop until all of a batch are accepted. That takes long to compile, and on a
    GPU the host has to look after every turn of the loop whether there is another. Here the first accepted of eight
    proposals is taken; at most 5 % of proposals are rejected, so that all eight are less than once in 10¹⁰ draws.
    """
    normal_key, uniform_key, boost_key = jax.random.split(key, 3)
    shape = jnp.stack([alpha, beta])
    # Gamma(a) = Gamma(a + 1) U^(1/a): the proposals are good for shapes above 1 only.
    d = shape + 1 - 1 / 3
    x = jax.random.normal(normal_key, (PROPOSALS, *shape.shape))
    v = jnp.maximum(1 + x / jnp.sqrt(9 * d), 0) ** 3
    log_v = jnp.log(jnp.maximum(v, jnp.finfo(v.dtype).tiny))
    log_u = -jax.random.exponential(uniform_key, x.shape)
    accepted = (v > 0) & (log_u < 0.5 * x**2 + d * (1 - v + log_v))
    first = jnp.argmax(accepted, axis=0)
    log_gamma = jnp.log(d) + jnp.take_along_axis(log_v, first[None], axis=0)[0]
    log_gamma -= jax.random.exponential(boost_key, shape.shape) / shape
    # In logarithms, because a Gamma of small shape underflows.
    return jax.nn.sigmoid(log_gamma[0] - log_gamma[1])
