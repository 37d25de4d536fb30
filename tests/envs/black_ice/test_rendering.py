"""The raster of a road and the agent's picture: what is painted where, and what may not be seen."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.envs.black_ice.physics import Car, hull_origin, start
from samplr.envs.black_ice.raster import EMPTY, Raster, kerb_quads, kerbs, rasterise
from samplr.envs.black_ice.rendering import draw
from samplr.envs.black_ice.tracks import HALF_WIDTH, Track, bezier_track, sample_control_points, track_along

GRASS, PATCH, VISITED = (100, 202, 100), (100, 228, 100), (100, 100, 100)
_bezier = jax.jit(lambda key: bezier_track(sample_control_points(key=key)))
_kerbs, _kerb_quads, _start = jax.jit(kerbs), jax.jit(kerb_quads), jax.jit(start)
_rasterise = jax.jit(rasterise, static_argnames=("cell", "extent"))
_draw = jax.jit(draw, static_argnames=("samples", "camera"))


@functools.cache
def loop(seed: int) -> Track:
    return _bezier(jax.random.key(seed))


def ring(tiles: int, radius: float) -> Track:
    """A round road, driven counter-clockwise."""
    angle = 2 * jnp.pi * jnp.arange(tiles) / tiles
    return track_along(radius * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1))


@functools.cache
def scene() -> tuple[Raster, Car, jax.Array]:
    track = loop(0)
    return _rasterise(track, cell=0.5, extent=200.0), _start(track.centre[5], track.heading[5]), jnp.zeros(468, bool)


def brute_force(track: Track, points: np.ndarray) -> np.ndarray:
    """The key at every point, tile after tile, by the even-odd rule."""
    key = np.full(len(points), EMPTY)
    side = np.asarray(_kerbs(track))
    for i, (tile, kerb) in enumerate(zip(np.asarray(track.tiles), np.asarray(_kerb_quads(track)), strict=True)):
        key[_inside(tile, points)] = 2 * i
        if side[i]:
            key[_inside(kerb, points)] = 2 * i + 1
    return key


def _inside(quad: np.ndarray, points: np.ndarray) -> np.ndarray:
    odd = np.zeros(len(points), bool)
    for (x0, y0), (x1, y1) in zip(quad, np.roll(quad, 1, axis=0), strict=True):
        crosses = (y0 > points[:, 1]) != (y1 > points[:, 1])
        with np.errstate(divide="ignore", invalid="ignore"):
            odd ^= crosses & (points[:, 0] < x0 + (points[:, 1] - y0) / (y1 - y0) * (x1 - x0))
    return odd


@pytest.mark.parametrize("seed", range(2))
def test_the_raster_holds_the_last_quad_over_every_cell(seed: int) -> None:
    """But for cells on the outline, which is half a pixel of gymnasium's window wide."""
    raster = _rasterise(loop(seed), cell=0.5, extent=200.0)
    random = np.random.default_rng(seed)
    near = np.asarray(loop(seed).centre)[random.integers(468, size=4000)] + random.uniform(-9, 9, (4000, 2))
    cells = np.floor((near + 200) / 0.5).astype(int)
    expected = brute_force(loop(seed), (cells + 0.5) * 0.5 - 200)
    found = np.asarray(raster.keys)[cells[:, 1], cells[:, 0]]
    assert (expected != EMPTY).mean() > 0.5
    assert (found == expected).mean() > 0.985


def test_no_tile_is_lost_on_any_track() -> None:
    tracks = jax.jit(jax.vmap(_bezier))(jax.random.split(jax.random.key(1), 64))
    keys = jax.jit(jax.vmap(lambda track: rasterise(track, cell=1.0, extent=200.0).keys))(tracks)
    # Rows are handed out in order, so what does not fit is missing at the end.
    assert np.all(np.asarray(keys).max(axis=(1, 2)) >= 2 * 466)
    assert np.all(np.asarray(keys[:, [0, -1]]) == EMPTY)
    assert np.all(np.asarray(keys[:, :, [0, -1]]) == EMPTY)


