"""What our agent sees against what gymnasium's agent sees, frame by frame."""

import functools
import importlib
import math
import os
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.envs.black_ice.physics import Car
from samplr.envs.black_ice.raster import kerb_quads, kerbs, rasterise
from samplr.envs.black_ice.rendering import draw
from samplr.envs.black_ice.tracks import Track, bezier_track, sample_control_points

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
car_racing = pytest.importorskip("gymnasium.envs.box2d.car_racing", reason="needs samplr[box2d]")
box2d = importlib.import_module("samplr.envs.black_ice.box2d")

SETTLED = 50
"""Frames until the simulator's camera has zoomed in."""
EXTENT = 250.0
MOST_TILES = 512
"""Flags per track, the last of them unused: so one compiled program draws all tracks."""

Frame = tuple[Car, np.ndarray, np.ndarray]


class Simulator(car_racing.CarRacing):
    """gymnasium's own, which draws only when asked to: its agent's picture takes longer than everything else."""

    drawn = False

    def _render(self, mode: str) -> np.ndarray | None:
        return super()._render(mode) if self.drawn else None

    def frame(self) -> Frame:
        self.drawn = True
        seen = self._render("state_pixels")
        self.drawn = False
        visited = np.zeros(MOST_TILES, bool)
        visited[: len(self.road)] = [tile.road_visited for tile in self.road]
        return jax.tree.map(_array, box2d.car_state(self.car)), visited, seen

    def our_track(self) -> Track:
        heading = np.array([beta for _, beta, _, _ in self.track])
        centre = np.array([point[2:] for point in self.track])
        return Track(_array(centre), _array((heading + np.pi) % (2 * np.pi) - np.pi))

    def lay(self, track: Track) -> None:
        """Draw this road instead of its own. Only what is drawn changes, so nothing of it is ever visited."""
        centre, heading = np.asarray(track.centre, float), np.asarray(track.heading, float)
        self.track = [(0.0, beta, *point) for beta, point in zip(heading, centre, strict=True)]
        side, quads = np.asarray(kerbs(track)), np.asarray(kerb_quads(track))
        self.road_poly = []
        for i, corners in enumerate(np.asarray(track.tiles)):
            grey = int(102 + 2.55 * (i % 3))
            self.road_poly.append((corners.tolist(), (grey, grey, grey)))
            if side[i]:
                self.road_poly.append((quads[i].tolist(), (255, 255, 255) if i % 2 == 0 else (255, 0, 0)))

    def put_car(self, angle: float, x: float, y: float) -> None:
        self.car.destroy()
        self.car = car_racing.Car(self.world, angle, x, y)


def _array(values: object) -> jax.Array:
    return jnp.asarray(np.asarray(values), jnp.float32)


def pursuit(env: Simulator) -> np.ndarray:
    """Aim at a point of the road some tiles ahead, at a speed that drifts a little in corners."""
    points = np.array([point[2:] for point in env.track])
    position, angle = np.array(env.car.hull.position), env.car.hull.angle
    nearest = int(np.argmin(np.linalg.norm(points - position, axis=1)))
    x, y = points[(nearest + 5) % len(points)] - position
    side, ahead = math.cos(angle) * x + math.sin(angle) * y, math.cos(angle) * y - math.sin(angle) * x
    speed = math.hypot(*env.car.hull.linearVelocity)
    return np.array([np.clip(2 * math.atan2(side, ahead), -1, 1), 0.5 * (speed < 45), 0.2 * (speed > 50)])


def drive(env: Simulator, *, every: int, frames: int, policy: str, seed: int) -> Iterator[Frame]:
    random = np.random.default_rng(seed)
    action = np.zeros(3)
    for k in range(SETTLED + frames):
        if policy == "pursuit":
            action = pursuit(env)
        elif k % 8 == 0:
            action = np.array([random.uniform(-1, 1), random.uniform(0.3, 1), 0.95 * (random.uniform() < 0.2)])
        env.step(action)
        if k >= SETTLED and k % every == 0:
            yield env.frame()


@pytest.fixture(scope="module")
def polar() -> list[tuple[Track, list[Frame]]]:
    """Drives on gymnasium's own roads: along them, sliding off them, and at the end of the world."""
    drives = []
    for seed, policy in enumerate(["pursuit", "wild", "pursuit"]):
        env = Simulator()
        env.reset(seed=seed)
        track = env.our_track()
        frames = list(drive(env, every=30, frames=240, policy=policy, seed=seed))
        if policy == "wild":
            for place in [(0.3, 330.0, 100.0), (-2.0, -320.0, -325.0)]:
                env.put_car(*place)
                env.step(np.array([0.4, 1.0, 0.0]))
                frames.append(env.frame())
        drives.append((track, frames))
    return drives


@pytest.fixture(scope="module")
def bezier() -> list[tuple[Track, list[Frame]]]:
    """Cars standing at places of our own roads."""
    drives = []
    loop = jax.jit(lambda key: bezier_track(sample_control_points(key=key)))
    env = Simulator()
    env.reset(seed=0)
    env.t = 1.0
    for seed in range(4):
        track = loop(jax.random.key(seed))
        env.lay(track)
        frames = []
        for tile in range(10, 468, 90):
            env.put_car(float(track.heading[tile]) + 0.2, *map(float, track.centre[tile]))
            env.step(np.array([-0.7, 1.0, 0.0]))
            car, _, seen = env.frame()
            frames.append((car, np.zeros(MOST_TILES, bool), seen))
        drives.append((track, frames))
    return drives


