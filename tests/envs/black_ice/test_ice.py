"""Ice: which tiles act on a wheel, and how much friction they leave it."""

import jax.numpy as jnp
import numpy as np
import pytest

from samplr.envs.black_ice.contacts import Contacts
from samplr.envs.black_ice.ice import acting_tiles, friction_limit

RULES = ("nearest", "min", "max", "mean")
NOWHERE = np.inf
# Four tiles. The first wheel is in the second tile and reaches into the next two; the second wheel touches two tiles
# and is in neither, less far out of the last; the third touches one; the fourth is on grass.
CONTACTS = Contacts(
    jnp.array(
        [
            [NOWHERE, -0.4, 0.1, 0.3],
            [0.2, NOWHERE, NOWHERE, 0.1],
            [-1.0, NOWHERE, NOWHERE, NOWHERE],
            [NOWHERE, NOWHERE, NOWHERE, NOWHERE],
        ]
    )
)
TOUCHED = [[0, 1, 1, 1], [1, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]


def limits(icy, rule) -> list[float]:
    return friction_limit(acting_tiles(CONTACTS, rule), jnp.array(icy, bool), rule).tolist()


class TestActingTiles:
    def test_nearest_is_the_one_tile_under_the_centre_and_none_on_grass(self):
        expected = [[0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]
        np.testing.assert_array_equal(acting_tiles(CONTACTS, "nearest"), expected)

    @pytest.mark.parametrize("rule", ["min", "max", "mean"])
    def test_under_the_other_rules_all_that_a_wheel_touches(self, rule):
        np.testing.assert_array_equal(acting_tiles(CONTACTS, rule), TOUCHED)


class TestFrictionLimit:
    @pytest.mark.parametrize("rule", RULES)
    def test_a_dry_road_holds_400_and_grass_240(self, rule):
        assert limits([0, 0, 0, 0], rule) == pytest.approx([400, 400, 400, 240])

    @pytest.mark.parametrize("rule", RULES)
    def test_ice_holds_nothing_at_all(self, rule):
        # In gymnasium no tile has less than grass; with that floor, ice would be as good as grass.
        assert limits([1, 1, 1, 1], rule) == pytest.approx([0, 0, 0, 240])

    @pytest.mark.parametrize(
        ("rule", "icy", "expected"),
        [
            # Ice under the first wheel's centre; then under its edge alone.
            ("nearest", [0, 1, 0, 0], [0, 400, 400, 240]),
            ("nearest", [0, 0, 1, 1], [400, 0, 400, 240]),
            ("min", [0, 1, 0, 0], [0, 400, 400, 240]),
            ("min", [0, 0, 1, 0], [0, 400, 400, 240]),
            ("min", [1, 0, 0, 0], [400, 0, 0, 240]),
            ("max", [0, 1, 1, 0], [400, 400, 400, 240]),
            ("max", [0, 1, 1, 1], [0, 400, 400, 240]),
            ("max", [1, 0, 0, 1], [400, 0, 0, 240]),
            ("mean", [0, 1, 0, 0], [400 * 2 / 3, 400, 400, 240]),
            ("mean", [0, 1, 1, 0], [400 / 3, 400, 400, 240]),
            ("mean", [1, 0, 0, 0], [400, 200, 0, 240]),
        ],
    )
    def test_a_wheel_on_ice_and_dry_tiles(self, rule, icy, expected):
        assert limits(icy, rule) == pytest.approx(expected)
