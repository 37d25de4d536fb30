"""How likely the buffer replays each level: by its score, by its staleness, and by both."""

import jax.numpy as jnp
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.teachers import buffer as buffer_module
from samplr.teachers.buffer import Prioritisation

from .numbered import POWER, RANK, buffer_of

# Compiled rather than run operation by operation, because that takes several times as long.
score_weights = jit(buffer_module.score_weights, runs_once=True, static_argnums=2)
staleness_weights = jit(buffer_module.staleness_weights, runs_once=True)
replay_weights = jit(buffer_module.replay_weights, runs_once=True, static_argnums=1)

# --- P_S: weights by score --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prioritisation", "temperature", "score", "expected"),
    [
        # Ranks 1, 3, 2: h = 1, 1/3, 1/2, which sum to 11/6.
        pytest.param(RANK, 1.0, [3, 1, 2], [6 / 11, 2 / 11, 3 / 11], id="rank"),
        # Only the order counts: neither the size nor the sign.
        pytest.param(RANK, 1.0, [-1, -3, -2], [6 / 11, 2 / 11, 3 / 11], id="rank, negative scores"),
        pytest.param(RANK, 1.0, [1e6, -7, 0], [6 / 11, 2 / 11, 3 / 11], id="rank, any spread"),
        # Exponent 1/β = 2: h² = 1, 1/9, 1/4, which sum to 49/36.
        pytest.param(RANK, 0.5, [3, 1, 2], [36 / 49, 4 / 49, 9 / 49], id="rank, β = 1/2"),
        # Exponent 1/β = 1/2: √h = 1, 0.577350, 0.707107, which sum to 2.284457.
        pytest.param(RANK, 2.0, [3, 1, 2], [0.437741, 0.252730, 0.309529], id="rank, β = 2"),
        pytest.param(POWER, 1.0, [3, 1, 0], [3 / 4, 1 / 4, 0], id="power"),
        # h = max(S, 0): a negative score weighs as much as a zero.
        pytest.param(POWER, 1.0, [-5, 1, 3], [0, 1 / 4, 3 / 4], id="power, negative score"),
        # Exponent 2: 9, 1, 0.
        pytest.param(POWER, 0.5, [3, 1, 0], [9 / 10, 1 / 10, 0], id="power, β = 1/2"),
        # Exponent 1/2: 2, 1, 0.
        pytest.param(POWER, 2.0, [4, 1, 0], [2 / 3, 1 / 3, 0], id="power, β = 2"),
        pytest.param(POWER, 1.0, [0, 0, 0], [1 / 3, 1 / 3, 1 / 3], id="power, all zero: uniform"),
        pytest.param(POWER, 1.0, [-1, -2, -3], [1 / 3, 1 / 3, 1 / 3], id="power, all negative: uniform"),
        # Exponent 100: (1/2)^100 is nothing, and 1000^100 would overflow if it were ever computed.
        pytest.param(POWER, 0.01, [1000, 500, 0], [1, 0, 0], id="power, β near 0, large scores"),
        pytest.param(POWER, 0.01, [1e-3, 5e-4, 0], [1, 0, 0], id="power, β near 0, small scores"),
        pytest.param(RANK, 0.01, [3, 1, 2], [1, 0, 0], id="rank, β near 0"),
    ],
)
def test_score_weights_by_hand(
    prioritisation: Prioritisation, temperature: float, score: list[float], expected: list[float]
) -> None:
    filled = jnp.ones(3, bool)
    weights = score_weights(jnp.asarray(score, jnp.float32), filled, prioritisation, temperature)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("prioritisation", "score", "expected"),
    [
        # Ranked among themselves the two filled slots have h = 1 and 1/2, whatever was left behind in the empty ones.
        (RANK, [9, 3, 1, -9], [0, 2 / 3, 1 / 3, 0]),
        (RANK, [9, -3, -4, 0], [0, 2 / 3, 1 / 3, 0]),
        (POWER, [9, 3, 1, -9], [0, 3 / 4, 1 / 4, 0]),
        # The fallback is uniform over the filled slots, not over all.
        (POWER, [9, 0, 0, 9], [0, 1 / 2, 1 / 2, 0]),
    ],
)
def test_empty_slots_have_no_weight_and_no_rank(
    prioritisation: Prioritisation, score: list[float], expected: list[float]
) -> None:
    filled = jnp.array([False, True, True, False])
    weights = score_weights(jnp.asarray(score, jnp.float32), filled, prioritisation, 1.0)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_equal_scores_share_the_ranks_out_and_none_twice() -> None:
    weights = score_weights(jnp.array([2.0, 2.0, 5.0]), jnp.ones(3, bool), RANK, 1.0)
    # Ranks 2 and 3 go to the tie: the weights are those of three different scores.
    np.testing.assert_allclose(sorted(np.asarray(weights)), [2 / 11, 3 / 11, 6 / 11], rtol=1e-6)


