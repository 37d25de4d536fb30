"""Merging again and again, beside the same rules written in plain Python."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from samplr.compiling import jit
from samplr.teachers import buffer as buffer_module
from samplr.teachers.buffer import LevelBuffer, Prioritisation

from .numbered import POWER, RANK, empty, ids_of, present

# Compiled rather than run operation by operation, because that takes several times as long.
replay_weights = jit(buffer_module.replay_weights, runs_once=True, static_argnums=1)

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
