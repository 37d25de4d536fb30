"""Black ice as a world: its laws, what a drive reveals, the posterior, levels, suites and networks."""

import dataclasses
import itertools
import json
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from samplr.compiling import jit
from samplr.envs.api import Level, Origin
from samplr.envs.black_ice import BlackIce
from samplr.envs.black_ice.circuits import CIRCUIT_PLAYFIELD, CIRCUITS
from samplr.envs.black_ice.driving import Rules
from samplr.envs.black_ice.networks import CarEncoder, Convolution
from samplr.envs.black_ice.tracks import PLAYFIELD, TILES
from samplr.errors import LevelError, SamplrError
from samplr.posteriors import BernoulliField
from samplr.student.networks import build_network
from samplr.testing import check_environment

# Drawn coarsely, which saves time.
ENV = BlackIce(frame_stack=3, show_evidence=True, cell=2.0, smoothing=1)
KEY = jax.random.key(0)  # the drive itself has no luck: any key will do
DRIVES, STEPS = 6, 10
ICE_RATE = 0.25


# --- The laws -------------------------------------------------------------------------------------------------------


def test_keeps_the_laws_of_the_contract():
    check_environment(BlackIce(), episodes=2)


@pytest.mark.slow
def test_keeps_them_with_other_settings():
    check_environment(
        BlackIce(show_evidence=True, frame_stack=2, tiles_per_draw=5, ice_rule="mean", camera="motion"), episodes=8
    )


@pytest.mark.parametrize("name", ["tiles_per_draw", "frame_stack", "smoothing"])
def test_settings_below_one_are_refused(name):
    with pytest.raises(SamplrError, match=f"a {name} of at least 1, not 0"):
        BlackIce(**{name: 0})


# --- A few real drives ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def suites():
    return ENV.suites()


@pytest.fixture(scope="module")
def ground_truth(suites):
    """A thousand levels of the ground truth, as its suite draws them."""
    sample = jit(jax.vmap(suites["ground_truth"]["ground_truth"]), runs_once=True)
    return jax.device_get(sample(jax.random.split(jax.random.key(1), 1000)))


@pytest.fixture(scope="module")
def levels(ground_truth):
    """A few of its tracks with much more ice than it has, as a curriculum might propose."""
    bits = np.random.default_rng(5).random((DRIVES, TILES)) < ICE_RATE
    ice = BernoulliField(np.full(DRIVES, ICE_RATE, np.float32), bits)
    return Level(one(ground_truth.layout, slice(DRIVES)), ice, ground_truth.origin[:DRIVES])


@pytest.fixture(scope="module")
def begin():
    """World, first state and first observation of each level."""

    def build_and_reset(level):
        world = ENV.build(level.layout)
        return world, *ENV.reset(world, level.aleatoric, key=KEY)

    compiled = jit(jax.vmap(build_and_reset), runs_once=True)
    return lambda levels: jax.device_get(compiled(levels))


@pytest.fixture(scope="module")
def begun(levels, begin):
    return begin(levels)


@pytest.fixture(scope="module")
def worlds(begun):
    return begun[0]


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


def one(tree, index=0):
    return jax.tree.map(lambda leaf: leaf[index], tree)


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


# --- Levels ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def as_json(levels):
    return ENV.level_to_json(one(levels))