def test_a_long_track_of_short_tiles_fits_as_well() -> None:
    raster = _rasterise(ring(4999, 350.0), cell=1.0, extent=410.0)
    area = np.pi * ((350 + HALF_WIDTH) ** 2 - (350 - HALF_WIDTH) ** 2)
    assert raster.keys.max() == 2 * 4998
    assert float(jnp.sum(raster.keys != EMPTY)) == pytest.approx(area, rel=0.02)


@pytest.mark.parametrize("direction", [1, -1])
def test_kerbs_are_inside_sharp_turns_only(direction: int) -> None:
    """A turn of 2π/60 per tile is sharp, one of 2π/120 is not; inside is left when driving counter-clockwise."""
    sharp, gentle = ring(60, 30.0), ring(120, 60.0)
    sharp, gentle = (track_along(track.centre[::direction]) for track in (sharp, gentle))
    assert np.all(np.asarray(_kerbs(sharp)) == -direction)
    assert not np.any(np.asarray(_kerbs(gentle)))
    corners = np.linalg.norm(np.asarray(_kerb_quads(sharp)), axis=-1)
    assert np.allclose(
        np.sort(corners.reshape(-1, 4), axis=1), [22.0, 22.0, 30 - HALF_WIDTH, 30 - HALF_WIDTH], atol=1e-3
    )


def test_visiting_changes_only_the_grey_of_the_road() -> None:
    raster, car, visited = scene()
    before, after = np.array(_draw(raster, car, visited, samples=1)), np.array(_draw(raster, car, ~visited, samples=1))
    before[66:78, 44:52] = after[66:78, 44:52] = 0  # the car, which mixes with the road under it
    changed = np.any(before != after, axis=-1)
    assert changed.any()
    assert np.all(after[changed] == VISITED)
    assert np.all(np.isin(before[changed], [102, 105]))


def test_the_car_stands_where_it_always_stands() -> None:
    """Three quarters down in the middle, facing up, whatever the place and the angle."""
    raster, _, visited = scene()
    for x, y, angle in [(0.0, 0.0, 0.0), (20.0, -40.0, 2.0), (-80.0, 10.0, -3.0)]:
        seen = np.asarray(_draw(raster, _start(jnp.array([x, y]), jnp.float32(angle)), visited)).astype(int)
        red = np.argwhere((seen[:84, :, 0] > 150) & (seen[:84, :, 1] < 60))
        assert np.all(red >= [66, 45])
        assert np.all(red <= [77, 50])
        assert len(red) >= 10


def test_turning_the_world_with_the_car_changes_nothing_but_the_patches() -> None:
    track = loop(2)
    car = _start(track.centre[40], track.heading[40])
    turn = jnp.array([[0.0, 1.0], [-1.0, 0.0]])
    turned = Track(track.centre @ turn, track.heading + jnp.pi / 2)
    car_turned = eqx.tree_at(lambda c: (c.position, c.angle), car, (car.position @ turn, car.angle + jnp.pi / 2))
    pictures = []
    for road, driver in ((track, car), (turned, car_turned)):
        seen = _draw(_rasterise(road, cell=0.5, extent=200.0), driver, jnp.zeros(468, bool), samples=2)
        pictures.append(np.asarray(seen).astype(int)[..., 0])  # red does not tell patches from grass
    difference = np.abs(pictures[0] - pictures[1])
    assert (difference <= 2).mean() > 0.98
    assert difference.mean() < 0.5


def test_the_world_ends_in_black_and_patches_end_with_the_simulators_playfield() -> None:
    raster, _, visited = scene()
    there = _start(jnp.array([340.0, 340.0]), jnp.float32(0.0))
    near = np.asarray(_draw(raster, there, visited))[:60]
    far = np.asarray(_draw(raster, there, visited, jnp.float32(500.0)))[:60]
    assert np.all(near[:, 60:] == 0)
    assert np.all(far == GRASS)
    inside = np.asarray(_draw(raster, _start(jnp.array([300.0, 300.0]), jnp.float32(0.0)), visited))[:60]
    assert {tuple(colour) for colour in inside.reshape(-1, 3)} > {GRASS, PATCH}


