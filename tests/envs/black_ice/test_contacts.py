"""What the wheels touch: hand-made tiles, the nearest tile, and which tiles can be left out."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.envs.black_ice.contacts import SKIN, tile_geometry, touching
from samplr.envs.black_ice.physics import WHEEL_RADIUS, WHEEL_WIDTH, Car, park

SQUARE = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], float)


def wheels(*placed: tuple[float, float, float]) -> Car:
    """A car whose wheels are at (x, y, angle), and far away where none is given."""
    placed = (*placed, *[(1e3, 1e3, 0.0)] * (4 - len(placed)))
    position = jnp.array([(0, 0), *[(x, y) for x, y, _ in placed]], jnp.float32)
    angle = jnp.array([0, *[a for *_, a in placed]], jnp.float32)
    return eqx.tree_at(lambda c: (c.position, c.angle), park(jnp.zeros(2), jnp.zeros(())), (position, angle))


def geometry(*quads):
    return jit(tile_geometry)(jnp.array(quads, jnp.float32))


touch = jit(touching)


class TestTouching:
    @pytest.mark.parametrize(("angle", "reach"), [(0, WHEEL_WIDTH / 2), (np.pi / 2, WHEEL_RADIUS)])
    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (3, 1, 0, 2)], ids=["quad", "bow-tie", "bow-tie 2"])
    def test_a_wheel_beside_a_square(self, angle, reach, order):
        edge = 1 + reach + SKIN
        car = wheels((edge - 1e-3, 0, angle), (edge + 1e-3, 0, angle), (0, 0.9, angle), (-edge + 1e-3, 0.5, angle))
        touched = touch(geometry(SQUARE[list(order)]), car).touched
        assert touched[:, 0].tolist() == [True, False, True, True]

    def test_a_dented_tile_is_its_convex_hull(self):
        dented = SQUARE.copy()
        dented[2] = [-0.5, -0.5]
        car = wheels((-0.2, -0.2, 0), (0.9, 0.9, 0))
        assert touch(geometry(dented), car).touched[:2, 0].tolist() == [True, False]

    def test_equal_corners_are_harmless(self):
        triangle = SQUARE[[0, 1, 1, 2]]
        contacts = touch(geometry(triangle, triangle + 100), wheels((0.5, 0, 0)))
        assert contacts.touched[0].tolist() == [True, False]
        assert not jnp.isnan(contacts.outside).any()


class TestNearest:
    ROW = (SQUARE, SQUARE + np.array([2, 0]), SQUARE + np.array([4, 0]))

    def test_the_tile_that_holds_the_centre(self):
        contacts = touch(geometry(*self.ROW), wheels((0.9, 0, 0), (1.1, 0, 0), (3.2, 0, 0), (9, 9, 0)))
        assert contacts.touched[:2].tolist() == [[True, True, False]] * 2
        assert contacts.nearest[:3].tolist() == [0, 1, 2]
        assert contacts.on_road.tolist() == [True, True, True, False]

    def test_outside_of_all_the_closest(self):
        contacts = touch(geometry(*self.ROW), wheels((0.9, 1.3, 0), (1.1, 1.3, 0)))
        assert contacts.touched[:2, :2].all()
        # Both tiles are 0.3 away along y; the second counts no less for being the second.
        assert contacts.nearest[:2].tolist() == [0, 0]
        np.testing.assert_allclose(contacts.outside[0, 0], 0.3, atol=1e-5)

    def test_inside_of_several_the_deepest(self):
        crossing = SQUARE * np.array([3, 0.5])
        contacts = touch(geometry(SQUARE, crossing), wheels((0, 0, 0), (0.8, 0, 0)))
        assert contacts.nearest[:2].tolist() == [0, 1]
        np.testing.assert_allclose(contacts.outside[0], [-1, -0.5], atol=1e-6)