class TestLevels:
    def test_a_circuit_level_goes_through_json(self, suites):
        level = suites["f1"]["Monaco q=0.2"](KEY)
        again = ENV.level_from_json(ENV.level_to_json(level))
        np.testing.assert_array_equal(again.layout.centre, level.layout.centre)
        np.testing.assert_array_equal(again.aleatoric.bits, level.aleatoric.bits)
        assert again.layout.frame_limit == level.layout.frame_limit
        for part, value in {"centre": level.layout.centre * jnp.nan, "frame_limit": jnp.int32(0)}.items():
            broken = eqx.tree_at(lambda x, part=part: getattr(x.layout, part), level, value)
            with pytest.raises(LevelError, match=f"layout.{part}"):
                ENV.validate(broken)

    def test_a_level_is_its_track_and_its_ice(self, levels):
        # The rate only says where the ice came from.
        level = one(levels)
        other = Level(level.layout, BernoulliField(jnp.float32(0.9), level.aleatoric.bits))
        icier = Level(level.layout, BernoulliField(level.aleatoric.rate, ~level.aleatoric.bits))
        elsewhere = Level(one(levels, 1).layout, level.aleatoric)
        same = [jax.tree.map(np.array_equal, ENV.identity(level), ENV.identity(x)) for x in (other, icier, elsewhere)]
        assert [all(jax.tree.leaves(equal)) for equal in same] == [True, False, False]

    def test_round_trip_through_a_file(self, levels, as_json):
        level = one(levels)
        again = ENV.level_from_json(json.loads(json.dumps(as_json)))
        assert jax.tree.structure(again) == jax.tree.structure(level)
        for before, after in zip(jax.tree.leaves(level), jax.tree.leaves(again), strict=True):
            assert before.dtype == after.dtype
            np.testing.assert_array_equal(before, after)
        assert again.origin == Origin.PRIOR

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"layout.points": [[0.5, 1.01]] * 12}, r"layout\.points must lie in the unit square"),
            ({"layout.points": [[-0.01, 0.5]] * 12}, r"layout\.points must lie in the unit square"),
            ({"layout.points": [[float("nan"), 0.5]] * 12}, r"layout\.points must lie in the unit square"),
            ({"layout.points": [[0.5, 0.5]] * 11}, r"layout\.points has shape \(11, 2\), expected \(12, 2\)"),
            ({"aleatoric.rate": 2}, r"aleatoric\.rate is 2, not in \[0, 1\]"),
            ({"aleatoric.rate": -0.5}, r"aleatoric\.rate is -0.5, not in \[0, 1\]"),
            ({"aleatoric.rate": float("nan")}, r"aleatoric\.rate is nan"),
            ({"aleatoric.bits": [True] * 467}, r"aleatoric\.bits has shape \(467,\), expected \(468,\)"),
            ({"aleatoric.bits": ["ice"] * 468}, "numbers only"),
            ({"colour": 3}, "colour"),
        ],
    )
    def test_a_level_that_does_not_fit_is_refused(self, change, complaint, as_json):
        with pytest.raises(LevelError, match=complaint):
            ENV.level_from_json(as_json | change)

    def test_a_missing_part_is_named(self, as_json):
        with pytest.raises(LevelError, match=r"layout\.points"):
            ENV.level_from_json({name: value for name, value in as_json.items() if name != "layout.points"})


LIMITS = {
    **dict.fromkeys(("Belgium", "Australia", "Austria", "Monaco", "Italy"), 1500),
    **dict.fromkeys(("Brazil", "Netherlands", "Spain", "France", "Hungary", "Russia", "Singapore"), 2000),
    **dict.fromkeys(("USA", "UK", "Germany"), 2000),
    **dict.fromkeys(("Portugal", "Malaysia", "Bahrain", "China"), 2500),
    "Mexico": 3000,
}


