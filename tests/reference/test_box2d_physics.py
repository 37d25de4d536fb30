"""Our car, its contacts and its rewards against the real simulator: Box2D's bodies, solver and collision tests."""

import importlib
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.envs.black_ice import physics
from samplr.envs.black_ice.contacts import tile_geometry, touching
from samplr.envs.black_ice.driving import Road, Rules, begin, drive_one_frame
from samplr.envs.black_ice.physics import GRASS_LIMIT, ROAD_LIMIT, WHEEL_HALF_EXTENTS
from samplr.envs.black_ice.tracks import PLAYFIELD, TILES, Track, bezier_track, sample_control_points
from samplr.errors import SamplrError

Box2D = pytest.importorskip("Box2D")
pytest.importorskip("gymnasium")
pytest.importorskip("pygame")
box2d = importlib.import_module("samplr.envs.black_ice.box2d")

FRAMES = 200
RUNS = 50
FRAME_BY_FRAME = Rules(action_repeat=1, idle_limit=0)
SURFACES = {"road": 0.0, "grass": None, "ice 20 %": 0.2, "ice 60 %": 0.6}


class RealDrive:
    """The real car on its own, its wheels' limits set by hand."""

    def __init__(self, position, angle):
        self.limit = dict.fromkeys(range(4), GRASS_LIMIT)
        self.world = Box2D.b2World((0, 0))
        self.car = box2d.RealCar(self.world, float(angle), *map(float, position), friction=self.friction)
        self.bodies = [self.car.hull, *self.car.wheels]
        self.order = {id(wheel): i for i, wheel in enumerate(self.car.wheels)}
        self.frame()

    def friction(self, wheel):
        return self.limit[self.order[id(wheel)]] / GRASS_LIMIT if hasattr(self, "order") else 1.0

    def frame(self):
        self.car.step(physics.FRAME)
        self.world.Step(physics.FRAME, 180, 60)

    def drive(self, action, limit):
        self.limit = dict(enumerate(limit.tolist()))
        self.car.steer(-float(action[0]))
        self.car.gas(float(action[1]))
        self.car.brake(float(action[2]))
        self.frame()

    @property
    def positions(self):
        return np.array([tuple(body.worldCenter) for body in self.bodies])

    @property
    def angles(self):
        return np.array([body.angle for body in self.bodies])


