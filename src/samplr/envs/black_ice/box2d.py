"""The real simulator: gymnasium's CarRacing with our tracks, our rules, and ice.

Bodies, joints, solver, contacts and drawing are gymnasium's and Box2D's own. Ours are the track the tiles are laid
along, the force a wheel finds on ice, and when an episode ends. Needs `pip install "samplr[box2d]"`.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import combinations
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, cast

import numpy as np
from jaxtyping import Bool, Float

from samplr.envs.black_ice.driving import TRAINING, Rules
from samplr.envs.black_ice.ice import IceRule
from samplr.envs.black_ice.physics import FRAME, Car
from samplr.envs.black_ice.raster import kerb_quads, kerbs
from samplr.envs.black_ice.rendering import Camera, facing
from samplr.envs.black_ice.tracks import HALF_WIDTH, PLAYFIELD, Track
from samplr.errors import SamplrError

if missing := [name for name in ("gymnasium", "Box2D", "pygame") if find_spec(name) is None]:
    raise SamplrError(f'the real car needs {" and ".join(missing)}: pip install "samplr[box2d]"')

import gymnasium
from gymnasium.envs.box2d import car_dynamics, car_racing

Wheel = Any  # a Box2D body
Poses = list[tuple[tuple[float, ...], float]]
"""Position and angle of the hull and of the four wheels."""

_VELOCITY_PASSES, _POSITION_PASSES = 180, 60
_COMBINE: Mapping[str, Callable[[np.ndarray], float]] = {
    "nearest": np.min,  # of one tile
    "min": np.min,
    "max": np.max,
    "mean": np.mean,
}


class RealCar(car_dynamics.Car):
    """Gymnasium's car, whose wheels may find less friction than the ground gives.

    `friction` tells for a wheel by how much to scale the force it finds on the road (400) or on grass (240).
    """

    wheels: list[Wheel]

    def __init__(self, world: Any, angle: float, x: float, y: float, *, friction: Callable[[Wheel], float]) -> None:
        super().__init__(world, angle, x, y)
        self.friction = friction
        # The limit is a global of gymnasium's module, the same for all wheels: this copy of its code has its own.
        self._globals = dict(vars(car_dynamics))
        self._step_wheels = FunctionType(car_dynamics.Car.step.__code__, self._globals)

    def step(self, dt: float) -> None:
        """What gymnasium's car does before a frame, wheel by wheel."""
        wheels = self.wheels
        for wheel in wheels:
            self.wheels = [wheel]
            self._globals["FRICTION_LIMIT"] = car_dynamics.FRICTION_LIMIT * self.friction(wheel)
            self._step_wheels(self, dt)
        self.wheels = wheels


