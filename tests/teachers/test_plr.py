"""The teachers: which phase when, which levels, and who learns from them."""

import functools
import itertools
import math
from collections import Counter

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from samplr.compiling import jit
from samplr.envs.api import Level, Origin
from samplr.envs.icy_road import IcyRoad
from samplr.posteriors import BernoulliField
from samplr.teachers.api import Outcome, Phase, Teacher
from samplr.teachers.buffer import LevelBuffer, Prioritisation
from samplr.teachers.dr import DomainRandomisation
from samplr.teachers.plr import NEW, REPLAY, PrioritisedLevelReplay, new_rollouts_before_replay
from samplr.teachers.scores import positive_value_loss
from samplr.training import TrainState

from .conftest import Trained

ROAD = IcyRoad(segments=6, alpha=1.0, beta=1.0)


def teacher(
    *,
    replay_rate: float = 0.5,
    new_rollouts_first: int = 1,
    robust: bool = True,
    temperature: float = 1.0,
    staleness: float = 0.0,
    capacity: int = 8,
) -> PrioritisedLevelReplay:
    return PrioritisedLevelReplay(
        temperature=jnp.float32(temperature),
        staleness=jnp.float32(staleness),
        replay_rate=replay_rate,
        capacity=capacity,
        new_rollouts_first=new_rollouts_first,
        prioritisation=Prioritisation.POWER,
        score=positive_value_loss,
        robust=robust,
    )


@functools.partial(jit, runs_once=True)
def observe(plr: PrioritisedLevelReplay, buffer: LevelBuffer, seen: Outcome) -> LevelBuffer:
    return plr.observe(buffer, ROAD, seen)


@functools.partial(jit, runs_once=True)
def phase_of(plr: PrioritisedLevelReplay, updates: jax.Array) -> jax.Array:
    return jax.vmap(plr.schedule)(updates)


def schedule(plr: PrioritisedLevelReplay, updates: int) -> np.ndarray:
    """The phases of the first updates."""
    return np.asarray(phase_of(plr, jnp.arange(updates)))


# --- schedule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fill", "capacity", "workers", "rollouts"),
    [
        (0.5, 10, 4, 2),  # 5 levels, 4 at a time
        (0.5, 8, 4, 1),  # 4 levels exactly
        (0.5, 500, 16, 16),  # 250 / 16 = 15.6: the paper's car racing
        (1.0, 256, 64, 4),
        (0.0, 256, 64, 1),  # there is nothing to replay before the first rollout
        (0.5, 4, 64, 1),
        (0.07, 100, 1, 7),  # though 0.07 · 100 is a little more than 7 in floats
    ],
)
def test_replay_begins_when_enough_levels_were_presented_to_fill_a_share_of_the_buffer(
    fill: float, capacity: int, workers: int, rollouts: int
) -> None:
    assert new_rollouts_before_replay(fill, capacity, workers) == rollouts


@pytest.mark.parametrize("first", [1, 5])
def test_the_first_rollouts_are_new_whatever_the_coin_says(first: int) -> None:
    # With p = 1 the coin always says replay, so that only the gate is seen.
    phases = schedule(teacher(replay_rate=1.0, new_rollouts_first=first), 12)
    assert phases.tolist() == [NEW] * first + [REPLAY] * (12 - first)


@pytest.mark.parametrize("rate", [0.5, 0.8])
def test_in_the_long_run_a_share_p_of_the_updates_replays(rate: float) -> None:
    updates = 20_000
    replays = schedule(teacher(replay_rate=rate), updates)[1:] == REPLAY
    four_deviations = 4 * math.sqrt(rate * (1 - rate) / updates)
    assert np.mean(replays) == pytest.approx(rate, abs=four_deviations)
    # The coins of successive updates are independent: after a replay the share is the same.
    after_replay = replays[1:][replays[:-1]]
    assert np.mean(after_replay) == pytest.approx(rate, abs=four_deviations / math.sqrt(rate))


def test_the_schedule_depends_on_nothing_but_the_update_and_the_rate() -> None:
    # All runs of a batch and of a sweep take the same branch: hyperparameters that are leaves must not matter.
    one = schedule(teacher(temperature=1.0, staleness=0.0, robust=True), 200)
    another = schedule(teacher(temperature=0.1, staleness=0.9, robust=False, capacity=99), 200)
    np.testing.assert_array_equal(one, another)
    # Nor does what came before: asked for a single update the answer is the same.
    np.testing.assert_array_equal(phase_of(teacher(), jnp.array([7, 3, 150])), one[[7, 3, 150]])


def test_who_learns_from_what() -> None:
    assert teacher(robust=False).phases == (Phase("new", learn=True), Phase("replay", learn=True))
    assert teacher(robust=True).phases == (Phase("new", learn=False), Phase("replay", learn=True))
    assert DomainRandomisation().phases == (Phase("new", learn=True),)
    assert DomainRandomisation().schedule(jnp.int32(17)) == 0


