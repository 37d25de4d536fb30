"""Which slots of the buffer are drawn, and how often."""

import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from samplr.compiling import jit
from samplr.teachers.buffer import LevelBuffer, draw

from .numbered import buffer_of

DRAWS = 20_000


@functools.partial(jit, runs_once=True, static_argnums=2)
def _draws(buffer: LevelBuffer, weights: jax.Array, count: int, keys: jax.Array) -> jax.Array:
    return jax.vmap(lambda key: draw(buffer, weights, count, key=key))(keys)


def draws(buffer: LevelBuffer, weights: Sequence[float], count: int, *, repeats: int = DRAWS) -> np.ndarray:
    """Many independent draws of `count` slots."""
    keys = jax.random.split(jax.random.key(0), repeats)
    return np.asarray(_draws(buffer, jnp.asarray(weights, jnp.float32), count, keys))


def test_a_draw_holds_no_slot_twice_and_no_empty_one() -> None:
    buffer = buffer_of([1, 2, 3, 4, 5], [1] * 5, capacity=8)
    drawn = draws(buffer, [0.9, 0.04, 0.03, 0.02, 0.01, 0, 0, 0], count=4, repeats=2_000)
    assert drawn.max() < 5
    assert all(len(set(row)) == 4 for row in drawn.tolist())


def chi_square(observed: Sequence[int], expected: np.ndarray, *, shifted: np.ndarray) -> float:
    """The p-value of counts against probabilities, after making sure that the test would notice `shifted` ones."""
    total, freedom = sum(observed), len(expected) - 1
    noncentrality = total * np.sum((shifted - expected) ** 2 / expected)
    power = stats.ncx2.sf(stats.chi2.ppf(1 - 1e-3, freedom), freedom, noncentrality)
    assert power > 0.999, "the sample is too small for this test to mean anything"
    return stats.chisquare(observed, total * expected).pvalue


SHIFT = np.array([-0.02, 0, 0, 0.02])
"""With 20,000 draws such a shift from the first slot to the last is as good as certain to be noticed."""


def test_the_first_draw_follows_the_weights() -> None:
    weights = np.array([0.5, 0.3, 0.15, 0.05])
    buffer = buffer_of([1, 2, 3, 4], [1] * 4)
    first = np.bincount(draws(buffer, weights, count=2)[:, 0], minlength=4)
    assert chi_square(first, weights, shifted=weights + SHIFT) > 1e-3


def test_the_second_draw_follows_the_weights_of_those_that_are_left() -> None:
    weights = np.array([0.5, 0.3, 0.15, 0.05])
    # P(second = j) = Σ_{i≠j} wᵢ wⱼ / (1 − wᵢ)
    left = weights / (1 - weights[:, None]) * (1 - np.eye(4))
    second = weights @ left
    np.testing.assert_allclose(second.sum(), 1)
    buffer = buffer_of([1, 2, 3, 4], [1] * 4)
    counts = np.bincount(draws(buffer, weights, count=2)[:, 1], minlength=4)
    assert chi_square(counts, second, shifted=second + SHIFT) > 1e-3


def test_filled_slots_of_weight_zero_come_last_but_before_empty_ones() -> None:
    buffer = buffer_of([1, 2, 3], [1] * 3, capacity=6)
    drawn = draws(buffer, [0, 1, 0, 0, 0, 0], count=3, repeats=200)
    assert set(drawn[:, 0]) == {1}
    assert {tuple(row) for row in drawn.tolist()} == {(1, 0, 2), (1, 2, 0)}


@pytest.mark.parametrize("workers", [5, 8, 13])
def test_with_fewer_levels_than_workers_the_draw_begins_again_from_its_first(workers: int) -> None:
    # Three levels for `workers` workers, also where these are more than the buffer has slots.
    buffer = buffer_of([1, 2, 3], [1] * 3, capacity=10)
    for row in draws(buffer, [0.5, 0.25, 0.25, *[0] * 7], count=workers, repeats=50):
        assert sorted(row[:3]) == [0, 1, 2]
        assert list(row) == list(itertools.islice(itertools.cycle(row[:3]), workers))