class RealBlackIce(car_racing.CarRacing):
    """Black ice in the real simulator. `reset` takes the track and its ice as options.

    **Arguments:**

    - `render_mode`: with `"state_pixels"` observations are drawn; without, they are black, and it is a hundred times
        as fast.
    - `rules`: what an episode pays, and when it ends.
    - `playfield`: how far from the middle the world ends.
    - `ice_rule`: what a wheel finds that touches several tiles.
    - `camera`: what the view turns with; gymnasium's turns with the hull.
    """

    def __init__(
        self,
        *,
        render_mode: str | None = None,
        rules: Rules = TRAINING,
        playfield: float = PLAYFIELD,
        ice_rule: IceRule = "nearest",
        camera: Camera = "hull",
    ) -> None:
        super().__init__(render_mode=render_mode, lap_complete_percent=rules.lap_share)
        self.rules, self.playfield, self.ice_rule, self.camera = rules, playfield, ice_rule, camera
        self.frame_limit = rules.frame_limit
        with_playfield = {**vars(car_racing), "PLAYFIELD": playfield}
        self._render_road = MethodType(FunctionType(car_racing.CarRacing._render_road.__code__, with_playfield), self)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Lay `options["track"]` (a `Track`) with `options["ice"]` (a flag per tile) and park the car at its start."""
        if not options or not {"track", "ice"} <= options.keys():
            raise SamplrError('give the real car a track: reset(options={"track": track, "ice": ice})')
        gymnasium.Env.reset(self, seed=seed)
        self._destroy()
        # Box2D keeps no reference to its listener, so the world's attribute must.
        self.world.contactListener_bug_workaround = car_racing.FrictionDetector(self, self.lap_complete_percent)
        self.world.contactListener = self.world.contactListener_bug_workaround
        self.reward, self.tile_visited_count, self.new_lap = 0.0, 0, False
        self.frames, self.idle, self._paid_tiles = 0, 0, 0
        self.t = 1.0  # only the camera asks for the time: after a second it has zoomed in, as ours has from the start
        self.ice = np.array(options["ice"], bool)
        self.revealed = np.zeros_like(self.ice)
        self._lay_track(options["track"])
        _, angle, x, y = self.track[0]
        self.car = RealCar(self.world, angle, x, y, friction=self._friction)
        self._simulate()
        return self._observe(), {}

    def step(self, action: Sequence[float]) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Repeat an action (steering, gas, brake) until the step or the episode ends; rewards add up."""
        total, terminated, truncated = 0.0, False, False
        steering, gas, brake = map(float, action)
        for _ in range(self.rules.action_repeat):
            self.car.steer(-steering)
            self.car.gas(gas)
            self.car.brake(brake)
            self._simulate()
            reward, terminated = self._judge()
            total += reward
            truncated = not terminated and (self._at_limit or self._stuck)
            if terminated or truncated:
                break
        return self._observe(), total, terminated, truncated, {"lap_finished": self._lap_finished}

    @property
    def touched(self) -> list[list[int]]:
        """The tiles each wheel touched when the last frame began: those its friction in the next depends on."""
        return [sorted(tile.idx for tile in wheel.tiles) for wheel in self.car.wheels]

    @property
    def visited(self) -> Bool[np.ndarray, " tiles"]:
        """Which tiles were touched so far."""
        return np.array([tile.road_visited for tile in self.road])

    @property
    def state(self) -> Car:
        """The car, in the terms of our own physics."""
        return car_state(self.car)

    @property
    def _lap_finished(self) -> bool:
        return self.new_lap or self.tile_visited_count == len(self.track)

    def _simulate(self) -> None:
        self.car.step(FRAME)
        # Box2D looks for contacts first, and moves the bodies then.
        self._note_contacts([(tuple(body.position), body.angle) for body in (self.car.hull, *self.car.wheels)])
        self.world.Step(FRAME, _VELOCITY_PASSES, _POSITION_PASSES)

    def _note_contacts(self, poses: Poses) -> None:
        self.contact_poses = poses
        for wheel, (position, _) in zip(self.car.wheels, poses[1:], strict=True):
            wheel.tested_at = np.array(position)

    def _judge(self) -> tuple[float, bool]:
        """The reward of a frame and whether it terminated the episode."""
        new_tiles = self.tile_visited_count - self._paid_tiles
        self._paid_tiles += new_tiles
        self.frames += 1
        self.idle = 0 if new_tiles else self.idle + 1
        self.reward -= self.rules.frame_penalty  # shown on the dashboard; the tiles were added on contact
        x, y = self.car.hull.position
        out = max(abs(x), abs(y)) > self.playfield
        reward = new_tiles * self.rules.track_reward / len(self.track) - self.rules.frame_penalty
        if out and self.rules.out_of_bounds_reward is not None:
            reward = self.rules.out_of_bounds_reward
        ended = out or self._lap_finished
        if ended or self._at_limit:
            reward += self.rules.end_bonus
        ended |= self._at_limit and not self.rules.limit_truncates
        ended |= self._stuck and not self.rules.idle_truncates
        return reward, ended

    @property
    def _at_limit(self) -> bool:
        return self.frames >= self.frame_limit

    @property
    def _stuck(self) -> bool:
        return 0 < self.rules.idle_limit <= self.idle

    def _observe(self) -> np.ndarray:
        if self.render_mode == "state_pixels":
            return self._render("state_pixels")
        return np.zeros(self.observation_space.shape, np.uint8)

    def _render(self, mode: str) -> Any:
        if self.camera == "hull":
            return super()._render(mode)
        # gymnasium turns all that it draws by the angle of a hull: it is shown a car whose hull points where it moves.
        driven, hull = self.car, self.car.hull
        shown = SimpleNamespace(
            position=hull.position,
            linearVelocity=hull.linearVelocity,
            angularVelocity=hull.angularVelocity,
            angle=float(facing(self.state, self.camera)),
        )
        self.car = cast(RealCar, SimpleNamespace(hull=shown, wheels=driven.wheels, draw=driven.draw))
        try:
            return super()._render(mode)
        finally:
            self.car = driven

    def _friction(self, wheel: Wheel) -> float:
        """1 on grass and on dry road, less on ice; the tiles that act on the wheel are revealed by it."""
        acting = sorted(tile.idx for tile in wheel.tiles)
        if self.ice_rule == "nearest" and len(acting) > 1:
            acting = [acting[np.argmin(_outside(self._tiles[acting], wheel.tested_at))]]
        self.revealed[acting] = True
        frictions = 1.0 - self.ice[acting]
        return float(_COMBINE[self.ice_rule](frictions)) if acting else 1.0

    def _lay_track(self, track: Track) -> None:
        """Tiles and what is drawn of them and of the kerbs, as gymnasium makes them along its own tracks."""
        heading, centre = np.asarray(track.heading, float), np.asarray(track.centre, float)
        across = np.stack([np.cos(heading), np.sin(heading)], axis=-1)
        self.track = [(0.0, angle, x, y) for angle, (x, y) in zip(heading.tolist(), centre.tolist(), strict=True)]
        self._tiles = _strip(centre, across, -HALF_WIDTH, HALF_WIDTH)
        has_kerb, kerb_corners = np.asarray(kerbs(track)) != 0, np.asarray(kerb_quads(track), float)
        self.road, self.road_poly = [], []
        for i, corners in enumerate(self._tiles):
            tile = self._make_tile(i, corners.tolist())
            self.road.append(tile)
            self.road_poly.append((corners.tolist(), tile.color))
            if has_kerb[i]:
                self.road_poly.append((kerb_corners[i].tolist(), (255, 255, 255) if i % 2 == 0 else (255, 0, 0)))

    def _make_tile(self, index: int, corners: list[list[float]]) -> Any:
        self.fd_tile.shape.vertices = [tuple(corner) for corner in corners]
        tile = self.world.CreateStaticBody(fixtures=self.fd_tile)
        tile.userData = tile
        tile.color = self.road_color + 0.01 * (index % 3) * 255
        tile.road_visited, tile.road_friction, tile.idx = False, 1.0, index
        tile.fixtures[0].sensor = True
        return tile