@pytest.mark.parametrize("prioritisation", list(Prioritisation))
@pytest.mark.parametrize("scores", [(1e-39, 1e-40, 0.0), (3e38, 1e38, -3e38), (1e-30, 1e30, 1.0)])
def test_weights_sum_to_one_at_the_ends_of_the_float_range(
    prioritisation: Prioritisation, scores: tuple[float, ...]
) -> None:
    for temperature in (0.01, 0.3, 1.0, 30.0):
        weights = score_weights(jnp.array(scores), jnp.ones(3, bool), prioritisation, temperature)
        assert jnp.all(weights >= 0)
        np.testing.assert_allclose(jnp.sum(weights), 1, rtol=1e-6)


# --- P_C: weights by staleness, and the mixture -----------------------------------------------------------------------


def test_staleness_weights_by_hand() -> None:
    # Ages 10 − 4, 10 − 8, 10 − 10 = 6, 2, 0, which sum to 8.
    weights = staleness_weights(jnp.array([4, 8, 10]), jnp.int32(10), jnp.ones(3, bool))
    np.testing.assert_allclose(weights, [6 / 8, 2 / 8, 0], rtol=1e-6)


def test_empty_slots_are_not_stale() -> None:
    # An empty slot's timestamp is 0, which would make it the oldest of all.
    weights = staleness_weights(jnp.array([0, 8, 4]), jnp.int32(10), jnp.array([False, True, True]))
    np.testing.assert_allclose(weights, [0, 2 / 8, 6 / 8], rtol=1e-6)


def test_where_nothing_is_stale_staleness_is_uniform_over_the_filled() -> None:
    weights = staleness_weights(jnp.array([7, 7, 0]), jnp.int32(7), jnp.array([True, True, False]))
    np.testing.assert_allclose(weights, [1 / 2, 1 / 2, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("staleness", "expected"),
    [
        # P_S = 3/4, 1/4, 0 and P_C = 0, 2/8, 6/8.
        (0.0, [3 / 4, 1 / 4, 0]),
        (0.25, [9 / 16, 1 / 4, 3 / 16]),
        (0.7, [0.225, 0.25, 0.525]),
        (1.0, [0, 1 / 4, 3 / 4]),
    ],
)
def test_replay_weights_mix_score_and_staleness(staleness: float, expected: list[float]) -> None:
    buffer = buffer_of([1, 2, 3], [3, 1, 0], timestamp=[10, 8, 4], clock=10, capacity=4)
    np.testing.assert_allclose(replay_weights(buffer, POWER, 1.0, staleness), [*expected, 0], rtol=1e-6, atol=1e-8)


def test_both_parts_of_the_mixture_fall_back_on_their_own() -> None:
    # All scores zero: P_S uniform. Ages 1 and 3: P_C = 1/4, 3/4. Half of each: (1/2 + 1/4) / 2 = 3/8 and 5/8.
    buffer = buffer_of([1, 2], [0, 0], timestamp=[3, 1], clock=4)
    np.testing.assert_allclose(replay_weights(buffer, POWER, 1.0, 0.5), [3 / 8, 5 / 8], rtol=1e-6)