class TestSuites:
    def test_names_and_numbers_of_conditions(self, suites):
        assert {name: len(suite) for name, suite in suites.items()} == {
            "ground_truth": 1,
            "fixed_rates": 7,
            "validation": 3,
            "f1": 120,
        }
        assert list(suites["validation"]) == ["Italy", "Singapore", "Germany"]
        rates = ("", " q=0", " q=0.2", " q=0.4", " q=0.6", " q=0.8")
        assert set(suites["f1"]) == {name + rate for name in LIMITS for rate in rates}

    def test_the_prior_is_the_papers(self):
        # A thousand draws cannot tell Beta(1, 15) from Beta(1, 16).
        assert (BlackIce().alpha, BlackIce().beta) == (1, 15)

    def test_the_ground_truth_is_new_random_tracks_with_one_icy_tile_in_sixteen(self, ground_truth):
        ENV.validate(one(ground_truth))
        assert len(np.unique(ground_truth.layout.points[:, 0, 0])) > 990
        share = ground_truth.aleatoric.bits.mean(axis=1)
        assert share.mean() == pytest.approx(1 / 16, abs=4 * share.std() / 1000**0.5)
        assert stats.kstest(ground_truth.aleatoric.rate, stats.beta(1, 15).cdf).pvalue > 0.001
        assert float(ENV.summaries(one(ground_truth).aleatoric)["ice"]) == pytest.approx(share[0])

    @pytest.mark.parametrize("rate", [0.0, 0.2, 0.4, 0.6, 0.8])
    def test_fixed_rates(self, rate, suites):
        level = suites["f1"][f"Monaco q={rate:g}"](jax.random.key(3))
        assert level.aleatoric.bits.shape == (4999,)
        assert level.aleatoric.rate == pytest.approx(rate)
        # Five standard deviations; none at rate 0.
        assert float(jnp.mean(level.aleatoric.bits)) == pytest.approx(rate, abs=5 * (rate * (1 - rate) / 4999) ** 0.5)

    def test_validation_is_at_one_rate(self, suites):
        for sample in suites["validation"].values():
            assert float(jnp.mean(sample(KEY).aleatoric.bits)) == pytest.approx(0.2, abs=0.03)

    def test_without_a_rate_the_ice_is_as_the_ground_truth_has_it(self, suites):
        ice = jit(jax.vmap(lambda key: suites["f1"]["Italy"](key).aleatoric), runs_once=True)(
            jax.random.split(KEY, 100)
        )
        assert stats.kstest(np.asarray(ice.rate), stats.beta(1, 15).cdf).pvalue > 0.001
        np.testing.assert_allclose(np.asarray(ice.bits).mean(axis=1), ice.rate, atol=0.03)

    def test_circuits_have_limits_of_their_own(self, suites):
        found = {name: int(suites["f1"][f"{name} q=0"](KEY).layout.frame_limit) for name in CIRCUITS}
        assert found == LIMITS

    @pytest.mark.slow  # for what it compiles, a circuit's world being another program
    def test_a_world_knows_the_limits_of_its_layout(self, suites, worlds):
        layout = suites["f1"]["Mexico"](KEY).layout

        # The rest of the world is not asked for, so that it need not be compiled.
        def limits(layout):
            road = ENV.build(layout).road
            return road.frame_limit, road.playfield

        found = jit(limits, runs_once=True)(layout)
        assert [float(limit) for limit in found] == [3000, CIRCUIT_PLAYFIELD]
        assert (worlds.road.frame_limit == ENV.rules.frame_limit).all()
        np.testing.assert_allclose(worlds.road.playfield, PLAYFIELD)

    def test_tiles_of_one_draw_are_fewer_draws(self):
        env = BlackIce(tiles_per_draw=5)
        for rate in (None, 0.2):
            level = jax.eval_shape(env.on_circuit(CIRCUITS["Monaco"], rate=rate), KEY)
            assert level.aleatoric.bits.shape == (1000,)


def test_evaluation_changes_only_the_rules():
    rules = Rules(4, 900, False, 0.2, 500.0, None, 50, True, 100.0, 0.9)
    env = BlackIce(2.0, 7.0, "mean", 5, 2, True, rules, 1.0, 1)
    evaluated = env.for_evaluation()
    assert isinstance(evaluated, BlackIce)
    for field in dataclasses.fields(env):
        if field.name != "rules":
            assert getattr(evaluated, field.name) == getattr(env, field.name)
    assert evaluated.rules == dataclasses.replace(rules, idle_limit=0, out_of_bounds_reward=-100.0, end_bonus=0.0)


# --- Networks -------------------------------------------------------------------------------------------------------


def shape_of_network(env, encoder):
    return jax.eval_shape(lambda key: build_network(env, encoder, (), 0, head=100, key=key), KEY)