def car_state(car: car_dynamics.Car) -> Car:
    """A car of the real simulator in the terms of our own physics."""
    wheels = car.wheels
    bodies = [car.hull, *wheels]
    return Car(
        position=_array([tuple(body.worldCenter) for body in bodies]),
        angle=_array([body.angle for body in bodies]),
        velocity=_array([tuple(body.linearVelocity) for body in bodies]),
        spin=_array([body.angularVelocity for body in bodies]),
        omega=_array([wheel.omega for wheel in wheels]),
        phase=_array([wheel.phase for wheel in wheels]),
        gas=_array([wheel.gas for wheel in wheels]),
        windup=_array([abs(wheel.joint.GetMotorTorque(1 / FRAME)) * FRAME for wheel in wheels]),
    )


def _array(values: list) -> Any:
    return np.array(values)  # where the annotation asks for one of JAX


def _strip(centre: np.ndarray, across: np.ndarray, left: float, right: float) -> Float[np.ndarray, "tiles 4 2"]:
    """Quads along the road, from `left` to `right` of its centre line."""
    lefts, rights = centre + left * across, centre + right * across
    return np.stack([lefts, rights, np.roll(rights, 1, axis=0), np.roll(lefts, 1, axis=0)], axis=1)


def _outside(tiles: Float[np.ndarray, "some 4 2"], point: Float[np.ndarray, "2"]) -> Float[np.ndarray, " some"]:
    """How far a point is outside of each tile, the widest gap along the normals of the lines through its corners."""
    gaps = []
    for first, second in combinations(range(4), 2):
        side = tiles[:, second] - tiles[:, first]
        normal = np.stack([-side[:, 1], side[:, 0]], axis=-1) / np.maximum(np.hypot(*side.T), 1e-12)[:, None]
        along, at = np.einsum("tcd,td->tc", tiles, normal), normal @ point
        gaps.append(np.maximum(at - along.max(axis=1), along.min(axis=1) - at))
    return np.max(gaps, axis=0)