def test_the_dashboard_shows_speed_wheels_steering_and_spin() -> None:
    raster, car, visited = scene()
    blank = eqx.tree_at(lambda c: (c.spin, c.angle), car, (jnp.zeros(5), jnp.full(5, car.angle[0])))
    moving = eqx.tree_at(
        lambda c: (c.velocity, c.omega, c.spin, c.angle),
        blank,
        (jnp.full((5, 2), 50.0), jnp.full(4, 100.0), jnp.full(5, 2.0), blank.angle.at[1].add(0.3)),
    )
    board = np.asarray(_draw(raster, moving, visited))[84:].astype(int)
    assert not np.asarray(_draw(raster, blank, visited))[84:].any()
    assert board[8, 13].min() > 200  # speed
    assert np.all(board[8, 17:26, 2] > 200)  # four wheels
    assert board[8, 27:, 2].max() == 0
    assert board[5, 42, 1] > 200  # steering, to the left
    assert board[5, 70, 0] > 200  # spin, to the left
    assert board[5, 50].max() == 0


@pytest.mark.parametrize("samples", [1, 4])
def test_more_points_show_the_same_scene(samples: int) -> None:
    raster, car, visited = scene()
    seen, usual = _draw(raster, car, visited, samples=samples), _draw(raster, car, visited, samples=2)
    assert seen.shape == (96, 96, 3)
    assert seen.dtype == jnp.uint8
    assert np.abs(np.asarray(seen).astype(int) - np.asarray(usual)).mean() < 1.0


def moving(car: Car, aside: float, speed: float = 30.0) -> Car:
    """The car at a speed, in a direction so far to the left of where it points."""
    way = car.angle[0] + aside
    return eqx.tree_at(lambda c: c.velocity, car, jnp.tile(speed * jnp.array([-jnp.sin(way), jnp.cos(way)]), (5, 1)))


@pytest.mark.parametrize(("aside", "speed"), [(0.0, 30.0), (1.2, 0.4)])
def test_a_car_that_does_not_slide_looks_the_same_to_both_cameras(aside: float, speed: float) -> None:
    """Also one that hardly moves, whichever way."""
    raster, car, visited = scene()
    car = moving(car, aside, speed)
    hull, motion = (np.asarray(_draw(raster, car, visited, camera=c), int) for c in ("hull", "motion"))
    assert np.abs(hull - motion).mean() < 0.1
    assert np.abs(hull - motion).max() < 40, "edges may round otherwise"


@pytest.mark.parametrize("aside", [-2.5, -0.7, 0.7, np.pi / 2])
def test_the_motion_camera_turns_the_road_and_shows_that_the_car_slides(aside: float) -> None:
    raster, car, visited = scene()
    sliding = moving(car, aside)
    seen = np.asarray(_draw(raster, sliding, visited, camera="motion"), int)
    # The road is what a car would see that points where this one moves: all but the car itself and its steering.
    pointing = eqx.tree_at(lambda c: c.angle, sliding, sliding.angle + aside)
    origin = hull_origin(sliding) - hull_origin(pointing)
    pointing = eqx.tree_at(lambda c: c.position, pointing, pointing.position + origin)
    road = np.asarray(_draw(raster, pointing, visited), int)
    around = np.ones((96, 96), bool)
    around[66:78, 43:53] = False
    assert np.abs(seen - road)[:84][around[:84]].mean() < 0.1
    # The hull lies along a line that is turned the other way.
    red, green = seen[66:78, 43:53, 0], seen[66:78, 43:53, 1]
    rows, cols = np.nonzero((red > 150) & (red < 230) & (green < 60))  # kerbs are brighter
    ahead, right = -0.8 * (rows - rows.mean()), cols - cols.mean()
    axis = 0.5 * np.arctan2(2 * (ahead * right).sum(), (ahead**2 - right**2).sum())
    assert np.cos(2 * (axis - aside)) > 0.9


def test_pictures_of_a_batch_are_those_of_its_members() -> None:
    raster, car, visited = scene()
    other = eqx.tree_at(lambda c: c.angle, car, car.angle + 0.5)
    cars = jax.tree.map(lambda *leaves: jnp.stack(leaves), car, other)
    batch = jax.jit(jax.vmap(lambda c: draw(raster, c, visited)))(cars)
    assert np.array_equal(batch[0], _draw(raster, car, visited))
    assert np.array_equal(batch[1], _draw(raster, other, visited))
