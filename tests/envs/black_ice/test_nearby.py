"""Tiles within reach: whatever a car does, to look at them alone gives the drive that looking at all tiles gives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.envs.black_ice import driving
from samplr.envs.black_ice.circuits import circuit
from samplr.envs.black_ice.contacts import tile_geometry
from samplr.envs.black_ice.driving import TRAINING, Road, begin, drive
from samplr.envs.black_ice.nearby import nearby, picked, room, tiles_near
from samplr.envs.black_ice.tracks import TILES, bezier_track, sample_control_points, track_along

FAR, LONG = jnp.float32(1e6), jnp.int32(1_000_000)
ACTIONS = 30


def whole_road(track):
    tiles = tile_geometry(track.tiles)
    return Road(tiles, FAR, LONG), begin(track, tiles, TRAINING, "nearest")


def a_drive(road, start, key, speed):
    """Begun at a speed, steered at random, on ice one tile in five, for as long as it lasts; and what it earned."""
    ice_key, key = jax.random.split(key)
    icy = jax.random.bernoulli(ice_key, 0.2, start.visited.shape)
    rules = driving.Rules(idle_limit=0)
    ahead = jnp.array([-jnp.sin(start.car.angle[0]), jnp.cos(start.car.angle[0])])
    start = eqx.tree_at(lambda drive: drive.car.velocity, start, jnp.broadcast_to(speed * ahead, (5, 2)))

    def act(now, key):
        action = jax.random.uniform(key, (3,), minval=jnp.array([-0.2, 0, 0]), maxval=jnp.array([0.2, 0.4, 0.02]))
        after, earned = drive(road, now, action, icy, rules, "nearest")
        return after, (after, earned)

    return jax.lax.scan(act, start, jax.random.split(key, ACTIONS))[1]


def both_ways(monkeypatch, *arguments):
    """A batch of drives, with the tiles within reach and with all tiles."""
    near = jit(jax.vmap(lambda *one: a_drive(*one)), runs_once=True)(*arguments)
    monkeypatch.setattr(driving, "room", lambda tiles: tiles)
    return near, jit(jax.vmap(lambda *one: a_drive(*one)), runs_once=True)(*arguments)


def assert_same(one, other):
    """But for rounding: they are two programs, and what they share is compiled twice.

    A wheel's centre on a seam between two tiles may be on one in one of them and on the other in the other.
    """
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, atol=0.02)
        else:
            assert np.count_nonzero(a != b) <= 2


def test_a_drive_is_the_same(monkeypatch):
    keys = jax.random.split(jax.random.key(0), 24)
    roads, starts = jit(jax.vmap(lambda key: whole_road(bezier_track(sample_control_points(key=key)))), runs_once=True)(
        keys
    )
    near, full = both_ways(monkeypatch, roads, starts, keys, jnp.linspace(0, 95, 24))
    drives, earned = full
    speed = np.linalg.norm(drives.car.velocity[..., 0, :], axis=-1)
    assert speed.max() > 60, "nobody drove fast"
    assert np.asarray(drives.visited)[:, -1].sum(axis=-1).min() > 3, "somebody did not drive"
    assert np.asarray(earned).max() > 10
    assert_same(near, full)


def test_so_it_is_where_some_of_a_batch_are_crowded(monkeypatch):
    """Four hundred tiles on a roundabout that a car crosses in a second, beside a road of the same number of tiles."""
    tiles = 400
    angle = jnp.linspace(0, 2 * jnp.pi, tiles, endpoint=False)
    rings = [radius * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1) for radius in (9.0, 200.0, 11.0, 400.0)]
    roads, starts = jit(jax.vmap(lambda ring: whole_road(track_along(ring))), runs_once=True)(jnp.stack(rings))
    crowded = jax.vmap(lambda road, start: nearby(road.tiles, start.car, 8).crowded)(roads, starts)
    np.testing.assert_array_equal(crowded, [True, False, True, False])
    near, full = both_ways(monkeypatch, roads, starts, jax.random.split(jax.random.key(1), 4), jnp.full(4, 30.0))
    assert_same(near, full)
    assert (np.asarray(full[0].visited).sum(axis=-1)[:, -1] > 3).all(), "somebody did not drive"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Monaco", "Russia"])
def test_so_it_is_on_a_circuit(name, monkeypatch):
    road, start = jit(whole_road)(track_along(jnp.asarray(circuit(name).points, jnp.float32)))
    roads, starts = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), (road, start))
    near, full = both_ways(
        monkeypatch, roads, starts, jax.random.split(jax.random.key(2), 4), jnp.array([10.0, 30.0, 60.0, 90.0])
    )
    assert_same(near, full)


class TestRoom:
    def test_there_is_room_for_few_of_many_and_for_all_of_few(self):
        assert room(40) == 40
        assert room(TILES) == 96
        assert room(4999) == 384

    def test_a_gpu_looks_at_all_tiles(self, monkeypatch):
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        assert room(TILES) == TILES

    def test_hardly_any_place_of_the_training_tracks_is_crowded(self):
        """At 60 u/s, faster than students drive: fewer than one place in five hundred."""

        def crowded(key):
            track = bezier_track(sample_control_points(key=key))
            road, start = whole_road(track)

            def at(place):
                car = eqx.tree_at(
                    lambda car: (car.position, car.velocity),
                    start.car,
                    (start.car.position - start.car.position[0] + place, jnp.full((5, 2), 60 / 2**0.5)),
                )
                return nearby(road.tiles, car, 8).crowded

            return jnp.mean(jax.vmap(at)(track.centre), dtype=jnp.float32)

        assert jit(jax.vmap(crowded), runs_once=True)(jax.random.split(jax.random.key(3), 50)).mean() < 1 / 500


def test_places_left_over_hold_nothing_that_can_be_touched():
    road, start = jit(lambda key: whole_road(bezier_track(sample_control_points(key=key))), runs_once=True)(
        jax.random.key(4)
    )
    near = nearby(road.tiles, start.car, 8)
    left = np.asarray(near.index) == TILES
    assert left.any()
    assert not left.all()
    assert (np.diff(np.asarray(near.index)[~left]) > 0).all()
    assert np.isinf(np.asarray(tiles_near(near, road.tiles).middle)[:, left]).all()
    assert not np.asarray(picked(near, jnp.ones(TILES, bool)))[left].any()