@functools.cache
def _draw(samples: int) -> Callable[..., jax.Array]:
    return jax.jit(functools.partial(draw, samples=samples))


_rasterise = jax.jit(rasterise, static_argnames=("cell", "extent"))


def differences(drives: list[tuple[Track, list[Frame]]], *, cell: float, samples: int) -> np.ndarray:
    """Levels between our pictures and theirs where no text is printed: frames × pixels × channels."""
    compared = np.ones((96, 96), bool)
    compared[86:93, :12] = False
    found = []
    for track, frames in drives:
        raster = _rasterise(track, cell=cell, extent=EXTENT)
        for car, visited, seen in frames:
            drawn = np.asarray(_draw(samples)(raster, car, visited))
            found.append(np.abs(drawn.astype(int) - seen)[compared])
    return np.array(found)


@pytest.mark.parametrize(
    ("roads", "cell", "samples"), [("polar", 0.5, 1), ("polar", 0.5, 2), ("bezier", 0.5, 2), ("bezier", 0.25, 3)]
)
def test_the_agent_sees_what_gymnasiums_agent_sees(
    roads: str, cell: float, samples: int, request: pytest.FixtureRequest
) -> None:
    found = differences(request.getfixturevalue(roads), cell=cell, samples=samples)
    worst = found.max(axis=-1)
    assert len(found) >= 20
    assert found.mean() <= {1: 0.5, 2: 0.3, 3: 0.2}[samples]
    assert (worst <= 2).mean() >= 0.95
    assert (worst <= 32).mean() >= {1: 0.985, 2: 0.99, 3: 0.998}[samples]


def test_the_frames_hold_what_is_to_be_compared(polar: list[tuple[Track, list[Frame]]]) -> None:
    cars = [car for _, frames in polar for car, _, _ in frames]
    seen = np.stack([picture for _, frames in polar for _, _, picture in frames])[:, :66].astype(int)
    red, green, blue = seen[..., 0], seen[..., 1], seen[..., 2]
    sliding = [
        abs(float(jnp.sin(car.angle[0]) * v[1] + jnp.cos(car.angle[0]) * v[0]))
        for car in cars
        for v in [car.velocity[0]]
    ]
    assert sum(((red > 240) & (green < 20)).any(axis=(1, 2))) >= 3, "kerbs"
    assert sum(((red == green) & (green == blue) & (red > 90) & (red < 110)).mean(axis=(1, 2)) < 0.02) >= 2, (
        "grass only"
    )
    assert sum((seen.max(axis=-1) == 0).any(axis=(1, 2))) >= 2, "the end of the world"
    assert sum(side > 5 for side in sliding) >= 3
    assert max(float(jnp.max(jnp.abs(car.omega))) for car in cars) > 60


@pytest.mark.parametrize("seed", range(4))
def test_kerbs_stand_where_gymnasium_puts_them(seed: int) -> None:
    """Except next to the one place where its headings jump by 2π, which breaks a kerb there and turns its side."""
    env = Simulator()
    env.reset(seed=seed)
    track = env.our_track()
    quads = np.asarray(jax.jit(kerb_quads)(track))
    side = np.asarray(jax.jit(kerbs)(track))
    theirs: dict[int, np.ndarray] = {}
    tile = -1
    for corners, colour in env.road_poly:
        if tuple(colour) in [(255, 255, 255), (255, 0, 0)]:
            theirs[tile] = np.array(corners)
        else:
            tile += 1
    heading = np.array([beta for _, beta, _, _ in env.track])
    jumps = np.flatnonzero(np.abs(heading - np.roll(heading, 1)) > np.pi)
    compared = [i for i in range(len(side)) if np.all(np.abs((i - jumps + 4) % len(side) - 4) > 3)]
    assert len(jumps) <= 2
    assert sum(i in theirs for i in compared) >= 4
    for i in compared:
        assert (side[i] != 0) == (i in theirs), i
        assert i not in theirs or np.abs(quads[i] - theirs[i]).max() < 1e-3


def test_a_hull_over_a_tile_changes_it_by_a_shade_only(polar: list[tuple[Track, list[Frame]]]) -> None:
    """gymnasium repaints a tile under the hull, our worlds wait for a wheel: no pixel differs by more than 5 levels."""
    track, frames = polar[0]
    car, visited, _ = frames[0]
    raster = _rasterise(track, cell=0.5, extent=EXTENT)
    under = int(jnp.argmin(jnp.linalg.norm(track.centre - car.position[0], axis=1)))
    more = visited.copy()
    more[under : under + 3] = True
    repainted, waiting = _draw(2)(raster, car, more), _draw(2)(raster, car, visited)
    assert np.abs(np.asarray(repainted).astype(int) - np.asarray(waiting)).max() <= 5
