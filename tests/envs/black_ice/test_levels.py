"""Levels of black ice: their files, and which of them are the same."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.envs.api import Level, Origin
from samplr.errors import LevelError
from samplr.posteriors import BernoulliField

from .conftest import ENV, KEY, one


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