class TestNetworks:
    @pytest.mark.parametrize(("encoder", "features"), [("paper", 1024), ("lineage", 256)])
    @pytest.mark.parametrize("frame_stack", [1, 4])
    def test_features(self, encoder, features, frame_stack):
        view = jax.ShapeDtypeStruct((96, 96, 3 * frame_stack), jnp.uint8)
        evidence = jax.ShapeDtypeStruct((2,), jnp.float32)
        make = BlackIce(frame_stack=frame_stack).encoders()[encoder]

        def encode(key, observation):
            return make(hidden=(), key=key)(observation)

        assert jax.eval_shape(encode, KEY, view).shape == (features,)
        assert jax.eval_shape(encode, KEY, {"view": view, "evidence": evidence}).shape == (features + 2,)

    @pytest.mark.parametrize(
        ("encoder", "frame_stack", "parameters"),
        [("paper", 1, 585_699), ("lineage", 1, 445_827), ("lineage", 4, 446_979)],
    )
    def test_numbers_of_parameters(self, encoder, frame_stack, parameters):
        network = shape_of_network(BlackIce(frame_stack=frame_stack), encoder)
        assert sum(leaf.size for leaf in jax.tree.leaves(network)) == parameters

    def test_the_defaults_are_the_papers_network(self):
        assert BlackIce.defaults["student.encoder"] == "paper"
        assert BlackIce.defaults["student.hidden"] == ()
        assert BlackIce.defaults["student.head"] == 100

    def test_what_an_encoder_is_given(self):
        # Without convolutions it gives what they would be given, and the evidence on a logarithmic scale.
        encode = CarEncoder(3, (), key=KEY)
        view = jnp.array([[[0, 128, 255]]], jnp.uint8)
        assert encode(view) == pytest.approx([-1, 0, 127 / 128])
        seen = {"view": view, "evidence": jnp.array([0.0, 9.0])}
        assert encode(seen) == pytest.approx([-1, 0, 127 / 128, 0, np.log(10)])

    def test_a_convolution_is_a_convolution(self):
        # Both kinds of kernel, with pictures whose sides the stride does and does not divide.
        cases = [(2, 2, (9, 11, 2)), (3, 1, (5, 6, 2)), (4, 2, (12, 9, 3))]

        def both(side, stride, shape, key):
            layer = eqx.tree_at(
                lambda c: c.bias, Convolution(shape[2], 5, side, stride, key=key), jnp.arange(5, dtype=jnp.float32)
            )
            x = jax.random.normal(key, shape)
            known = jax.lax.conv_general_dilated(
                x[None],
                layer.weight.reshape(side, side, shape[2], 5),
                (stride, stride),
                "VALID",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            return layer(x), known[0] + layer.bias

        pairs = jit(lambda key: [both(*case, key) for case in cases], runs_once=True)(KEY)
        for ours, known in pairs:
            np.testing.assert_allclose(ours, known, rtol=1e-4, atol=1e-4)

    def test_weights_begin_as_xaviers_for_relu(self):
        layer = Convolution(8, 16, 3, 1, key=jax.random.key(3))
        # √2 · √(6 / (fan in + fan out)), and each fan counts the nine pixels of the patch.
        bound = 2**0.5 * (6 / (9 * 8 + 9 * 16)) ** 0.5
        assert 0.98 * bound < float(jnp.abs(layer.weight).max()) <= bound
        assert (np.asarray(layer.bias) == np.float32(0.1)).all()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"cell": 0.0}, "a cell above 0"),
        ({"cell": 20.0}, "a cell above 0 and at most 16, not 20"),
        ({"smoothing": 5}, "a smoothing of at most 4, not 5"),
        ({"alpha": -1.0}, "a positive alpha, not -1"),
        ({"beta": math.inf}, "a positive beta, not inf"),
        ({"frame_stack": 0}, "a frame_stack of at least 1"),
        ({"ice_rule": "sticky"}, "unknown ice rule 'sticky': choose one of max, mean, min, nearest"),
        ({"camera": "drone"}, "unknown camera 'drone': choose one of hull, motion"),
    ],
)
def test_settings_that_make_no_world_are_refused(setting, message):
    with pytest.raises(SamplrError, match=message):
        BlackIce(**setting)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"action_repeat": 0}, "an? action_repeat of at least 1, not 0"),
        ({"idle_limit": -1}, "an idle_limit of 0 or more, not -1"),
        ({"track_reward": math.nan}, "a finite track_reward, not nan"),
        ({"out_of_bounds_reward": -math.inf}, "a finite out_of_bounds_reward, not -inf"),
    ],
)
def test_rules_of_no_game_are_refused(setting, message):
    with pytest.raises(SamplrError, match=message):
        Rules(**setting)


def test_the_last_picture_of_a_step_is_where_it_ends():
    env = BlackIce(cell=4.0, smoothing=1, rules=Rules(action_repeat=5))

    def go(key):
        level = env.sample_level(key=key)
        world = env.build(level.layout)
        state, _ = env.reset(world, level.aleatoric, key=key)
        return env.states_between(world, state, jnp.array([0.0, 1.0, 0.0]), key=key).drive.frame

    assert jit(go, runs_once=True)(KEY).tolist() == [2, 4, 5]
