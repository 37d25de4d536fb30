"""The car's physics: its invariants for any driver, and numbers that were measured in the real simulator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samplr.compiling import jit
from samplr.envs.black_ice.physics import (
    GRASS_LIMIT,
    ROAD_LIMIT,
    TOP_SPEED,
    WHEEL_ANCHORS,
    Car,
    drive_frame,
    hull_origin,
    park,
    start,
)

ORIGIN = jnp.zeros(2)
ROAD = jnp.full(4, ROAD_LIMIT)


@jit
def drive(car: Car, actions, limits) -> Car:
    """The car after every frame."""

    def frame(car, inputs):
        car = drive_frame(car, *inputs)
        return car, car

    return jax.lax.scan(frame, car, (actions, limits))[1]


def held(action, limit=ROAD, *, frames=100):
    return jnp.tile(jnp.array(action, jnp.float32), (frames, 1)), jnp.tile(jnp.asarray(limit, jnp.float32), (frames, 1))


@pytest.fixture(scope="module")
def still() -> Car:
    return jit(start)(ORIGIN, jnp.zeros(()))


def speed(car: Car):
    return np.linalg.norm(car.velocity[:, 0], axis=-1)


class TestStart:
    def test_the_hull_is_parked_by_its_origin(self):
        car = park(jnp.array([3.0, 4.0]), jnp.float32(1.0))
        np.testing.assert_allclose(hull_origin(car), [3, 4], atol=1e-6)
        np.testing.assert_allclose(car.position[1:], np.add(WHEEL_ANCHORS, [3, 4]), atol=1e-6)

    def test_the_first_frame_puts_the_wheels_on_the_hull(self):
        car = jit(start)(jnp.array([3.0, 4.0]), jnp.float32(1.3))
        cos, sin = np.cos(car.angle[0]), np.sin(car.angle[0])
        anchors = np.array(WHEEL_ANCHORS) @ np.array([[cos, sin], [-sin, cos]])
        np.testing.assert_allclose(car.position[1:], hull_origin(car) + anchors, atol=5e-3)
        # At this angle the wheels pull the hull round by as much.
        assert car.angle[0] - 1.3 == pytest.approx(-0.0473, abs=1e-4)
        assert not car.velocity.any()
        assert not car.spin.any()


class TestDriving:
    def test_gas(self, still):
        cars = drive(still, *held([0, 1, 0]))
        assert speed(cars)[49] == pytest.approx(45.5, abs=0.1)
        assert speed(cars)[99] == pytest.approx(87.6, abs=0.1)
        assert cars.gas[0].tolist() == pytest.approx([0, 0, 0.1, 0.1])
        assert abs(cars.position[-1, 0, 0]) < 0.1

    def test_steering_right_turns_clockwise(self, still):
        cars = drive(still, *held([1, 0.1, 0]))
        assert cars.angle[-1, 0] < -0.1
        assert cars.position[-1, 0, 0] > 0
        # The wheels go a little beyond the limit, and the joints pull back what exceeds two degrees.
        steering = cars.angle[:, 1:3] - cars.angle[:, :1]
        assert np.max(np.abs(steering)) < 0.4 + 0.06
        assert np.abs(steering[-1, 0]) == pytest.approx(0.4, abs=0.036)

    @pytest.mark.parametrize(("brake", "frames"), [(0.2, 55), (0.5, 22), (0.9, 16)])
    def test_braking_distance_in_frames(self, still, brake, frames):
        fast = jax.tree.map(lambda x: x[72], drive(still, *held([0, 1, 0])))
        assert speed(jax.tree.map(lambda x: x[None], fast))[0] == pytest.approx(66, abs=1)
        braking = speed(drive(fast, *held([0, 0, brake])))
        assert abs(int(np.argmax(braking < 1)) - frames) <= 3

    def test_there_is_no_grip_on_ice(self, still):
        rolling = jax.tree.map(lambda x: x[49], drive(still, *held([0, 1, 0])))
        cars = drive(rolling, *held([1, 1, 0], jnp.zeros(4)))
        np.testing.assert_allclose(speed(cars), float(np.linalg.norm(rolling.velocity[0])), rtol=1e-3)
        assert cars.omega[-1, 2] > 2 * rolling.omega[2]

    def test_grass_holds_less_than_road(self, still):
        on_grass = drive(still, *held([0, 1, 0], jnp.full(4, GRASS_LIMIT)))
        assert speed(on_grass)[49] < 0.7 * speed(drive(still, *held([0, 1, 0])))[49]

    def test_speed_is_bounded(self, still):
        cars = drive(still, *held([0, 1, 0], frames=100))
        cars = drive(jax.tree.map(lambda x: x[-1], cars), *held([0, 1, 0], frames=100))
        assert speed(cars).max() == pytest.approx(TOP_SPEED, rel=1e-5)

    def test_precision_follows_the_inputs(self):
        with jax.enable_x64(True):
            for dtype in (jnp.float32, jnp.float64):
                car = jax.eval_shape(lambda p, a: start(p, a), *(jax.ShapeDtypeStruct(s, dtype) for s in ((2,), ())))
                inputs = (jax.ShapeDtypeStruct((n,), dtype) for n in (3, 4))
                for leaf in jax.tree.leaves(jax.eval_shape(drive_frame, car, *inputs)):
                    assert leaf.dtype == dtype


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


class TestAnyDriver:
    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=10), st.data())
    def test_finite_and_not_too_fast(self, still, actions, data):
        limits = st.floats(0, 2.0**100, width=32) | st.sampled_from([0.0, GRASS_LIMIT, ROAD_LIMIT])
        limit = data.draw(st.lists(st.tuples(*[limits] * 4), min_size=len(actions), max_size=len(actions)))
        rows = jnp.arange(100) // 10 % len(actions)
        cars = drive(still, jnp.array(actions, jnp.float32)[rows], jnp.array(limit, jnp.float32)[rows])
        for leaf in jax.tree.leaves(cars):
            assert jnp.isfinite(leaf).all()
        assert np.linalg.norm(cars.velocity, axis=-1).max() <= TOP_SPEED * (1 + 1e-5)

    @settings(max_examples=30, deadline=None)
    @given(st.sampled_from([0.0, GRASS_LIMIT, ROAD_LIMIT]), st.floats(0, 1, width=32))
    def test_rest_stays_at_rest(self, still, limit, brake):
        cars = drive(still, *held([0, 0, brake], jnp.full(4, limit)))
        # The joints may still pull at the last bit of where the wheels were put.
        assert np.abs(cars.velocity).max() < 1e-9
        np.testing.assert_allclose(cars.position[-1], still.position, atol=1e-6)