# --- proposals --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def six_roads() -> LevelBuffer:
    """A buffer of 8 slots in which a teacher has put the roads with ice on one segment: 0, …, 5, of score 1, …, 6."""
    plr = teacher()
    bits = jnp.eye(6, dtype=bool)
    levels = Level(None, BernoulliField(jnp.linspace(0, 1, 6), bits), jnp.full(6, Origin.PRIOR, jnp.int32))
    scores = jnp.arange(1.0, 7.0)
    seen = Outcome(levels, scores[None], scores[None], scores, jnp.ones(()), None)
    return observe(plr, plr.init(ROAD), seen)


@functools.partial(jit, runs_once=True, static_argnums=(1, 3))
def propose(plr: Teacher, phase: int, buffer: LevelBuffer | None, workers: int, seed: int = 0) -> Level:
    return plr.propose(plr.phases[phase], buffer, ROAD, workers, key=jax.random.key(seed))


def bits_of(tree: object) -> list[bytes]:
    """The bits of every array, so that equal means equal to the last one."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def rows(bits: jax.Array) -> list[tuple[bool, ...]]:
    return [tuple(row) for row in np.asarray(bits).tolist()]


def test_new_levels_come_from_the_prior(six_roads: LevelBuffer) -> None:
    plr = teacher()
    levels = propose(plr, NEW, six_roads, workers=4)
    assert levels.origin.tolist() == [Origin.PRIOR] * 4
    assert levels.origin.dtype == jnp.int32
    # The same that domain randomisation would propose: the buffer has no say.
    same = propose(DomainRandomisation(), NEW, None, workers=4)
    assert bits_of(levels) == bits_of(same)


@pytest.mark.parametrize("seed", range(3))
def test_replayed_levels_are_different_levels_of_the_buffer(six_roads: LevelBuffer, seed: int) -> None:
    levels = propose(teacher(), REPLAY, six_roads, workers=4, seed=seed)
    assert levels.origin.tolist() == [Origin.REPLAY] * 4
    assert levels.origin.dtype == jnp.int32
    # Whole levels: the rate belongs to the bits it was stored with. (An empty slot would be a road without ice.)
    stored = {(tuple(np.eye(6, dtype=bool)[i].tolist()), round(i / 5, 5)) for i in range(6)}
    proposed = {
        (bits, round(float(rate), 5))
        for bits, rate in zip(rows(levels.aleatoric.bits), levels.aleatoric.rate, strict=True)
    }
    assert proposed <= stored
    assert len(proposed) == 4


def test_with_more_workers_than_levels_every_level_is_replayed(six_roads: LevelBuffer) -> None:
    levels = propose(teacher(), REPLAY, six_roads, workers=8)
    counts = np.asarray(levels.aleatoric.bits).sum(axis=0)
    assert sorted(counts) == [1, 1, 1, 1, 2, 2]


def test_replay_follows_the_weights(six_roads: LevelBuffer) -> None:
    # P_S = S / 21 with power, β = 1 and ρ = 0.
    plr = teacher()
    keys = jax.random.split(jax.random.key(0), 10_000)
    one_worker = jit(jax.vmap(lambda key: plr.propose(plr.phases[REPLAY], six_roads, ROAD, 1, key=key)), runs_once=True)
    bits = one_worker(keys).aleatoric.bits[:, 0]
    counts = np.asarray(bits).sum(axis=0)
    assert stats.chisquare(counts, 10_000 * np.arange(1, 7) / 21).pvalue > 1e-3


def test_replay_follows_staleness_too(six_roads: LevelBuffer) -> None:
    # With ρ = 1 scores do not matter: the age of road i is i + 1.
    aged = eqx.tree_at(lambda b: (b.timestamp, b.clock), six_roads, (10 - jnp.arange(8), jnp.int32(11)))
    order = [row.index(True) for row in rows(aged.levels.aleatoric.bits)[:6]]
    plr = teacher(staleness=1.0)
    keys = jax.random.split(jax.random.key(0), 10_000)
    one_worker = jit(jax.vmap(lambda key: plr.propose(plr.phases[REPLAY], aged, ROAD, 1, key=key)), runs_once=True)
    counts = np.asarray(one_worker(keys).aleatoric.bits[:, 0]).sum(axis=0)[order]
    assert stats.chisquare(counts, 10_000 * np.arange(1, 7) / 21).pvalue > 1e-3


def test_what_is_stale_is_not_a_victim() -> None:
    # With ρ = 1 the level that was scored last has the least weight; with ρ = 0 that of the least score has.
    bits = jnp.eye(6, dtype=bool)

    def outcome(first: int, scores: list[float]) -> Outcome:
        n = len(scores)
        levels = Level(None, BernoulliField(jnp.zeros(n), bits[first : first + n]), jnp.zeros(n, jnp.int32))
        return Outcome(levels, jnp.array([scores]), jnp.zeros((1, n)), jnp.zeros(n), jnp.ones(()), None)

    left = {}
    for staleness in (0.0, 1.0):
        plr = teacher(capacity=2, staleness=staleness)
        buffer = observe(plr, plr.init(ROAD), outcome(0, [1.0]))
        buffer = observe(plr, buffer, outcome(1, [2.0]))
        buffer = observe(plr, buffer, outcome(2, [3.0]))
        left[staleness] = sorted(row.index(True) for row in rows(buffer.levels.aleatoric.bits))
    assert left == {0.0: [1, 2], 1.0: [0, 2]}


def test_metrics_are_of_the_levels_that_are_there(six_roads: LevelBuffer) -> None:
    found = teacher().metrics(six_roads)
    assert found["buffer/filled"] == pytest.approx(6 / 8)
    assert found["buffer/score"] == pytest.approx(3.5)


def test_domain_randomisation_proposes_other_levels_every_time() -> None:
    one, again, other = (propose(DomainRandomisation(), NEW, None, workers=8, seed=seed) for seed in (0, 0, 1))
    assert bits_of(one) == bits_of(again)
    assert not np.array_equal(one.aleatoric.rate, other.aleatoric.rate)


def test_a_replayed_level_finds_itself_in_the_buffer(six_roads: LevelBuffer) -> None:
    plr = teacher()
    levels = propose(plr, REPLAY, six_roads, workers=4)
    seen = Outcome(levels, jnp.full((1, 4), 9.0), jnp.zeros((1, 4)), jnp.zeros(4), jnp.ones(()), None)
    after = observe(plr, six_roads, seen)
    assert int(jnp.sum(after.filled)) == 6
    replayed = np.isin(np.arange(8), [row.index(True) for row in rows(levels.aleatoric.bits)])
    # The scores were 1, …, 6 in the order of the segment that is icy; those replayed are now 9.
    by_segment = {
        row.index(True): float(score)
        for row, score in zip(rows(after.levels.aleatoric.bits), after.score, strict=True)
        if any(row)
    }
    assert by_segment == {i: 9.0 if replayed[i] else i + 1.0 for i in range(6)}


def test_domain_randomisation_proposes_levels_of_the_ground_truth() -> None:
    env = IcyRoad(segments=4, alpha=1.0, beta=3.0)
    dr, count = DomainRandomisation(), 20_000
    levels = jit(lambda key: dr.propose(dr.phases[0], None, env, count, key=key), runs_once=True)(jax.random.key(0))
    # Integrating the rate out, P̄(bits) is that of a Beta–binomial count, shared among the patterns with that count.
    patterns = list(itertools.product([False, True], repeat=4))
    expected = np.array([stats.betabinom.pmf(sum(p), 4, 1, 3) / math.comb(4, sum(p)) for p in patterns])
    np.testing.assert_allclose(expected.sum(), 1)
    counted = Counter(rows(levels.aleatoric.bits))
    observed = np.array([counted[p] for p in patterns])
    assert stats.chisquare(observed, count * expected).pvalue > 1e-3
    assert stats.kstest(np.asarray(levels.aleatoric.rate), stats.beta(1, 3).cdf).pvalue > 1e-3
    # What this test can notice: ice that is drawn for each segment independently of the others, at the same mean rate.
    independent = np.array([0.25 ** sum(p) * 0.75 ** (4 - sum(p)) for p in patterns])
    noncentrality = count * np.sum((independent - expected) ** 2 / expected)
    assert stats.ncx2.sf(stats.chi2.ppf(1 - 1e-3, 15), 15, noncentrality) > 0.999


# --- who learns -------------------------------------------------------------------------------------------------------


def first_update(trained: Trained, phase: int) -> int:
    return schedule(trained.training.hyperparameters.teacher, 20).tolist().index(phase)


def after_one_update(trained: Trained, phase: int) -> tuple[TrainState, TrainState]:
    """A state just before an update of a phase, and just after."""
    state = trained.fresh()
    if before := first_update(trained, phase):
        state, _ = trained.training.advance(state, before)
    kept = jax.tree.map(lambda leaf: leaf.copy(), state)
    state, _ = trained.training.advance(state, 1)
    return kept, state


def test_robust_plr_takes_no_gradient_on_new_levels(robust_plr: Trained) -> None:
    before, after = after_one_update(robust_plr, NEW)
    assert bits_of(after.runs.network) == bits_of(before.runs.network)
    assert bits_of(after.runs.opt_state) == bits_of(before.runs.opt_state)
    # But the levels were played and scored, and the scale of returns moved.
    assert int(after.runs.teacher.clock[0]) == 2
    assert float(after.runs.scale.count[0]) == 4


def test_robust_plr_learns_from_replayed_levels(robust_plr: Trained) -> None:
    before, after = after_one_update(robust_plr, REPLAY)
    assert bits_of(after.runs.network) != bits_of(before.runs.network)


def test_plr_learns_from_new_levels(plr: Trained) -> None:
    before, after = after_one_update(plr, NEW)
    assert bits_of(after.runs.network) != bits_of(before.runs.network)
