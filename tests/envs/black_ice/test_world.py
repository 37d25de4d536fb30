"""Black ice as a world: its laws, what a drive reveals, and the posterior."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from samplr.compiling import jit
from samplr.envs.api import Level
from samplr.envs.black_ice import BlackIce
from samplr.envs.black_ice.driving import Rules
from samplr.envs.black_ice.tracks import TILES
from samplr.posteriors import BernoulliField
from samplr.testing import check_environment

from .conftest import DRIVES, ENV, KEY, one

STEPS = 10

# --- The laws -------------------------------------------------------------------------------------------------------


def test_keeps_the_laws_of_the_contract():
    check_environment(BlackIce(), episodes=2)


@pytest.mark.slow
def test_keeps_them_with_other_settings():
    check_environment(
        BlackIce(show_evidence=True, frame_stack=2, tiles_per_draw=5, ice_rule="mean", camera="motion"), episodes=8
    )


# --- A few real drives ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def start(begun):
    return begun[1:]


@pytest.fixture(scope="module")
def step():
    compiled = jit(jax.vmap(lambda world, state, action: ENV.step(world, state, action, key=KEY)), runs_once=True)
    return lambda *given: jax.device_get(compiled(*given))


@pytest.fixture(scope="module")
def drives(start, worlds, step):
    """Ten actions of a gentle driver on each track."""
    state, steps = start[0], []
    for count in range(STEPS):
        steer = 0.05 * (-1.0) ** count
        steps.append(step(worlds, state, np.tile(np.float32([steer, 0.3, 0.0]), (DRIVES, 1))))
        state = steps[-1].state
    return steps


@pytest.fixture(scope="module")
def found(drives):
    """How many icy and dry tiles have acted on a wheel by the end of each drive, counted here."""
    state = drives[-1].state
    revealed, icy = np.asarray(state.drive.revealed), np.asarray(state.ice.bits)
    return (revealed & icy).sum(axis=1), (revealed & ~icy).sum(axis=1)


def test_the_drives_found_ice_and_dry_road(found):
    # Else the tests below would test nothing.
    icy, dry = found
    assert (icy + dry >= 3).all()
    assert len(set(zip(icy.tolist(), dry.tolist(), strict=True))) >= 4
    assert icy.sum() >= 6


def test_a_picture_of_a_level_shows_all_of_its_ice(start, worlds):
    world, state = jax.tree.map(lambda leaf: leaf[0], (worlds, start[0]))

    def drawn(bits):
        return ENV.render_level(world, eqx.tree_at(lambda s: s.ice.bits, state, bits))

    dry = drawn(np.zeros(TILES, bool))
    # All around the track: the driver's own picture shows but the nearest of them.
    for tile in range(0, TILES, TILES // 5):
        assert not np.array_equal(drawn(np.arange(TILES) == tile), dry)


def test_metrics(drives):
    for after in drives:
        visited, icy = np.asarray(after.state.drive.visited), np.asarray(after.state.ice.bits)
        np.testing.assert_allclose(after.metrics["visited"], visited.mean(axis=1), rtol=1e-6)
        np.testing.assert_allclose(after.metrics["visited_icy"], (visited & icy).mean(axis=1), rtol=1e-6)
        np.testing.assert_allclose(
            after.metrics["icy_share"], (visited & icy).sum(axis=1) / visited.sum(axis=1), rtol=1e-6
        )
        assert not np.asarray(after.metrics["lap"]).any()


def test_the_frame_limit_truncates_in_the_middle_of_an_action(start, worlds, drives, step):
    short = eqx.tree_at(lambda w: w.road.frame_limit, worlds, np.full(DRIVES, 13, np.int32))
    parked = np.zeros((DRIVES, 3), np.float32)
    first = step(short, start[0], parked)
    assert not np.asarray(first.done).any()
    second = step(short, first.state, parked)
    assert np.asarray(second.truncated).all()
    assert not np.asarray(second.terminated).any()
    assert (np.asarray(second.state.drive.frame) == 13).all()
    np.testing.assert_allclose(second.reward, -0.5, atol=1e-4)
    # A drive that has terminated is not truncated as well, whatever its frame.
    over = eqx.tree_at(lambda s: s.drive.terminated, first.state, np.ones(DRIVES, bool))
    over = eqx.tree_at(lambda s: s.drive.frame, over, np.full(DRIVES, 13, np.int32))
    third = step(short, over, parked)
    assert np.asarray(third.terminated).all()
    assert not np.asarray(third.truncated).any()
    assert (np.asarray(third.reward) == 0).all()


def test_the_last_picture_of_a_step_is_where_it_ends():
    env = BlackIce(cell=4.0, smoothing=1, rules=Rules(action_repeat=5))

    def go(key):
        level = env.sample_level(key=key)
        world = env.build(level.layout)
        state, _ = env.reset(world, level.aleatoric, key=key)
        return env.states_between(world, state, jnp.array([0.0, 1.0, 0.0]), key=key).drive.frame

    assert jit(go, runs_once=True)(KEY).tolist() == [2, 4, 5]


# --- What the driver sees -------------------------------------------------------------------------------------------


class TestObservation:
    def test_the_first_view_is_repeated(self, start, worlds):
        _, seen = start
        assert seen["view"].shape == (DRIVES, *ENV.observation_space["view"].shape)
        for place in range(3):
            np.testing.assert_array_equal(seen["view"][..., 3 * place : 3 * place + 3], worlds.first_view)

    def test_the_newest_view_is_the_last(self, start, drives):
        newest = [np.asarray(seen["view"])[..., 6:] for seen in (start[1], *(after.observation for after in drives))]
        # The car has moved, so that no two views are alike.
        assert all((before != after).any() for before, after in itertools.pairwise(newest))
        for count, after in enumerate(drives, start=1):
            for back in range(3):
                view = np.asarray(after.observation["view"])[..., 6 - 3 * back : 9 - 3 * back]
                np.testing.assert_array_equal(view, newest[max(count - back, 0)])

    def test_the_evidence_is_counted(self, start, drives, found):
        np.testing.assert_array_equal(start[1]["evidence"], np.zeros((DRIVES, 2)))
        np.testing.assert_array_equal(drives[-1].observation["evidence"], np.stack(found, axis=1))

    def test_without_the_evidence_the_view_is_all(self, start, worlds):
        plain = BlackIce(frame_stack=3, smoothing=1)
        seen = plain.observe(one(worlds), one(start[0]))
        np.testing.assert_array_equal(seen, start[1]["view"][0])
        assert seen.shape == plain.observation_space.shape
        assert not plain.observation_is_sufficient
        assert ENV.observation_is_sufficient

    def test_ice_is_never_visible(self, levels, start, begin):
        for rate in (0.0, 1.0):
            bits = np.full((DRIVES, TILES), rate == 1)
            other = Level(levels.layout, BernoulliField(np.full(DRIVES, rate, np.float32), bits), levels.origin)
            _, state, seen = begin(other)
            np.testing.assert_array_equal(state.ice.bits, bits)
            for part in ("view", "evidence"):
                assert seen[part].tobytes() == start[1][part].tobytes()

    def test_what_was_not_revealed_is_not_visible_later_either(self, start, worlds, drives, step):
        # Ice on every tile that no drive came to: the drives and all that is seen of them stay as they were.
        revealed = np.asarray(drives[-1].state.drive.revealed)
        swapped = eqx.tree_at(lambda s: s.ice.bits, start[0], start[0].ice.bits | ~revealed)
        for count, before in enumerate(drives):
            steer = 0.05 * (-1.0) ** count
            after = step(worlds, swapped, np.tile(np.float32([steer, 0.3, 0.0]), (DRIVES, 1)))
            for part in ("view", "evidence"):
                np.testing.assert_array_equal(after.observation[part], before.observation[part])
            np.testing.assert_array_equal(after.reward, before.reward)
            swapped = after.state


# --- Evidence and substitution --------------------------------------------------------------------------------------


class TestEvidence:
    def test_is_what_has_acted(self, drives):
        state = drives[-1].state
        evidence = jax.vmap(ENV.evidence)(state)
        np.testing.assert_array_equal(evidence.revealed, state.drive.revealed)
        np.testing.assert_array_equal(evidence.values, state.drive.revealed & state.ice.bits)
        # More was visited than has acted: the edge of a wheel touches more than its centre.
        assert (np.asarray(state.drive.visited).sum(axis=1) >= np.asarray(evidence.revealed).sum(axis=1)).all()
        assert np.asarray(state.drive.visited & ~state.drive.revealed).any()

    def test_tiles_of_one_draw_reveal_each_other(self, drives):
        env = BlackIce(tiles_per_draw=5)
        draws = jax.eval_shape(lambda key: env.sample_level(key=key), KEY).aleatoric.bits.size
        assert draws == 94  # the last has three tiles
        revealed = np.zeros(TILES, bool)
        revealed[[0, 7, 8, 465]] = True
        bits = np.zeros(draws, bool)
        bits[[1, 2, 93]] = True
        state = one(drives[-1].state)
        state = eqx.tree_at(lambda s: s.drive.revealed, state, jnp.asarray(revealed))
        state = eqx.tree_at(lambda s: s.ice, state, BernoulliField(jnp.float32(0.5), jnp.asarray(bits)))
        evidence = env.evidence(state)
        np.testing.assert_array_equal(np.flatnonzero(evidence.revealed), [0, 1, 93])
        np.testing.assert_array_equal(np.flatnonzero(evidence.values), [1, 93])
        swapped = env.substitute(state, BernoulliField(jnp.float32(0.25), jnp.asarray(~bits)))
        kept = np.isin(np.arange(draws), [0, 1, 93])
        np.testing.assert_array_equal(swapped.ice.bits, np.where(kept, bits, ~bits))

    def test_tiles_of_one_draw_are_icy_together(self, drives):
        # Told from outside by the share of icy tiles among those visited.
        env, state = BlackIce(tiles_per_draw=5), one(drives[-1].state)
        bits = np.zeros(94, bool)
        bits[[0, 93]] = True
        icy = env._icy_tiles(BernoulliField(jnp.float32(0.5), jnp.asarray(bits)), state.drive)
        np.testing.assert_array_equal(np.flatnonzero(icy), [0, 1, 2, 3, 4, 465, 466, 467])


class TestSubstitution:
    def test_keeps_the_drive_bit_for_bit_and_what_was_revealed(self, drives):
        state = drives[-1].state
        other = BernoulliField(jnp.full(DRIVES, 0.125), ~state.ice.bits)
        swapped = jax.vmap(ENV.substitute)(state, other)
        for before, after in zip(
            jax.tree.leaves((state.drive, state.views)), jax.tree.leaves((swapped.drive, swapped.views)), strict=True
        ):
            assert before.dtype == after.dtype
            assert np.asarray(before).tobytes() == np.asarray(after).tobytes()
        revealed = np.asarray(state.drive.revealed)
        np.testing.assert_array_equal(swapped.ice.bits, np.where(revealed, state.ice.bits, ~state.ice.bits))
        assert (np.asarray(swapped.ice.rate) == 0.125).all()


# --- Calibration ----------------------------------------------------------------------------------------------------

DRAWS, WATCHED = 4_000, 8


@pytest.fixture(scope="module")
def redrawn(drives):
    """In each of many fictitious states, how many of eight unrevealed tiles are icy: drive × draw."""
    state = drives[-1].state
    # Spread over the rest of the track, as far as the tiles of each drive allow.
    watched = np.stack(
        [np.flatnonzero(~revealed)[:: TILES // 10][:WATCHED] for revealed in np.asarray(state.drive.revealed)]
    )
    assert watched.shape == (DRIVES, WATCHED)

    def count(state, tiles, key):
        draw = ENV.posterior.sample(None, ENV.evidence(state), key=key)
        return jnp.sum(ENV.substitute(state, draw).ice.bits[tiles])

    many = jax.vmap(jax.vmap(count, (None, None, 0)), (0, 0, 0))
    keys = jax.random.split(jax.random.key(11), (DRIVES, DRAWS))
    return np.asarray(jit(many, runs_once=True)(state, jnp.asarray(watched), keys))


def p_value(counts, distributions) -> float:
    """Chi-square of the numbers of icy tiles in every drive against what a distribution expects of each."""
    statistic, freedom = 0.0, 0
    for drive, distribution in zip(counts, distributions, strict=True):
        expected = len(drive) * distribution.pmf(np.arange(WATCHED + 1))
        observed = np.bincount(drive, minlength=WATCHED + 1).astype(float)
        # The rare large numbers are one class, so that each class expects enough.
        last = max(int(np.flatnonzero(np.cumsum(expected[::-1])[::-1] >= 10)[-1]), 1)
        expected = np.append(expected[:last], expected[last:].sum())
        observed = np.append(observed[:last], observed[last:].sum())
        statistic += ((observed - expected) ** 2 / expected).sum()
        freedom += last
    return float(stats.chi2(freedom).sf(statistic))


class TestCalibration:
    """The redrawn ice of unrevealed tiles follows the posterior, with the correlation that a common rate induces."""

    def test_redrawn_ice_follows_the_posterior(self, redrawn, found):
        assert redrawn.size * WATCHED >= 100_000
        exact = [stats.betabinom(WATCHED, 1 + icy, 15 + dry) for icy, dry in zip(*found, strict=True)]
        assert p_value(redrawn, exact) > 0.001

    def test_the_test_tells_the_posterior_from_the_prior(self, redrawn):
        assert p_value(redrawn, [stats.betabinom(WATCHED, 1, 15)] * DRIVES) < 1e-6

    def test_the_test_tells_correlated_tiles_from_independent_ones(self, redrawn, found):
        independent = [stats.binom(WATCHED, (1 + icy) / (16 + icy + dry)) for icy, dry in zip(*found, strict=True)]
        assert p_value(redrawn, independent) < 1e-6
