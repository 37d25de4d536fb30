"""Training on the real car: the state of gymnasium's simulator, copied to a twin that drives on other ice.

samplr train samplr.envs.black_ice.host:BlackIceBox2D --out DIR
samplr train samplr.envs.black_ice.host:SketchedBlackIceBox2D --out DIR

Needs `pip install "samplr[box2d]"`.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import jax
import numpy as np
from jaxtyping import Bool, Float, UInt8

from samplr.compiling import jit
from samplr.envs.api import Level
from samplr.envs.black_ice.box2d import Poses, RealBlackIce, Wheel
from samplr.envs.black_ice.circuits import CIRCUIT_PLAYFIELD
from samplr.envs.black_ice.sketch import NUMBERS, SketchedBlackIce, sketch_along
from samplr.envs.black_ice.tracks import PLAYFIELD, bezier_track, track_along
from samplr.envs.black_ice.world import BlackIce, CircuitLayout
from samplr.envs.gymnasium import GroundedGymnasiumEnvironment
from samplr.errors import SamplrError
from samplr.posteriors import BernoulliEvidence, BernoulliField

_bezier_track, _track_along = jit(bezier_track), jit(track_along)
_sketch_along = jit(sketch_along, static_argnames="camera")


@dataclass(frozen=True)
class CarRacingState:
    """All that changes while the real car drives."""

    poses: Poses
    contact_poses: Poses
    """Where Box2D last looked for contacts: a frame ago."""
    motions: list[tuple[tuple[float, ...], float]]
    """Velocity and spin of the bodies."""
    wheels: list[tuple[float, float, float]]
    """Gas, rolling speed and rolling angle."""
    joints: list[bytes]
    """What the wheels' joints remember of the last frame."""
    visited: list[bool]
    colours: Float[np.ndarray, "tiles 3"]
    counters: dict[str, Any]
    ice: Bool[np.ndarray, " draws"]
    revealed: Bool[np.ndarray, " tiles"]
    views: UInt8[np.ndarray, "96 96 channels"] | Float[np.ndarray, " numbers"]


_COUNTERS = ("reward", "tile_visited_count", "new_lap", "frames", "idle", "_paid_tiles")


