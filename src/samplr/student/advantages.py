"""TD errors and advantages, one equation per function, unbatched over workers."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def td_error(
    r_t: Float[Array, " m"],
    terminated_t: Bool[Array, " m"],
    v_tp1: Float[Array, " m"],
    weight_t: Float[Array, " m"],
    v_t: Float[Array, ""],
    discount: Float[Array, ""] | float,
) -> Float[Array, ""]:
    """δₜ = Σₘ wₘ [r′ₜ + γ (1 − terminated′ₜ) V(o′ₜ₊₁)] − V(oₜ).

    Primed quantities come in `m` weighted versions. A truncated step bootstraps, a terminated one does not.
    """
    return jnp.sum(weight_t * (r_t + discount * (1 - terminated_t) * v_tp1)) - v_t


def generalized_advantages(
    delta_t: Float[Array, " t"],
    end_t: Bool[Array, " t"],
    trace_t: Float[Array, " t"],
    discount: Float[Array, ""] | float,
    gae_lambda: Float[Array, ""] | float,
) -> Float[Array, " t"]:
    """Aₜ = δₜ + γ λ cₜ (1 − endₜ) Aₜ₊₁.

    **Arguments:**

    - `delta_t`: TD errors along a rollout.
    - `end_t`: whether the *real* episode ended with this step, terminated or truncated.
    - `trace_t`: cₜ, 1 for the full trace; the weight of fictitious transitions equal to the real one for the matched.
    """

    def backwards(a_tp1: Array, step: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        delta, end, trace = step
        a_t = delta + discount * gae_lambda * trace * (1 - end) * a_tp1
        return a_t, a_t

    steps = (delta_t, end_t, trace_t)
    _, a_t = jax.lax.scan(backwards, jnp.zeros_like(delta_t[0]), steps, reverse=True)
    return a_t


def discounted_returns(
    r_t: Float[Array, " t"], end_t: Bool[Array, " t"], discount: Float[Array, ""] | float
) -> Float[Array, " t"]:
    """Gₜ = rₜ + γ (1 − endₜ₋₁) Gₜ₋₁: the discounted reward collected so far in the episode."""

    def forwards(g_tm1: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        r, end = step
        g_t = r + discount * g_tm1
        return g_t * (1 - end), g_t

    _, g_t = jax.lax.scan(forwards, jnp.zeros_like(r_t[0]), (r_t, end_t))
    return g_t