def driving(kind: int, rng: np.random.Generator) -> np.ndarray:
    """Full gas, a slalom, gas and brake in turn, hard lock and back, or a new action every 8 frames."""
    t, action = np.arange(FRAMES), np.zeros((FRAMES, 3))
    if kind == 0:
        action[:, 1] = rng.uniform(0.2, 1)
    elif kind == 1:
        action[:, 0] = rng.uniform(0.3, 1) * np.sign(np.sin(2 * np.pi * t / rng.integers(20, 80)))
        action[:, 1] = rng.uniform(0.1, 0.6)
    elif kind == 2:
        braking = (t // rng.integers(15, 40)) % 2
        action = np.stack([np.full(FRAMES, rng.uniform(-0.3, 0.3)), 1 - braking, braking * rng.uniform(0.1, 1)], axis=1)
    elif kind == 3:
        action[:, 0] = rng.choice([-1, 1]) * np.where(t < rng.integers(60, 150), 1, -1)
        action[:, 1] = rng.uniform(0.1, 1)
    else:
        held = rng.uniform([-1, 0, 0], 1, (FRAMES // 8, 3)) * [1, 1, 0.3]
        action = np.repeat(held, 8, axis=0)
    return action


def limits(ice: float | None, rng: np.random.Generator) -> np.ndarray:
    """Per wheel and frame; on ice they change every few frames, as they do on tiles."""
    if ice is None:
        return np.full((FRAMES, 4), GRASS_LIMIT)
    return np.repeat(np.where(rng.random((FRAMES // 4, 4)) < ice, 0, ROAD_LIMIT), 4, axis=0)


@jit
@jax.vmap
def our_drive(position, angle, actions, limit):
    def frame(car, inputs):
        car = physics.drive_frame(car, *inputs)
        return car, car.position

    return jax.lax.scan(frame, physics.start(position, angle), (actions, limit))[1]


class TestCar:
    def test_masses(self):
        car = RealDrive((0, 0), 0).car
        assert car.hull.mass == pytest.approx(physics._HULL_MASS, rel=1e-6)
        assert tuple(car.hull.localCenter) == pytest.approx((0, physics._HULL_CENTRE), abs=1e-6)
        about_centre = car.hull.inertia - car.hull.mass * car.hull.localCenter.lengthSquared
        assert about_centre == pytest.approx(physics._HULL_INERTIA, rel=1e-6)
        assert car.wheels[0].mass == pytest.approx(physics._WHEEL_MASS, rel=1e-6)
        assert car.wheels[0].inertia == pytest.approx(physics._WHEEL_INERTIA, rel=1e-6)

    def test_start(self):
        """Reset's first frame pops the wheels in place: the same passes, in the same order of joints."""
        for angle in np.linspace(-3, 3, 9):
            real = RealDrive((100, -50), angle)
            ours = eqx.filter_jit(physics.start)(jnp.array([100.0, -50.0]), jnp.float32(angle))
            np.testing.assert_allclose(ours.position, real.positions, atol=2e-5)
            np.testing.assert_allclose(ours.angle, real.angles, atol=1e-6)

    @pytest.mark.parametrize("surface", SURFACES)
    def test_driving(self, surface):
        rng = np.random.default_rng(list(SURFACES).index(surface))
        position, angle = rng.uniform(-150, 150, (RUNS, 2)), rng.uniform(-3, 3, RUNS)
        actions = np.stack([driving(run % 5, rng) for run in range(RUNS)])
        limit = np.stack([limits(SURFACES[surface], rng) for _ in range(RUNS)])
        real = np.empty((RUNS, FRAMES, 5, 2))
        for run in range(RUNS):
            drive = RealDrive(position[run], angle[run])
            for t in range(FRAMES):
                drive.drive(actions[run, t], limit[run, t])
                real[run, t] = drive.positions
        ours = our_drive(*(jnp.asarray(x, jnp.float32) for x in (position, angle, actions, limit)))
        error = np.linalg.norm(np.asarray(ours) - real, axis=-1)
        print(f"{surface}: median {np.median(error[:, -1]):.1e} at the end, max {error.max():.1e}")
        assert np.median(error[:, -1]) <= 1e-3
        assert error.max() <= 0.05


class Drive(eqx.Module):
    """A scripted drive in the real simulator, frame by frame."""

    actions: np.ndarray
    touched: np.ndarray
    visited: np.ndarray
    reward: np.ndarray


class Driver(NamedTuple):
    """How hard a driver accelerates, and up to which speed."""

    gas: float
    top_speed: float


CALM, EAGER, RACER = Driver(0.3, 30), Driver(0.5, 30), Driver(0.5, 90)


def follow(env, track: Track, driver: Driver) -> np.ndarray:
    """Aim at a point ahead; a racer takes its corners so fast that it leaves the road."""
    state = env.state
    nearest = np.argmin(np.linalg.norm(track.centre - state.position[0], axis=1))
    dx, dy = track.centre[(nearest + 6) % TILES] - state.position[0]
    error = (np.arctan2(-dx, dy) - state.angle[0] + np.pi) % (2 * np.pi) - np.pi
    speed = np.hypot(*state.velocity[0])
    return np.array([np.clip(-2 * error, -1, 1), driver.gas if speed < driver.top_speed else 0, 0.0])


def real_drive(track: Track, ice: np.ndarray, driver: Driver, *, frames: int) -> Drive:
    env = box2d.RealBlackIce(rules=FRAME_BY_FRAME)
    env.reset(options={"track": track, "ice": ice})
    actions, touched, visited, rewards = [], [], [], []
    for _ in range(frames):
        actions.append(follow(env, track, driver))
        reward, terminated = env.step(actions[-1])[1:3]
        assert not terminated
        touched.append(np.zeros((4, TILES), bool))
        for wheel, tiles in zip(touched[-1], env.touched, strict=True):
            wheel[tiles] = True
        visited.append(env.visited)
        rewards.append(reward)
    return Drive(*map(np.array, (actions, touched, visited, rewards)))


@partial(jit, static_argnames="dtype")
@partial(jax.vmap, in_axes=(0, 0, 0, None))
def drive_on_track(track: Track, ice, actions, dtype):
    """The same actions in our world: what the wheels touched, what was visited and what was earned."""
    track = jax.tree.map(lambda x: x.astype(dtype), track)
    geometry = tile_geometry(track.tiles)
    road = Road(geometry, jnp.asarray(PLAYFIELD, dtype), jnp.int32(FRAME_BY_FRAME.frame_limit))

    def frame(now, action):
        touched = touching(geometry, now.car).touched
        after, reward = drive_one_frame(road, now, action, ice, FRAME_BY_FRAME, "nearest")
        return jax.tree.map(lambda new, old: new.astype(old.dtype), after, now), (touched, after.visited, reward)

    start = begin(track, geometry, FRAME_BY_FRAME, "nearest")
    return jax.lax.scan(frame, start, actions.astype(dtype))[1]


class TestTracks:
    """Four drives of 500 frames, one of them off the road: contact, friction, motion, rewards."""

    @pytest.fixture(scope="class")
    @classmethod
    def tracks(cls):
        keys = jax.random.split(jax.random.key(1), 4)
        return jit(jax.vmap(lambda key: bezier_track(sample_control_points(key=key))))(keys)

    @pytest.fixture(scope="class", params=[0.0, 0.2], ids=["dry", "ice 20 %"])
    @classmethod
    def drives(cls, request, tracks):
        ice = np.random.default_rng(2).random((4, TILES)) < request.param
        each = [jax.tree.map(lambda x, i=i: np.asarray(x[i]), tracks) for i in range(4)]
        real = [real_drive(track, ice[i], RACER if i == 3 else CALM, frames=500) for i, track in enumerate(each)]
        return ice, jax.tree.map(lambda *x: np.stack(x), *real)

    @pytest.mark.parametrize(("dtype", "mismatches"), [("float32", 1 / 5000), ("float64", 0)])
    def test_a_drive(self, tracks, drives, dtype, mismatches):
        ice, real = drives
        with jax.enable_x64(dtype == "float64"):
            ours = drive_on_track(jax.tree.map(np.asarray, tracks), ice, real.actions, dtype)
            touched, visited, rewards = jax.device_get(ours)
        wrong, pairs = np.sum(touched != real.touched), np.sum(real.touched)
        print(f"{dtype}: {wrong} of {pairs} contacts differ")
        assert real.touched.any(axis=-1).mean() > 0.5
        assert not real.touched[3].any(axis=-1).all()
        assert wrong <= mismatches * pairs
        np.testing.assert_array_equal(visited[:, -1], real.visited[:, -1])
        np.testing.assert_allclose(rewards.sum(axis=1), real.reward.sum(axis=1), atol=0.01)


def many_drives(tracks: Track, ice: np.ndarray):
    """Drives of every kind on these tracks: of the real car, and of ours with the same actions."""
    each = [jax.tree.map(lambda x, i=i: x[i], tracks) for i in range(len(ice))]
    for driver in (CALM, EAGER, RACER):
        drives = [real_drive(track, ice[i], driver, frames=500) for i, track in enumerate(each)]
        real = jax.tree.map(lambda *x: np.stack(x), *drives)
        touched, visited, rewards = jax.device_get(drive_on_track(tracks, ice, real.actions, "float32"))
        yield each, real, Drive(real.actions, touched, visited, rewards)


def turned_a_little(track: Track, ice: np.ndarray, actions: np.ndarray, by: float) -> np.ndarray:
    """What the wheels of the real car touch if it stands turned by so many rad when the same drive begins."""
    env = box2d.RealBlackIce(rules=FRAME_BY_FRAME)
    env.reset(options={"track": track, "ice": ice})
    env.car.hull.angle += by
    touched = np.zeros((len(actions), 4, TILES), bool)
    for frame, action in zip(touched, actions, strict=True):
        env.step(action)
        for wheel, tiles in zip(frame, env.touched, strict=True):
            wheel[tiles] = True
    return touched


@pytest.mark.slow
class TestManyDrives:
    """Three drivers, none of them chosen for the result, on 24 tracks each."""

    @pytest.fixture(scope="class")
    @classmethod
    def tracks(cls):
        keys = jax.random.split(jax.random.key(77), 24)
        return jax.tree.map(np.asarray, jit(jax.vmap(lambda k: bezier_track(sample_control_points(key=k))))(keys))

    def test_dry(self, tracks):
        wrong = pairs = 0
        for _, real, ours in many_drives(tracks, np.zeros((24, TILES), bool)):
            np.testing.assert_array_equal(ours.visited[:, -1], real.visited[:, -1])
            np.testing.assert_allclose(ours.reward.sum(axis=1), real.reward.sum(axis=1), atol=0.01)
            wrong, pairs = wrong + np.sum(ours.touched != real.touched), pairs + np.sum(real.touched)
        print(f"{wrong} of {pairs} contacts differ")
        assert wrong <= pairs / 5000

    def test_with_ice(self, tracks):
        # Whether a wheel's centre is on this tile or the next decides between all grip and none, so that some drives
        # magnify any difference at all. The measure is what the real car itself does if it stands 1e-5 rad otherwise.
        ice = np.random.default_rng(5).random((24, TILES)) < 0.2
        wrong = own = visited = 0
        for each, real, ours in many_drives(tracks, ice):
            wrong += np.sum(ours.touched != real.touched)
            visited += np.sum(ours.visited[:, -1] != real.visited[:, -1])
            for i, track in enumerate(each):
                own += np.sum(turned_a_little(track, ice[i], real.actions[i], 1e-5) != real.touched[i])
        print(f"{wrong} contacts differ, and {own} of Box2D from itself; {visited} visited tiles differ")
        assert wrong < own / 10
        assert visited == 0


class TestContacts:
    def test_random_quads(self):
        """Against Box2D's own overlap test, on quads with corners in any order: non-convex ones and bow-ties too."""
        rng = np.random.default_rng(3)
        wheel = Box2D.b2PolygonShape(box=WHEEL_HALF_EXTENTS)
        angle, at = Box2D.b2Transform(), Box2D.b2Transform()
        angle.SetIdentity()
        quads = rng.uniform(-3, 3, (400, 4, 2))
        position, heading = rng.uniform(-3, 3, (400, 5, 2)), rng.uniform(-3, 3, (400, 5))
        real = np.zeros((400, 4), bool)
        for i, quad in enumerate(quads):
            tile = Box2D.b2PolygonShape(vertices=quad.tolist())
            for j in range(4):
                at.Set(tuple(position[i, j + 1]), heading[i, j + 1])
                real[i, j] = Box2D.b2TestOverlap(tile, 0, wheel, 0, angle, at)
        ours = np.asarray(_touched_alone(*(jnp.asarray(x, jnp.float32) for x in (quads, position, heading))))
        assert 0.3 < real.mean() < 0.8
        np.testing.assert_array_equal(ours, real)


@jit
@jax.vmap
def _touched_alone(quad, position, heading):
    car = eqx.tree_at(lambda c: (c.position, c.angle), physics.park(jnp.zeros(2), jnp.zeros(())), (position, heading))
    return touching(tile_geometry(quad[None]), car).touched[:, 0]


class TestRules:
    @pytest.fixture(scope="class")
    @classmethod
    def track(cls):
        track = jit(lambda key: bezier_track(sample_control_points(key=key)))(jax.random.key(1))
        return jax.tree.map(np.asarray, track)

    def reset(self, track, *, ice=0.0, **settings):
        env = box2d.RealBlackIce(**settings)
        return env, env.reset(options={"track": track, "ice": np.full(TILES, ice, bool)})[0]

    @pytest.mark.parametrize("truncates", [False, True])
    def test_standing_still_ends_an_episode(self, track, truncates):
        env, _ = self.reset(track, rules=Rules(idle_truncates=truncates))
        total, terminated, truncated = 0.0, False, False
        while not (terminated or truncated):
            _, reward, terminated, truncated, _ = env.step([0, 0, 0])
            total += reward
        assert (terminated, truncated) == (not truncates, truncates)
        # The tiles under the car are paid in the first frame, then it has a hundred.
        assert env.frames == 101
        assert total == pytest.approx(1000 / TILES * env.visited.sum() - 0.1 * 101)

    def test_out_of_bounds(self, track):
        env, _ = self.reset(track, playfield=1.0, rules=Rules(out_of_bounds_reward=-100.0))
        assert env.step([0, 0, 0])[1:4] == (-100, True, False)
        assert env.frames == 1

    @pytest.mark.parametrize("truncates", [False, True])
    def test_frame_limit(self, track, truncates):
        env, _ = self.reset(track, rules=Rules(frame_limit=12, limit_truncates=truncates))
        assert env.step([0, 0, 0])[2:4] == (False, False)
        assert env.step([0, 0, 0])[2:4] == (not truncates, truncates)
        assert env.frames == 12

    @pytest.mark.parametrize(
        ("end", "rules"),
        [
            ("limit", {"frame_limit": 5}),
            ("left", {"out_of_bounds_reward": -100.0}),
            ("lap", {"lap_share": 0.0}),
            ("idle", {"idle_limit": 5}),
        ],
    )
    def test_a_bonus_is_paid_to_whoever_did_not_stand_idle(self, track, end, rules):
        paid = {}
        for bonus in (0.0, 100.0):
            playfield = {"playfield": 1.0} if end == "left" else {}
            env, _ = self.reset(track, rules=Rules(end_bonus=bonus, **rules), **playfield)
            _, paid[bonus], terminated, truncated, _ = env.step([0, 0, 0])
            assert terminated or truncated
        assert paid[100.0] - paid[0.0] == pytest.approx(0 if end == "idle" else 100)

    def test_a_lap(self, track):
        env, _ = self.reset(track, rules=Rules(lap_share=0.0))
        # Reset already touched tile 0, and so by this rule finished the lap.
        _, _, terminated, _, info = env.step([0, 0, 0])
        assert terminated
        assert info["lap_finished"]

    def test_ice_is_felt_but_not_seen(self, track):
        views, speeds = [], []
        for ice in (False, True):
            env, view = self.reset(track, ice=ice, render_mode="state_pixels")
            views.append(view)
            env.step([0, 1, 0])
            speeds.append(np.hypot(*env.state.velocity[0]))
        np.testing.assert_array_equal(*views)
        assert views[0].shape == (96, 96, 3)
        assert speeds[0] > 5
        assert speeds[1] < 1e-3

    @pytest.mark.parametrize(("rule", "friction"), [("nearest", 1), ("min", 0), ("max", 1), ("mean", 0.5)])
    def test_a_wheel_on_two_tiles(self, track, rule, friction):
        env, _ = self.reset(track, ice_rule=rule)
        wheel = next(wheel for wheel in env.car.wheels if len(wheel.tiles) == 2)
        tiles = sorted(tile.idx for tile in wheel.tiles)
        dry = min(tiles, key=lambda tile: box2d._outside(env._tiles[[tile]], wheel.tested_at)[0])
        env.ice[[tile for tile in tiles if tile != dry]] = True
        assert env._friction(wheel) == friction

    def test_a_track_is_needed(self):
        with pytest.raises(SamplrError, match="track"):
            box2d.RealBlackIce().reset()