class BlackIceSimulator(RealBlackIce):
    """The real car on levels of `BlackIce`, with the verbs of a simulator that can be grounded.

    **Arguments:**

    - `world`: our own black ice, whose rules, ice and observations it has.
    """

    _render_as: ClassVar[str | None] = "state_pixels"

    @staticmethod
    def _view_space(frame_stack: int) -> gymnasium.spaces.Box:
        return gymnasium.spaces.Box(0, 255, (96, 96, 3 * frame_stack), np.uint8)

    def __init__(self, world: BlackIce) -> None:
        super().__init__(render_mode=self._render_as, rules=world.rules, ice_rule=world.ice_rule, camera=world.camera)
        self._world = world
        view, counts = self._view_space(world.frame_stack), gymnasium.spaces.Box(0.0, np.inf, (2,))
        self.observation_space = (
            gymnasium.spaces.Dict({"view": view, "evidence": counts}) if world.show_evidence else view
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        """Begin on `options["level"]`, a level of `BlackIce`."""
        if not options or "level" not in options:
            raise SamplrError('give the real car a level: reset(options={"level": level})')
        level: Level = options["level"]
        on_circuit = isinstance(level.layout, CircuitLayout)
        self._course = track = _track_along(level.layout.centre) if on_circuit else _bezier_track(level.layout.points)
        self.frame_limit = int(level.layout.frame_limit) if on_circuit else self.rules.frame_limit
        self.playfield = CIRCUIT_PLAYFIELD if on_circuit else PLAYFIELD
        self._draws = np.array(level.aleatoric.bits)
        view, info = super().reset(seed=seed, options={"track": track, "ice": self._icy_tiles(len(track.heading))})
        self._views = np.concatenate([view] * self._world.frame_stack, axis=-1)
        return self._observation(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Hold an action for some frames, then look."""
        view, reward, terminated, truncated, _ = super().step(action)
        self._views = np.concatenate([self._views[..., view.shape[-1] :], view], axis=-1)
        visited = self.visited
        metrics = {
            "visited": visited.mean(),
            "visited_icy": (visited & self.ice).mean(),
            "icy_share": (visited & self.ice).sum() / visited.sum(),
            "lap": float(self._lap_finished),
        }
        return self._observation(), reward, terminated, truncated, {"metrics": metrics}

    def evidence(self) -> BernoulliEvidence:
        """The draws of which a tile has acted on a wheel."""
        revealed = np.logical_or.reduceat(self.revealed, np.arange(0, len(self.revealed), self._world.tiles_per_draw))
        return BernoulliEvidence(revealed, self._draws & revealed)  # type: ignore[arg-type]

    def substitute(self, aleatoric: BernoulliField) -> None:
        """Swap the ice that has not acted yet."""
        self._draws = np.where(self.evidence().revealed, self._draws, aleatoric.bits)
        self.ice = self._icy_tiles(len(self.track))

    def get_state(self) -> CarRacingState:
        """A copy of the drive. The bodies are put where they are, which rounds as `set_state` will round."""
        for body in self._bodies:
            body.transform = (tuple(body.position), body.angle)
        return CarRacingState(
            poses=[(tuple(body.position), body.angle) for body in self._bodies],
            contact_poses=self.contact_poses,
            motions=[(tuple(body.linearVelocity), body.angularVelocity) for body in self._bodies],
            wheels=[(wheel.gas, wheel.omega, wheel.phase) for wheel in self.car.wheels],
            joints=[ctypes.string_at(_joint_memory(wheel), _JOINT_BYTES) for wheel in self.car.wheels],
            visited=[tile.road_visited for tile in self.road],
            colours=np.array([tile.color for tile in self.road]),
            counters={name: getattr(self, name) for name in _COUNTERS},
            ice=self._draws.copy(),
            revealed=self.revealed.copy(),
            views=self._views,
        )

    def set_state(self, state: CarRacingState) -> None:
        """Drive on from there, on the same track."""
        self._put_bodies(state.contact_poses)
        self.world.Step(0.0, 0, 0)  # no time passes, but contacts are looked for, and the wheels told of them
        self._put_bodies(state.poses)
        self._note_contacts(state.contact_poses)
        for body, (velocity, spin) in zip(self._bodies, state.motions, strict=True):
            body.linearVelocity, body.angularVelocity = velocity, spin
        for wheel, (gas, omega, phase), joint in zip(self.car.wheels, state.wheels, state.joints, strict=True):
            wheel.gas, wheel.omega, wheel.phase = gas, omega, phase
            ctypes.memmove(_joint_memory(wheel), joint, _JOINT_BYTES)
        for tile, visited, colour in zip(self.road, state.visited, state.colours, strict=True):
            tile.road_visited = visited
            tile.color[:] = colour
        for name, value in state.counters.items():
            setattr(self, name, value)
        self._draws, self.revealed, self._views = state.ice.copy(), state.revealed.copy(), state.views
        self.ice = self._icy_tiles(len(self.track))

    @property
    def _bodies(self) -> list[Any]:
        return [self.car.hull, *self.car.wheels]

    def _put_bodies(self, poses: Poses) -> None:
        for body, pose in zip(self._bodies, poses, strict=True):
            body.transform = pose

    def _icy_tiles(self, tiles: int) -> Bool[np.ndarray, " tiles"]:
        return np.repeat(self._draws, self._world.tiles_per_draw)[:tiles]

    def _observation(self) -> Any:
        if not self._world.show_evidence:
            return self._views
        evidence = self.evidence()
        icy, revealed = np.sum(evidence.values), np.sum(evidence.revealed)
        return {"view": self._views, "evidence": np.array([icy, revealed - icy], np.float32)}


class SketchedBlackIceSimulator(BlackIceSimulator):
    """The real car, told to its driver by numbers."""

    _render_as = None

    @staticmethod
    def _view_space(frame_stack: int) -> gymnasium.spaces.Box:
        return gymnasium.spaces.Box(-np.inf, np.inf, (NUMBERS * frame_stack,), np.float32)

    def _observe(self) -> Float[np.ndarray, " numbers"]:
        car = jax.tree.map(lambda leaf: leaf.astype(np.float32), self.state)
        return np.asarray(_sketch_along(self._course, car, camera=self.camera))


_JOINT_OFFSET, _JOINT_BYTES = 36 * 4, 36 * 4


def _joint_memory(wheel: Wheel) -> int:
    """Where a wheel's joint keeps what it remembers of the last frame, from its impulses to the limit it leans on.

    A joint starts each frame from these, and a motor that has pushed against a limit must unwind first. Box2D has no
    way to set them. They are numbers that follow the joint's two anchors, with others among them that can be asked
    for, which tells whether this is the place.
    """
    joint = wheel.joint
    address = int(joint.this) + _JOINT_OFFSET
    found = np.frombuffer(ctypes.string_at(address - 16, 16 + _JOINT_BYTES), np.float32)
    known = [*joint.GetLocalAnchorA(), *joint.GetLocalAnchorB(), joint.GetMotorTorque(1.0), *joint.limits]
    if not np.array_equal(found[[0, 1, 2, 3, 7, 13, 14]], np.array(known, np.float32)):
        raise SamplrError("this build of Box2D keeps its joints elsewhere in memory than 2.3.10 does on 64 bits")
    return address


class BlackIceBox2D(GroundedGymnasiumEnvironment, BlackIce):  # type: ignore[misc]  # the spaces are the simulator's
    """Race the real car of gymnasium on hidden ice, in Box2D. `cell` and `smoothing` mean nothing here."""

    defaults: ClassVar[Mapping[str, Any]] = {**BlackIce.defaults, "log_every": 1}

    def simulator(self) -> BlackIceSimulator:
        """The real car, under the rules of this world."""
        return BlackIceSimulator(self)


class SketchedBlackIceBox2D(GroundedGymnasiumEnvironment, SketchedBlackIce):  # type: ignore[misc]  # likewise
    """Race the real car of gymnasium on hidden ice, by numbers instead of pictures."""

    defaults: ClassVar[Mapping[str, Any]] = {**SketchedBlackIce.defaults, "log_every": 1}

    def simulator(self) -> SketchedBlackIceSimulator:
        """The real car, under the rules of this world."""
        return SketchedBlackIceSimulator(self)
