"""Icy road: its rules, what the agent sees, what a history reveals, and levels as files."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.envs.api import Level, Origin
from samplr.envs.icy_road import IcyRoad
from samplr.envs.icy_road.world import EVALUATED_RATES, FAST, SLOW, IcyRoadState
from samplr.errors import LevelError
from samplr.posteriors import BernoulliField

ROAD = IcyRoad(segments=4)
KEY = jax.random.key(0)  # the road itself has no luck: any key will do


def field(bits, rate=0.5) -> BernoulliField:
    return BernoulliField(jnp.float32(rate), jnp.array(bits, bool))


def state_at(position: int, bits) -> IcyRoadState:
    return IcyRoadState(jnp.int32(position), field(bits))


class TestRules:
    @pytest.mark.parametrize(
        ("icy", "action", "reward"), [(False, SLOW, 1), (True, SLOW, 1), (False, FAST, 2), (True, FAST, -8)]
    )
    def test_rewards(self, icy, action, reward):
        # Only the segment that is crossed counts: its neighbours are the opposite.
        state = state_at(1, [not icy, icy, not icy, not icy])
        assert ROAD.step(None, state, jnp.int32(action), key=KEY).reward == reward

    def test_an_episode_crosses_the_road_and_terminates(self):
        state, observation = ROAD.reset(None, field([1, 0, 1, 0]), key=KEY)
        np.testing.assert_array_equal(observation, ROAD.observe(None, state))
        ended, shares = [], []
        for _ in range(4):
            after = ROAD.step(None, state, jnp.int32(SLOW), key=KEY)
            np.testing.assert_array_equal(after.observation, ROAD.observe(None, after.state))
            assert not after.truncated
            ended.append(bool(after.terminated))
            shares.append(float(after.metrics["icy_share"]))
            state = after.state
        assert ended == [False, False, False, True]
        # The share of what was crossed so far.
        assert shares == pytest.approx([1, 1 / 2, 2 / 3, 1 / 2])

    def test_ground_truth_has_one_icy_segment_in_sixteen(self):
        env = IcyRoad()
        keys = jax.random.split(jax.random.key(1), 4000)
        levels = jit(jax.vmap(lambda key: env.sample_level(key=key)), runs_once=True)(keys)
        ice = np.asarray(jax.vmap(env.summaries)(levels.aleatoric)["ice"])
        np.testing.assert_allclose(ice, np.asarray(levels.aleatoric.bits).mean(axis=1), rtol=1e-6)
        assert ice.mean() == pytest.approx(1 / 16, abs=4 * float(ice.std()) / 4000**0.5)
        assert (np.asarray(levels.origin) == Origin.PRIOR).all()

    def test_a_level_is_its_ice(self):
        # The rate only says where the ice came from: with it, no two equal roads would be told to be equal.
        one, other = (Level(None, field([1, 0, 0, 1], rate), jnp.int32(0)) for rate in (0.1, 0.9))
        np.testing.assert_array_equal(ROAD.identity(one), ROAD.identity(other))

    def test_suites(self):
        assert set(ROAD.suites()) == {"ground_truth", "fixed_rates"}
        assert set(ROAD.suites()["fixed_rates"]) == {f"q={rate:g}" for rate in EVALUATED_RATES}
        for name, share in {"q=0": 0.0, "q=0.8": 0.8}.items():
            sample = IcyRoad(segments=1000).suites()["fixed_rates"][name]
            assert float(jnp.mean(sample(KEY).aleatoric.bits)) == pytest.approx(share, abs=0.05)


class TestObservation:
    """Position (one-hot, with the end), what the last segment was like (one-hot), and the counts."""

    BITS = (1, 0, 0, 1)

    @pytest.mark.parametrize(
        ("position", "seen"),
        [
            (0, [1, 0, 0, 0, 0, 1, 0, 0, 0, 0]),
            (1, [0, 1, 0, 0, 0, 0, 0, 1, 0, 1 / 4]),
            (2, [0, 0, 1, 0, 0, 0, 1, 0, 1 / 4, 1 / 4]),
            (4, [0, 0, 0, 0, 1, 0, 0, 1, 2 / 4, 2 / 4]),
        ],
    )
    def test_contents(self, position, seen):
        state = state_at(position, self.BITS)
        assert ROAD.observe(None, state) == pytest.approx(np.array(seen))
        # Without counts the rest is the same.
        assert IcyRoad(segments=4, show_counts=False).observe(None, state) == pytest.approx(np.array(seen[:-2]))

    @pytest.mark.parametrize("env", [ROAD, IcyRoad(segments=4, show_counts=False)])
    def test_fits_the_declared_space(self, env):
        assert env.observe(None, state_at(2, self.BITS)).shape == env.observation_space.shape

    def test_is_sufficient_only_with_counts(self):
        assert IcyRoad().observation_is_sufficient
        assert not IcyRoad(show_counts=False).observation_is_sufficient


class TestEvidence:
    def test_reveals_the_segments_behind_the_car(self):
        evidence = ROAD.evidence(state_at(2, [1, 0, 1, 1]))
        np.testing.assert_array_equal(evidence.revealed, [True, True, False, False])
        np.testing.assert_array_equal(evidence.values & evidence.revealed, [True, False, False, False])

    def test_substitute_swaps_what_is_ahead_and_keeps_what_is_behind(self):
        swapped = ROAD.substitute(state_at(2, [1, 0, 1, 1]), field([0, 1, 0, 1], rate=0.125))
        np.testing.assert_array_equal(swapped.ice.bits, [1, 0, 0, 1])
        assert swapped.position == 2
        assert swapped.ice.rate == 0.125

    @pytest.mark.parametrize("position", range(5))
    def test_substituting_leaves_the_observation_unchanged(self, position):
        state = state_at(position, [1, 0, 1, 1])
        for bits in ([0, 1, 0, 0], [1, 1, 1, 1]):
            swapped = ROAD.substitute(state, field(bits))
            assert ROAD.observe(None, swapped).tobytes() == ROAD.observe(None, state).tobytes()


class TestLevelsAsJson:
    GOOD = {"aleatoric.rate": 0.25, "aleatoric.bits": [True, False, False, True]}  # noqa: RUF012

    def test_round_trip_through_a_file(self):
        level = Level(None, field([1, 0, 0, 1], rate=1 / 3), jnp.int32(Origin.EDIT))
        again = ROAD.level_from_json(json.loads(json.dumps(ROAD.level_to_json(level))))
        assert jax.tree.structure(again) == jax.tree.structure(level)
        for one, other in zip(jax.tree.leaves(level), jax.tree.leaves(again), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)

    def test_written_by_hand(self):
        # Zeros and ones will do for bits, and a level of unknown origin is taken for one of the ground truth.
        level = ROAD.level_from_json({"aleatoric.rate": 0, "aleatoric.bits": [1, 0, 0, 1]})
        assert level.origin == Origin.PRIOR
        assert level.aleatoric.bits.dtype == bool
        np.testing.assert_array_equal(level.aleatoric.bits, [1, 0, 0, 1])

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"aleatoric.bits": [True, False]}, r"aleatoric\.bits has shape \(2,\), expected \(4,\)"),
            ({"aleatoric.bits": [[True], False, False, True]}, "numbers only"),
            ({"aleatoric.rate": [0.1, 0.2]}, r"aleatoric\.rate has shape \(2,\), expected \(\)"),
            ({"aleatoric.rate": 1.5}, r"aleatoric\.rate is 1.5, not in \[0, 1\]"),
            ({"aleatoric.rate": -0.1}, r"aleatoric\.rate is -0.1, not in \[0, 1\]"),
            ({"aleatoric.rate": float("nan")}, r"aleatoric\.rate is nan"),
            ({"aleatoric.rate": "slippery"}, "numbers only"),
            ({"aleatoric.rate": None}, "numbers only"),
            ({"colour": 3}, "colour"),
        ],
    )
    def test_a_level_that_does_not_fit_is_refused(self, change, complaint):
        with pytest.raises(LevelError, match=complaint):
            ROAD.level_from_json(self.GOOD | change)

    @pytest.mark.parametrize("bits", [["dry", "dry", "dry", "ice"], ["False"] * 4, ["0", "0", "0", "1"]])
    def test_text_is_not_taken_for_bits(self, bits):
        with pytest.raises(LevelError, match="numbers only"):
            ROAD.level_from_json(self.GOOD | {"aleatoric.bits": bits})

    def test_a_missing_part_is_named(self):
        with pytest.raises(LevelError, match=r"aleatoric\.bits"):
            ROAD.level_from_json({"aleatoric.rate": 0.5})

    def test_a_level_of_another_road_is_refused(self):
        with pytest.raises(LevelError, match="shape"):
            ROAD.validate(Level(None, field([1, 0]), jnp.int32(0)))
        with pytest.raises(LevelError, match="parts"):
            ROAD.validate(Level(None, jnp.zeros(4, bool), jnp.int32(0)))
        ROAD.validate(Level(None, field([1, 0, 0, 1]), jnp.int32(0)))


class TestRender:
    def cell(self, image, segment):
        """The colour of a segment, in a corner that the car does not cover."""
        size = image.shape[0]
        return tuple(int(c) for c in image[size // 8, segment * size + size // 8])

    def test_an_image_of_the_road_and_its_end(self):
        image = ROAD.render(None, state_at(0, [0, 0, 0, 0]))
        assert image.dtype == np.uint8
        height, width, channels = image.shape
        assert channels == 3
        assert width == 5 * height

    def test_ice_is_blue_and_paler_where_unseen(self):
        image = ROAD.render(None, state_at(2, [1, 0, 1, 0]))
        ice_behind, dry_behind, ice_ahead, dry_ahead = (self.cell(image, segment) for segment in range(4))
        for red, _, blue in (ice_behind, ice_ahead):
            assert blue > red + 50
        for red, green, blue in (dry_behind, dry_ahead):
            assert red == green == blue
        assert sum(ice_ahead) > sum(ice_behind)

    @pytest.mark.parametrize("position", [0, 2, 4])
    def test_the_car_is_red_and_where_it_should_be(self, position):
        image = ROAD.render(None, state_at(position, [1, 1, 0, 0])).astype(int)
        red = (image[..., 0] > 150) & (image[..., 1] < 100) & (image[..., 2] < 100)
        columns = np.flatnonzero(red.any(axis=0)) // image.shape[0]
        assert set(columns) == {position}
