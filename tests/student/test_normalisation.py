"""Return normalisation: running moments are those of all returns seen so far."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samplr.student.normalisation import CLIP, ReturnScale

update = jax.jit(ReturnScale.update)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.floats(-100, 100), st.floats(0, 50), st.integers(0, 2**32 - 1)),
        min_size=1,
        max_size=8,
    )
)
def test_running_moments_are_numpys_over_all_batches(batches: list[tuple[float, float, int]]) -> None:
    # Batches of very different places and spreads, as returns of a student that learns.
    seen = [
        np.random.default_rng(seed).normal(mean, spread, (3, 4)).astype(np.float32) for mean, spread, seed in batches
    ]
    scale = ReturnScale.empty()
    for returns in seen:
        scale = update(scale, jnp.asarray(returns))
    together = np.concatenate(seen).astype(np.float64)
    assert scale.count == together.size
    np.testing.assert_allclose(scale.mean, together.mean(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(scale.deviation, np.sqrt(together.var() + 1e-8), rtol=1e-4, atol=1e-3)


def test_running_moments_by_hand() -> None:
    # 1, 3 have mean 2 and squares 1 + 1; with 8 the mean is 4 and the squares 9 + 1 + 16 = 26.
    scale = ReturnScale.empty().update(jnp.array([1.0, 3.0]))
    np.testing.assert_allclose([scale.count, scale.mean, scale.squares], [2, 2, 2])
    scale = scale.update(jnp.array([8.0]))
    np.testing.assert_allclose([scale.count, scale.mean, scale.squares], [3, 4, 26], rtol=1e-6)
    np.testing.assert_allclose(scale.deviation, np.sqrt(26 / 3), rtol=1e-6)


def test_rewards_are_divided_by_the_deviation_but_not_centred() -> None:
    scale = ReturnScale(jnp.float32(4), jnp.float32(1000), jnp.float32(16))
    np.testing.assert_allclose(scale.apply(jnp.array([[4.0, -3.0], [0.0, 2.0]])), [[2, -1.5], [0, 1]], rtol=1e-6)


def test_scaled_rewards_are_clipped_at_ten() -> None:
    assert CLIP == 10
    scale = ReturnScale(jnp.float32(4), jnp.float32(0), jnp.float32(16))
    np.testing.assert_allclose(scale.apply(jnp.array([19.0, 21.0, -1e9, 1e9])), [9.5, 10, -10, 10], rtol=1e-6)


@pytest.mark.parametrize("returns", [[0.0, 0.0, 0.0], [7.0, 7.0, 7.0]])
def test_returns_that_do_not_vary_give_finite_rewards(returns: list[float]) -> None:
    scale = ReturnScale.empty().update(jnp.array(returns))
    assert scale.deviation > 0
    scaled = scale.apply(jnp.array([0.0, 1.0, -1.0]))
    assert np.all(np.isfinite(scaled))
    assert np.all(np.abs(scaled) <= CLIP)
    assert scaled[0] == 0


def test_each_run_of_a_batch_has_its_own_scale() -> None:
    empty = jax.tree.map(lambda leaf: jnp.zeros(2), ReturnScale.empty())
    scale = jax.vmap(ReturnScale.update)(empty, jnp.array([[1.0, 3.0], [10.0, 30.0]]))
    np.testing.assert_allclose(scale.deviation, [1, 10], rtol=1e-5)
