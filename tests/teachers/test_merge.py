"""What happens to a batch of scored levels: which goes where, and what is remembered of it."""

import jax
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.teachers import buffer as buffer_module

from .numbered import buffer_of, empty, ids_of, present

# Compiled rather than run operation by operation, because that takes several times as long.
staleness_weights = jit(buffer_module.staleness_weights, runs_once=True)
prints = jit(jax.vmap(buffer_module.fingerprint), runs_once=True)

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
