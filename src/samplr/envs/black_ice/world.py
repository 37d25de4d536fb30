"""Black-Ice Car Racing: drive a circuit on which some tiles are icy, which nobody can see.

A level is a track and its ice (θ′): every tile is icy with probability q ~ Beta(1, 15). A wheel on ice has no grip.
The driver sees the road from above as in gymnasium's CarRacing, and each action lasts eight frames.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt8

from samplr.envs.api import Encoder, GroundedEnvironment, Level, LevelSampler, Suite, TimeStep
from samplr.envs.black_ice.circuits import CIRCUIT_PLAYFIELD, CIRCUITS, Circuit, circuit
from samplr.envs.black_ice.contacts import tile_geometry
from samplr.envs.black_ice.driving import TRAINING, Drive, Road, Rules, begin, cut_off, drive
from samplr.envs.black_ice.ice import IceRule
from samplr.envs.black_ice.networks import LINEAGE_KERNELS, PAPER_KERNELS, CarEncoder
from samplr.envs.black_ice.physics import FRAME
from samplr.envs.black_ice.picture import picture
from samplr.envs.black_ice.raster import COARSEST_CELL, rasterise
from samplr.envs.black_ice.rendering import MOST_SMOOTHING, Camera, draw
from samplr.envs.black_ice.tracks import (
    PLAYFIELD,
    TILES,
    Track,
    bezier_track,
    sample_control_points,
    track_along,
)
from samplr.envs.spaces import Box
from samplr.errors import LevelError, SamplrError, UnknownNameError
from samplr.posteriors import BernoulliEvidence, BernoulliField, BetaBernoulli

EVALUATED_RATES = (0.0, 0.2, 0.4, 0.6, 0.8)
FIXED_RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8)
VALIDATION_CIRCUITS, VALIDATION_RATE = ("Italy", "Singapore", "Germany"), 0.2

# Half the side of the square that is drawn: the widest of the tracks, with its kerbs and what is seen beside them.
_BEZIER_EXTENT, _CIRCUIT_EXTENT = 200.0, 412.0

_FRAMES_PER_PICTURE = 2


class ControlPoints(eqx.Module):
    """The layout of a training level: a random loop."""

    points: Float[Array, "12 2"]


class CircuitLayout(eqx.Module):
    """The layout of a level on a given centre line."""

    centre: Float[Array, "tiles 2"]
    frame_limit: Int[Array, ""]


class TrackWorld(eqx.Module):
    """A track, prepared for driving and drawing."""

    track: Track
    road: Road
    scenery: Any
    """What views are made from: the road as a raster."""
    start: Drive
    """The beginning of every episode: it depends on the layout alone."""
    first_view: UInt8[Array, "96 96 3"]


class BlackIceState(eqx.Module):
    """The drive, the ice under it, and the views before the current one where views are stacked."""

    drive: Drive
    ice: BernoulliField
    views: UInt8[Array, "96 96 channels"]
    """What the driver sees now."""


class BlackIce(GroundedEnvironment):
    """Race a car on tracks with ice that nobody sees: the paper's main experiment."""

    alpha: float = 1.0
    """The ice rate is drawn from Beta(alpha, beta)."""
    beta: float = 15.0
    """The ice rate is drawn from Beta(alpha, beta)."""
    ice_rule: IceRule = "nearest"
    """How a wheel on several tiles combines them: `nearest`, `min`, `max` or `mean` friction."""
    tiles_per_draw: int = 1
    """How many consecutive tiles share one draw of ice."""
    frame_stack: int = 1
    """How many views, one per action, the driver sees at once."""
    show_evidence: bool = False
    """Whether the driver is told how many icy and dry tiles have acted on its wheels."""
    rules: Rules = TRAINING
    """What an episode pays, and when it ends."""
    cell: float = 0.5
    """Side of the cells in which the road is drawn before the driver looks at it, in u."""
    smoothing: int = 2
    """Points per pixel, along and across, that the driver's view is averaged over."""
    camera: Camera = "hull"
    """What the driver's view turns with: the car's `hull`, or its `motion`, which shows that it slides."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "student.encoder": "paper",
        "student.hidden": (),
        "student.head": 100,
        "steps": 5_000_000,
    }

    backends: ClassVar[Mapping[str, str]] = {"box2d": "samplr.envs.black_ice.host:BlackIceBox2D"}

    pictures_per_second: ClassVar[float] = 1 / (FRAME * _FRAMES_PER_PICTURE)

    def __check_init__(self) -> None:
        for name in ("tiles_per_draw", "frame_stack", "smoothing"):
            if getattr(self, name) < 1:
                raise SamplrError(f"black ice needs a {name} of at least 1, not {getattr(self, name)}")
        for name in ("alpha", "beta"):
            if not 0 < getattr(self, name) < math.inf:
                raise SamplrError(f"black ice needs a positive {name}, not {getattr(self, name):g}")
        if self.smoothing > MOST_SMOOTHING:
            raise SamplrError(f"black ice needs a smoothing of at most {MOST_SMOOTHING}, not {self.smoothing}")
        if not 0 < self.cell <= COARSEST_CELL:
            raise SamplrError(f"black ice needs a cell above 0 and at most {COARSEST_CELL:g}, not {self.cell:g}")
        if self.ice_rule not in get_args(IceRule):
            raise UnknownNameError("ice rule", self.ice_rule, get_args(IceRule))
        if self.camera not in get_args(Camera):
            raise UnknownNameError("camera", self.camera, get_args(Camera))

    @property
    def observation_space(self) -> Box | dict[str, Box]:
        """The view from above, newest last; with the evidence, a mapping of both."""
        return {"view": self._view_space, "evidence": Box((2,), 0.0)} if self.show_evidence else self._view_space

    @property
    def _view_space(self) -> Box:
        return Box((96, 96, 3 * self.frame_stack), 0.0, 255.0)

    @property
    def action_space(self) -> Box:
        """Steering (−1 left to 1 right), gas and brake."""
        return Box((3,), (-1.0, 0.0, 0.0), (1.0, 1.0, 1.0))

    @property
    def posterior(self) -> BetaBernoulli:
        """Beta–Bernoulli over the tiles whose ice has acted on a wheel."""
        return BetaBernoulli(self.alpha, self.beta)

    @property
    def observation_is_sufficient(self) -> bool:
        """The counts are all that the history tells about the rate."""
        return self.show_evidence

    def for_evaluation(self) -> "BlackIce":
        """The same world, scored as gymnasium does: no early stop, no bonus, and leaving the playfield costs 100."""
        rules = dataclasses.replace(self.rules, out_of_bounds_reward=-100.0, idle_limit=0, end_bonus=0.0)
        return dataclasses.replace(self, rules=rules)

    def sample_layout(self, *, key: PRNGKeyArray) -> ControlPoints:
        """A random Bézier loop."""
        return ControlPoints(sample_control_points(key=key))

    def sample_aleatoric(self, layout: ControlPoints | CircuitLayout, *, key: PRNGKeyArray) -> BernoulliField:
        """Draw the rate, then the ice."""
        return self.posterior.sample_prior(self._draws(layout), key=key)

    def build(self, layout: ControlPoints | CircuitLayout) -> TrackWorld:
        """Cut the road into tiles, draw it, and put the car at its start."""
        if isinstance(layout, CircuitLayout):
            track, extent, playfield, frame_limit = (
                track_along(layout.centre),
                _CIRCUIT_EXTENT,
                CIRCUIT_PLAYFIELD,
                layout.frame_limit,
            )
        else:
            track, extent, playfield = bezier_track(layout.points), _BEZIER_EXTENT, PLAYFIELD
            frame_limit = jnp.int32(self.rules.frame_limit)
        tiles = tile_geometry(track.tiles)
        road = Road(tiles, jnp.float32(playfield), frame_limit)
        scenery = self._scenery(track, extent)
        start = begin(track, tiles, self.rules, self.ice_rule)
        return TrackWorld(track, road, scenery, start, self._view(track, road, scenery, start))

    def reset(self, world: TrackWorld, aleatoric: BernoulliField, *, key: PRNGKeyArray) -> tuple[BlackIceState, Any]:
        """Begin at the start, at rest."""
        views = jnp.concatenate([world.first_view] * self.frame_stack, axis=-1)
        state = BlackIceState(world.start, aleatoric, views)
        return state, self.observe(world, state)

    def step(
        self, world: TrackWorld, state: BlackIceState, action: Float[Array, "3"], *, key: PRNGKeyArray
    ) -> TimeStep:
        """Hold an action for some frames, then look."""
        icy = self._icy_tiles(state.ice, state.drive)
        after, reward = drive(world.road, state.drive, action, icy, self.rules, self.ice_rule)
        view = self._view(world.track, world.road, world.scenery, after)
        earlier = state.views[..., view.shape[-1] :]
        driven = BlackIceState(after, state.ice, jnp.concatenate([earlier, view], axis=-1))
        return TimeStep(
            state=driven,
            observation=self.observe(world, driven),
            reward=reward,
            terminated=after.terminated,
            truncated=~after.terminated & cut_off(world.road, after, self.rules),
            metrics={
                "visited": jnp.mean(after.visited, dtype=jnp.float32),
                "visited_icy": jnp.mean(after.visited & icy, dtype=jnp.float32),
                "icy_share": jnp.sum(after.visited & icy) / jnp.sum(after.visited),
                "lap": after.lap.astype(jnp.float32),
            },
        )

    def observe(self, world: TrackWorld, state: BlackIceState) -> Any:
        """What the driver sees, and the counts where it is told them; never the ice."""
        if not self.show_evidence:
            return state.views
        evidence = self.evidence(state)
        icy = jnp.sum(evidence.values, dtype=jnp.float32)
        dry = jnp.sum(evidence.revealed, dtype=jnp.float32) - icy
        return {"view": state.views, "evidence": jnp.stack([icy, dry])}

    def evidence(self, state: BlackIceState) -> BernoulliEvidence:
        """The draws of which a tile has acted on a wheel."""
        revealed = state.drive.revealed
        if self.tiles_per_draw > 1:
            draws = state.ice.bits.size
            padded = jnp.pad(revealed, (0, draws * self.tiles_per_draw - revealed.size))
            revealed = jnp.any(padded.reshape(draws, self.tiles_per_draw), axis=1)
        return BernoulliEvidence(revealed, state.ice.bits & revealed)

    def substitute(self, state: BlackIceState, aleatoric: BernoulliField) -> BlackIceState:
        """Swap the ice that has not acted yet; the car keeps its place and motion."""
        bits = jnp.where(self.evidence(state).revealed, state.ice.bits, aleatoric.bits)
        return BlackIceState(state.drive, BernoulliField(aleatoric.rate, bits), state.views)

    def hidden(self, aleatoric: BernoulliField) -> Float[Array, "1"]:
        """The rate of ice."""
        return aleatoric.rate[None]

    def complete(self, hidden: Float[Array, "1"], evidence: BernoulliEvidence, *, key: PRNGKeyArray) -> BernoulliField:
        """Ice at that rate on every tile that has not acted yet."""
        return evidence.completed(hidden[0], key=key)

    def identity(self, level: Level) -> tuple[Any, Bool[Array, " draws"]]:
        """Track and ice: the ice's rate only says where it came from."""
        return level.layout, level.aleatoric.bits

    def summaries(self, aleatoric: BernoulliField) -> dict[str, Float[Array, ""]]:
        """The share of the track that is icy."""
        return {"ice": jnp.mean(aleatoric.bits, dtype=jnp.float32)}

    def encoders(self) -> Mapping[str, Any]:
        """`paper` as the paper states its kernels, `lineage` as the code it grew from has them."""

        def of(kernels: tuple[tuple[int, int], ...]) -> Any:
            def encoder(hidden: tuple[int, ...], key: PRNGKeyArray) -> Encoder:
                return CarEncoder(3 * self.frame_stack, kernels, key=key)

            return encoder

        return {"paper": of(PAPER_KERNELS), "lineage": of(LINEAGE_KERNELS)}

    def suites(self) -> Mapping[str, Suite]:
        """New random tracks, also at fixed rates; the circuits that settings are chosen by; and the F1 benchmark."""
        validation = {name: self.on_circuit(circuit(name), rate=VALIDATION_RATE) for name in VALIDATION_CIRCUITS}
        f1 = {name: sample for one in CIRCUITS.values() for name, sample in self.circuit_suite(one).items()}
        fixed_rates = {f"q={rate:g}": self.at_rate(rate) for rate in FIXED_RATES}
        return {**super().suites(), "fixed_rates": fixed_rates, "validation": validation, "f1": f1}

    def circuit_suite(self, circuit: Circuit) -> Suite:
        """A circuit with ice as the ground truth has it, and at fixed rates."""
        at_rates = {f"{circuit.name} q={rate:g}": self.on_circuit(circuit, rate=rate) for rate in EVALUATED_RATES}
        return {circuit.name: self.on_circuit(circuit), **at_rates}

    def at_rate(self, rate: float) -> LevelSampler:
        """New random tracks, with ice at a given rate."""

        def sample(key: PRNGKeyArray) -> Level:
            layout_key, ice_key = jax.random.split(key)
            layout = self.sample_layout(key=layout_key)
            return Level(layout, self._ice_at(rate, layout, key=ice_key))

        return sample

    def on_circuit(self, circuit: Circuit, rate: float | None = None) -> LevelSampler:
        """Levels on a circuit, with ice at a given rate or as the ground truth has it."""
        layout = CircuitLayout(jnp.asarray(circuit.points, jnp.float32), jnp.int32(circuit.frame_limit))

        def sample(key: PRNGKeyArray) -> Level:
            if rate is None:
                return Level(layout, self.sample_aleatoric(layout, key=key))
            return Level(layout, self._ice_at(rate, layout, key=key))

        return sample

    def _ice_at(self, rate: float, layout: ControlPoints | CircuitLayout, *, key: PRNGKeyArray) -> BernoulliField:
        return BernoulliField(jnp.float32(rate), jax.random.bernoulli(key, rate, (self._draws(layout),)))

    def level_shapes(self) -> tuple[Level, ...]:
        """A random loop, or a circuit."""
        on_circuit = self.on_circuit(next(iter(CIRCUITS.values())))
        return (*super().level_shapes(), jax.eval_shape(on_circuit, jax.random.key(0)))

    def validate(self, level: Level) -> None:
        """Check shapes and ranges."""
        super().validate(level)
        layout = level.layout
        if isinstance(layout, CircuitLayout):
            if not np.all(np.abs(np.asarray(layout.centre)) <= CIRCUIT_PLAYFIELD):
                raise LevelError(f"the level's layout.centre must lie within {CIRCUIT_PLAYFIELD:g} of the middle")
            if layout.frame_limit < 1:
                raise LevelError(f"the level's layout.frame_limit is {int(layout.frame_limit)}, not at least 1")
        elif not np.all((np.asarray(layout.points) >= 0) & (np.asarray(layout.points) <= 1)):
            raise LevelError("the level's layout.points must lie in the unit square")
        if not 0 <= float(level.aleatoric.rate) <= 1:
            raise LevelError(f"the level's aleatoric.rate is {float(level.aleatoric.rate):g}, not in [0, 1]")

    def render(self, world: TrackWorld, state: BlackIceState) -> UInt8[np.ndarray, "height width 3"]:
        """The road from above, with the ice that the driver cannot see."""
        icy = self._icy_tiles(state.ice, state.drive)
        return picture(world.track, state.drive.car, np.asarray(icy), np.asarray(state.drive.visited))

    def render_level(self, world: TrackWorld, state: BlackIceState) -> UInt8[np.ndarray, "height width 3"]:
        """A map of the road and all of its ice."""
        icy = self._icy_tiles(state.ice, state.drive)
        return picture(world.track, state.drive.car, np.asarray(icy), np.asarray(state.drive.visited), follow=False)

    def states_between(
        self, world: TrackWorld, state: BlackIceState, action: Float[Array, "3"], *, key: PRNGKeyArray
    ) -> BlackIceState:
        """Every other frame, at the speed of life, and the last."""
        icy = self._icy_tiles(state.ice, state.drive)
        frame_by_frame = dataclasses.replace(self.rules, action_repeat=1)

        def go_on(now: Drive, _: None) -> tuple[Drive, Drive]:
            after = drive(world.road, now, action, icy, frame_by_frame, self.ice_rule)[0]
            return after, after

        last = self.rules.action_repeat - 1
        shown = np.array([*range(_FRAMES_PER_PICTURE - 1, last, _FRAMES_PER_PICTURE), last])
        _, drives = jax.lax.scan(go_on, state.drive, None, length=last + 1)
        drives = jax.tree.map(lambda leaf: leaf[shown], drives)
        return jax.vmap(lambda now: BlackIceState(now, state.ice, state.views))(drives)

    def _draws(self, layout: ControlPoints | CircuitLayout) -> int:
        tiles = layout.centre.shape[0] if isinstance(layout, CircuitLayout) else TILES
        return -(-tiles // self.tiles_per_draw)

    def _icy_tiles(self, ice: BernoulliField, drive: Drive) -> Bool[Array, " tiles"]:
        if self.tiles_per_draw == 1:
            return ice.bits
        return jnp.repeat(ice.bits, self.tiles_per_draw)[: drive.visited.size]

    def _scenery(self, track: Track, extent: float) -> Any:
        return rasterise(track, cell=self.cell, extent=extent)

    def _view(self, track: Track, road: Road, scenery: Any, drive: Drive) -> Array:
        return draw(scenery, drive.car, drive.visited, road.playfield, samples=self.smoothing, camera=self.camera)
