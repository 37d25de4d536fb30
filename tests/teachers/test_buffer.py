"""The level buffer: replay weights, draws, fingerprints, and what happens to a batch of scored levels."""

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from samplr.compiling import jit
from samplr.teachers import buffer as buffer_module
from samplr.teachers.buffer import LevelBuffer, Prioritisation, draw

from .numbered import POWER, RANK, buffer_of, empty, ids_of, present

# Compiled rather than run operation by operation, because that takes several times as long.
score_weights = jit(buffer_module.score_weights, runs_once=True, static_argnums=2)
staleness_weights = jit(buffer_module.staleness_weights, runs_once=True)
replay_weights = jit(buffer_module.replay_weights, runs_once=True, static_argnums=1)
fingerprint = jit(buffer_module.fingerprint, runs_once=True)
prints = jit(jax.vmap(buffer_module.fingerprint), runs_once=True)

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


# --- draws ------------------------------------------------------------------------------------------------------------

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


# --- fingerprints -----------------------------------------------------------------------------------------------------


def as_64_bits(pairs: jax.Array) -> np.ndarray:
    pairs = np.asarray(pairs)
    return pairs[:, 0].astype(np.uint64) << np.uint64(32) | pairs[:, 1].astype(np.uint64)


DTYPES = [bool, jnp.int8, jnp.uint8, jnp.int16, jnp.int32, jnp.uint32, jnp.float16, jnp.bfloat16, jnp.float32]


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_fractions_have_prints_of_their_own(dtype: type) -> None:
    assert jnp.any(fingerprint(jnp.array([0.25], dtype)) != fingerprint(jnp.array([0.75], dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_levels_of_any_dtype_equal_levels_have_equal_prints_and_others_do_not(dtype: type) -> None:
    level = jnp.array([0, 1, 1, 0], dtype)
    assert jnp.array_equal(fingerprint(level), fingerprint(jnp.array([0, 1, 1, 0], dtype)))
    assert jnp.any(fingerprint(level) != fingerprint(jnp.array([0, 1, 1, 1], dtype)))
    # Levels are made of the same words here, in another order.
    assert jnp.any(fingerprint(level) != fingerprint(jnp.array([1, 0, 0, 1], dtype)))


def test_a_print_covers_every_leaf_of_a_level() -> None:
    def level(track: float, ice: bool) -> dict[str, jax.Array]:
        return {"track": jnp.array([1.5, track]), "ice": jnp.array([True, ice]), "fruit": jnp.int8(3)}

    same, other_track, other_ice = level(2.5, True), level(2.75, True), level(2.5, False)
    assert jnp.array_equal(fingerprint(level(2.5, True)), fingerprint(same))
    assert jnp.any(fingerprint(same) != fingerprint(other_track))
    assert jnp.any(fingerprint(same) != fingerprint(other_ice))


def test_numbers_that_differ_in_one_bit_have_different_prints() -> None:
    number = jnp.float32(0.1)
    assert jnp.any(fingerprint(number) != fingerprint(jnp.nextafter(number, jnp.float32(1))))


def test_a_hundred_thousand_random_levels_do_not_collide() -> None:
    # 64 bits: one collision is expected in 2⁶⁵ / 10¹⁰ ≈ 3·10⁹ such samples.
    patterns = np.random.default_rng(0).random((100_000, 64)) < 0.5
    assert len(np.unique(np.packbits(patterns, axis=1), axis=0)) == 100_000
    pairs = prints(patterns)
    assert len(np.unique(as_64_bits(pairs))) == 100_000
    # Each of the two words is a good hash by itself: 10¹⁰ / 2³³ ≈ 1.2 collisions expected, a Poisson count.
    for word in np.asarray(pairs).T:
        assert 100_000 - len(np.unique(word)) <= stats.poisson.isf(1e-6, 1.2)


def test_nearly_dry_levels_do_not_collide() -> None:
    # What a buffer really meets: hundreds of tiles of which none, one or two are icy.
    tiles = 150
    pairs = list(itertools.combinations(range(tiles), 2))
    patterns = np.zeros((1 + tiles + len(pairs), tiles), bool)
    patterns[1 : 1 + tiles] = np.eye(tiles, dtype=bool)
    patterns[np.arange(len(pairs))[:, None] + 1 + tiles, pairs] = True
    assert len(np.unique(as_64_bits(prints(patterns)))) == len(patterns)


def test_all_roads_of_sixteen_segments_have_different_prints() -> None:
    patterns = (np.arange(2**16)[:, None] >> np.arange(16)) & 1 == 1
    assert len(np.unique(as_64_bits(prints(patterns)))) == 2**16


# --- merge: which level goes where ------------------------------------------------------------------------------------


def test_the_least_slots_meet_the_candidates_best_first() -> None:
    # ρ = 0 and power: P_replay goes by score. Least first, the slots are 1 (score 1), 3 (score 2), 2 (score 3); best
    # first, the candidates are 11 (5), 12 (2.5), 10 (0.5). So 11 takes slot 1, 12 takes slot 3, and 10 meets level 3,
    # which is better than it.
    buffer = buffer_of([1, 2, 3, 4], [4, 1, 3, 2])
    after = present(buffer, [10, 11, 12], [0.5, 5, 2.5])
    assert ids_of(after) == [1, 11, 3, 12]
    np.testing.assert_allclose(after.score, [4, 5, 3, 2.5])


def test_victims_are_those_of_least_replay_weight_not_of_least_score() -> None:
    # ρ = 1: P_replay goes by age alone. After three more levels the clock is 10 and the ages are 3, 10, 4, 5: the
    # victims are slots 0 (score 6), 2 (score 1) and 3 (score 1), in this order. Candidate 5 < 6 is refused although it
    # beats all other levels; 3 > 1 goes in; 0.5 < 1 does not.
    buffer = buffer_of([1, 2, 3, 4], [6, 2, 1, 1], timestamp=[7, 0, 6, 5], clock=7)
    after = present(buffer, [10, 11, 12], [5, 3, 0.5], staleness=1.0)
    assert ids_of(after) == [1, 2, 11, 4]


def test_replacement_is_strict() -> None:
    buffer = buffer_of([1, 2, 3, 4], [4, 1, 3, 2])
    after = present(buffer, [10, 11, 12], [1, 1, 1])
    assert ids_of(after) == [1, 2, 3, 4]
    np.testing.assert_allclose(after.score, [4, 1, 3, 2])


def test_empty_slots_are_filled_first_and_by_anything() -> None:
    # Best first: 12 (−1) and 11 (−2) take the empty slots, and 10 (−3) meets the least of the stored, which is better.
    buffer = buffer_of([1, 2], [9, 8], capacity=4)
    after = present(buffer, [10, 11, 12], [-3, -2, -1])
    assert ids_of(after) == [1, 2, 12, 11]
    np.testing.assert_allclose(after.score, [9, 8, -1, -2])


def test_a_batch_larger_than_the_buffer_leaves_its_best() -> None:
    after = present(empty(2), [10, 11, 12, 13, 14], [3, 5, 1, 4, 2])
    assert set(ids_of(after)) == {11, 13}


def test_a_stored_level_is_updated_in_place_even_to_a_lower_score() -> None:
    buffer = buffer_of([1, 2, 3, 4], [4, 5, 3, 6], timestamp=[1, 2, 3, 4], clock=4, best_return=[7, 7, 7, 7])
    after = present(buffer, [2], [3.5], seen=[6])
    assert ids_of(after) == [1, 2, 3, 4]
    np.testing.assert_allclose(after.score, [4, 3.5, 3, 6])
    np.testing.assert_array_equal(after.timestamp, [1, 5, 3, 4])
    np.testing.assert_allclose(after.best_return, [7, 7, 7, 7])


def test_a_stored_level_uses_up_no_victim() -> None:
    # 4 is only re-scored (to 7), so that the one new level meets the least of all, slot 1, and not the second least.
    buffer = buffer_of([1, 2, 3, 4], [4, 1, 3, 2])
    after = present(buffer, [4, 10], [7, 1.5])
    assert ids_of(after) == [1, 10, 3, 4]
    np.testing.assert_allclose(after.score, [4, 1.5, 3, 7])


def test_new_levels_meet_the_buffer_as_it_is_after_the_updates() -> None:
    # 1 was the best and is now the worst, so it is 1 that the new level replaces.
    buffer = buffer_of([1, 2, 3, 4], [9, 1, 3, 2])
    after = present(buffer, [1, 10], [0, 5])
    assert ids_of(after) == [10, 2, 3, 4]


def test_equal_levels_of_a_batch_count_once_with_the_mean_of_their_scores() -> None:
    # 10 counts as (1 + 8) / 2 = 4.5, so it comes before 11 (2): it takes slot 1 (score 1), 11 meets slot 3 (score 2).
    buffer = buffer_of([1, 2, 3, 4], [4, 1, 3, 2])
    after = present(buffer, [10, 11, 10], [1, 2, 8], seen=[-5, 0, -3])
    assert ids_of(after) == [1, 10, 3, 4]
    np.testing.assert_allclose(after.score, [4, 4.5, 3, 2])
    # Its best return is the higher of the two.
    np.testing.assert_allclose(after.best_return, [0, -3, 0, 0])


def test_equal_levels_of_a_batch_update_a_stored_one_with_their_mean() -> None:
    buffer = buffer_of([1, 2, 3, 4], [4, 1, 3, 2], best_return=[1, 1, 1, 1])
    after = present(buffer, [3, 3, 3], [0, 2, 7], seen=[0, 4, 2])
    assert ids_of(after) == [1, 2, 3, 4]
    np.testing.assert_allclose(after.score, [4, 1, 3, 2])  # (0 + 2 + 7) / 3 = 3
    np.testing.assert_allclose(after.best_return, [1, 1, 4, 1])


def test_the_whole_level_is_stored_not_only_its_number() -> None:
    after = present(empty(2), [10, 11], [1, 2], seen=[3, 4])
    by_id = dict(zip(ids_of(after), np.asarray(after.best_return), strict=True))
    assert by_id == {10: 3, 11: 4}
    np.testing.assert_array_equal(after.fingerprint, prints(after.levels.aleatoric))


# --- merge: clock, timestamps and best returns ------------------------------------------------------------------------


def test_the_clock_ticks_once_for_each_level_presented() -> None:
    buffer = present(empty(4), [10, 11, 12], [1, 2, 3])
    assert buffer.clock == 3
    # Duplicates and refused levels were presented, too.
    buffer = present(buffer, [10, 10, 13], [1, 1, -1])
    assert buffer.clock == 6
    buffer = present(buffer, [20, 21, 22], [-5, -6, -7])
    assert set(ids_of(buffer)) == {10, 11, 12, 13}
    assert buffer.clock == 9


def test_levels_just_scored_are_not_stale_and_the_others_age() -> None:
    buffer = present(empty(4), [10, 11, 12], [1, 2, 3])
    age = dict(zip(ids_of(buffer), np.asarray(buffer.clock - buffer.timestamp), strict=True))
    assert {level: age[level] for level in (10, 11, 12)} == {10: 0, 11: 0, 12: 0}
    # Nothing is stale: uniform, not 0/0.
    weights = staleness_weights(buffer.timestamp, buffer.clock, buffer.filled)
    np.testing.assert_allclose(sorted(np.asarray(weights)), [0, 1 / 3, 1 / 3, 1 / 3], rtol=1e-6)

    buffer = present(buffer, [10, 13, 13], [5, 1, 1])
    age = dict(zip(ids_of(buffer), np.asarray(buffer.clock - buffer.timestamp), strict=True))
    # 10 was re-scored, 13 inserted; 11 and 12 have waited while three levels were presented.
    assert age == {10: 0, 13: 0, 11: 3, 12: 3}


@pytest.mark.parametrize(
    ("returns", "remembered"),
    [
        ([5, 3, 7], [5, 5, 7]),
        # Never floored at zero.
        ([-5, -7, -3], [-5, -5, -3]),
        ([-5, 0, -1], [-5, 0, 0]),
    ],
)
def test_the_best_return_is_a_running_maximum(returns: list[float], remembered: list[float]) -> None:
    buffer = empty(4)
    for seen, best in zip(returns, remembered, strict=True):
        buffer = present(buffer, [10], [1], seen=[seen])
        assert float(buffer.best_return[ids_of(buffer).index(10)]) == best


def test_a_new_level_does_not_inherit_the_best_return_of_its_victim() -> None:
    buffer = buffer_of([1, 2, 3, 4], [4, 1, 3, 2], best_return=[100, 100, 100, 100])
    after = present(buffer, [10], [2], seen=[-6])
    assert ids_of(after) == [1, 10, 3, 4]
    np.testing.assert_allclose(after.best_return, [100, -6, 100, 100])


# --- one level at a time: Algorithm 3 of the paper --------------------------------------------------------------------


@dataclass
class Stored:
    score: float
    timestamp: int


class Algorithm3:
    """The paper's level-buffer update rule in plain Python, and its P_replay. c is the number of levels so far."""

    def __init__(self, capacity: int, prioritisation: Prioritisation, temperature: float, staleness: float) -> None:
        self.capacity, self.prioritisation = capacity, prioritisation
        self.temperature, self.staleness = temperature, staleness
        self.levels: dict[int, Stored] = {}
        self.c = 0

    def p_replay(self, level: int) -> float:
        total_h = sum(self.h(each) for each in self.levels)
        total_age = sum(self.c - each.timestamp for each in self.levels.values())
        p_s = self.h(level) / total_h if total_h else 1 / len(self.levels)
        p_c = (self.c - self.levels[level].timestamp) / total_age if total_age else 1 / len(self.levels)
        return (1 - self.staleness) * p_s + self.staleness * p_c

    def h(self, level: int) -> float:
        score = self.levels[level].score
        if self.prioritisation is POWER:
            return max(score, 0) ** (1 / self.temperature)
        rank = 1 + sum(other.score > score for other in self.levels.values())
        return (1 / rank) ** (1 / self.temperature)

    def present(self, level: int, score: float) -> None:
        self.c += 1
        if len(self.levels) < self.capacity:
            self.levels[level] = Stored(score, self.c)
            return
        least = min(self.levels, key=self.p_replay)
        if self.levels[least].score < score:
            del self.levels[least]
            self.levels[level] = Stored(score, self.c)


@pytest.mark.parametrize("prioritisation", list(Prioritisation))
@pytest.mark.parametrize(("temperature", "staleness"), [(1.0, 0.0), (1.0, 0.7), (0.4, 0.3), (3.0, 1.0)])
def test_one_level_at_a_time_merging_is_algorithm_3(
    prioritisation: Prioritisation, temperature: float, staleness: float
) -> None:
    # Positive scores: two weights are never equal, and the argmin is unique.
    scores = np.random.default_rng(0).gamma(1.0, 1.0, size=60).astype(np.float32)
    paper = Algorithm3(4, prioritisation, temperature, staleness)
    buffer = empty(4)
    accepted = 0
    for level, score in enumerate(scores.tolist(), start=1):
        before = ids_of(buffer)
        paper.present(level, score)
        buffer = present(
            buffer,
            [level],
            [score],
            prioritisation=prioritisation,
            temperature=temperature,
            staleness=staleness,
        )
        accepted += level in ids_of(buffer) and None not in before
        stored = {
            each: Stored(float(buffer.score[slot]), int(buffer.timestamp[slot]))
            for slot, each in enumerate(ids_of(buffer))
            if each is not None
        }
        assert stored == paper.levels
        assert buffer.clock == paper.c
    # The sequence has both kinds of case.
    assert 3 < accepted < 53


# --- any sequence of batches ------------------------------------------------------------------------------------------

K, N = 6, 4


@dataclass
class Slot:
    """What the reference below knows of a filled slot."""

    level: int
    score: np.float32
    best_return: float
    timestamp: int


@dataclass
class Meeting:
    """A new level and the slot it was paired with."""

    level: int
    score: np.float32
    victim: int


class BatchRule:
    """The rule for a batch, written again in NumPy and float64, with lists for slots and loops for scatters."""

    def __init__(self, prioritisation: Prioritisation, temperature: float, staleness: float) -> None:
        self.slots: list[Slot | None] = [None] * K
        self.clock = 0
        self.prioritisation, self.temperature, self.staleness = prioritisation, temperature, staleness

    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        """P_S and P_C of the filled slots, in order."""
        filled = [slot for slot in self.slots if slot is not None]
        scores = np.array([slot.score for slot in filled], np.float64)
        if self.prioritisation is RANK:
            h = np.empty(len(filled))
            h[np.argsort(-scores, kind="stable")] = 1 / np.arange(1, len(filled) + 1)
        else:
            h = np.maximum(scores, 0)
        ages = np.array([self.clock - slot.timestamp for slot in filled], np.float64)
        uniform = np.full(len(filled), 1 / len(filled))
        h = h ** (1 / self.temperature)
        return h / h.sum() if h.sum() else uniform, ages / ages.sum() if ages.sum() else uniform

    def weights(self) -> np.ndarray:
        """P_replay of every slot, 0 for the empty ones."""
        by_score, by_age = self.parts()
        weights = np.zeros(K)
        weights[[slot is not None for slot in self.slots]] = (1 - self.staleness) * by_score + self.staleness * by_age
        return weights

    def clear(self) -> bool:
        """Whether the order of the weights is beyond rounding: ties are between slots alike in score and age only."""
        pairs = np.stack(self.parts(), axis=1)
        weights = pairs @ [1 - self.staleness, self.staleness]
        return all(
            abs(weights[i] - weights[j]) > 1e-5 or np.array_equal(pairs[i], pairs[j])
            for i, j in itertools.combinations(range(len(weights)), 2)
        )

    def present(self, ids: Sequence[int], scores: Sequence[float], returns: Sequence[float]) -> list[Meeting]:
        """Take in a batch; returns who met whom."""
        self.clock += len(ids)
        new: list[Slot] = []
        for level in dict.fromkeys(ids):
            copies = [i for i, each in enumerate(ids) if each == level]
            score = np.float32(np.mean([scores[i] for i in copies]))
            best = max(returns[i] for i in copies)
            for slot in self.slots:
                if slot is not None and slot.level == level:
                    slot.score, slot.timestamp = score, self.clock
                    slot.best_return = max(slot.best_return, best)
                    break
            else:
                new.append(Slot(level, score, best, self.clock))

        vacant = [i for i, slot in enumerate(self.slots) if slot is None]
        if len(vacant) < K:
            assume(self.clear())
            weights = self.weights()
            vacant += sorted((i for i in range(K) if self.slots[i] is not None), key=lambda i: weights[i])
        meetings = []
        for candidate, victim in zip(sorted(new, key=lambda each: -each.score), vacant, strict=False):
            held = self.slots[victim]
            meetings.append(Meeting(candidate.level, candidate.score, victim))
            if held is None or held.score < candidate.score:
                self.slots[victim] = candidate
        return meetings


# Few different levels and scores, so that duplicates, ties and zeros are common. Quarters have exact means.
batches = st.lists(
    st.lists(
        st.tuples(
            st.integers(1, 12),
            st.sampled_from([-8.0, -0.5, 0.0, 0.25, 1.0, 2.0, 7.0]) | st.integers(-4000, 4000).map(lambda i: i / 16),
            st.integers(-50, 50).map(float),
        ),
        min_size=N,
        max_size=N,
    ),
    min_size=1,
    max_size=7,
)
rules = st.tuples(
    st.sampled_from(list(Prioritisation)), st.sampled_from([0.25, 1.0, 3.0]), st.sampled_from([0.0, 0.3, 0.7, 1.0])
)
random_sequences = settings(max_examples=40, deadline=None, derandomize=True)


def run_through(
    sequence: list[list[tuple[int, float, float]]], prioritisation: Prioritisation, temperature: float, staleness: float
) -> list[LevelBuffer]:
    """The buffer before the first batch and after each."""
    buffers = [empty(K)]
    for batch in sequence:
        ids, scores, returns = zip(*batch, strict=True)
        buffers.append(
            present(
                buffers[-1],
                ids,
                scores,
                seen=returns,
                prioritisation=prioritisation,
                temperature=temperature,
                staleness=staleness,
            )
        )
    return buffers


@random_sequences
@given(batches, rules)
def test_replay_weights_are_a_distribution_over_the_filled_slots_always(
    sequence: list[list[tuple[int, float, float]]], rule: tuple[Prioritisation, float, float]
) -> None:
    for buffer in run_through(sequence, *rule)[1:]:
        weights = np.asarray(replay_weights(buffer, *rule))
        assert np.all(np.isfinite(weights))
        assert np.all(weights >= 0)
        assert np.all(weights[~np.asarray(buffer.filled)] == 0)
        np.testing.assert_allclose(weights.sum(), 1, rtol=1e-5)


@random_sequences
@given(batches, rules)
def test_the_buffer_holds_at_most_k_levels_no_two_equal_with_finite_scores(
    sequence: list[list[tuple[int, float, float]]], rule: tuple[Prioritisation, float, float]
) -> None:
    presented: set[int] = set()
    for batch, buffer in zip(sequence, run_through(sequence, *rule)[1:], strict=True):
        presented |= {level for level, _, _ in batch}
        stored = [level for level in ids_of(buffer) if level is not None]
        assert len(stored) <= K
        assert max(Counter(stored).values()) == 1
        assert set(stored) <= presented
        # A buffer that is not full has refused nothing.
        assert len(stored) == K or set(stored) == presented
        assert np.all(np.isfinite(np.asarray(buffer.score)))
        assert np.all(np.isfinite(np.asarray(buffer.best_return)[np.asarray(buffer.filled)]))


@random_sequences
@given(batches, rules)
def test_a_candidate_better_than_its_victim_is_never_refused(
    sequence: list[list[tuple[int, float, float]]], rule: tuple[Prioritisation, float, float]
) -> None:
    """And a worse one never accepted.

    Candidate and victim are those of the batch rule: with the stored levels of the batch re-scored and the clock moved
    on, the i-th best of the new levels meets the i-th slot in the order empty, then least P_replay.
    """
    reference = BatchRule(*rule)
    for batch, buffer in zip(sequence, run_through(sequence, *rule)[1:], strict=True):
        ids, scores, returns = zip(*batch, strict=True)
        # What the victims' scores are, re-scored ones included, can be asked of the reference only before it replaces.
        rescored = {level: np.float32(np.mean([s for i, s, _ in batch if i == level])) for level in ids}
        held = [None if slot is None else rescored.get(slot.level, slot.score) for slot in reference.slots]
        meetings = reference.present(ids, scores, returns)
        stored = ids_of(buffer)
        for meeting in meetings:
            victim_score = held[meeting.victim]
            better = victim_score is None or meeting.score > victim_score
            assert (meeting.level in stored) == better
        # And the whole buffer is as the reference has it.
        assert stored == [None if slot is None else slot.level for slot in reference.slots]
        for index, slot in enumerate(reference.slots):
            if slot is not None:
                assert float(buffer.score[index]) == slot.score
                assert float(buffer.best_return[index]) == slot.best_return
                assert int(buffer.timestamp[index]) == slot.timestamp
        assert int(buffer.clock) == reference.clock
        np.testing.assert_allclose(replay_weights(buffer, *rule), reference.weights(), rtol=1e-4, atol=1e-6)
