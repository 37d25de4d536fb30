"""The fast sight against the plain one, on levels as they are sampled and on odder ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samplr.compiling import jit
from samplr.envs.fruit_choice.rooms import sample_rooms
from samplr.envs.fruit_choice.terrain import COLUMNS, ROWS, Rooms, Terrain, terrain_of
from samplr.envs.fruit_choice.vision import FINGERS, could_see

from .algorithm_c import most_fingers, plainly_seen
from .wild_rooms import wild_rooms

BATCH = 256
_terrain_of = jit(terrain_of)
_clears = jit(jax.vmap(Terrain.clear, (None, 0)))
_could_see = jit(could_see)
_many_see = jit(jax.vmap(could_see))


def _drawn(picture: str) -> np.ndarray:
    """A clear map from a picture whose dots are clear, in the middle of solid rock."""
    clear = np.zeros((ROWS, COLUMNS), bool)
    for y, line in enumerate(picture.strip("\n").split("\n")):
        for x, symbol in enumerate(line):
            clear[y + 5, x + 3] = symbol in ".@"
    return clear


def _hero_of(picture: str) -> tuple[int, int]:
    return next((y + 5, line.index("@") + 3) for y, line in enumerate(picture.strip("\n").split("\n")) if "@" in line)


def _poses(random: np.random.Generator, rooms: Rooms, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Heroes anywhere on a level, with some of its doors broken."""
    share = random.random((number, 1)) ** 0.3
    clears = np.asarray(_clears(_terrain_of(rooms), random.random((number, 7)) < share))
    return clears, np.stack([random.choice(np.argwhere(clear)) for clear in clears])


def _disagreements(clears: np.ndarray, heroes: np.ndarray) -> list:
    fast = np.asarray(_many_see(clears, heroes))
    plain = np.stack([plainly_seen(clear, tuple(hero)) for clear, hero in zip(clears, heroes, strict=True)])
    return np.argwhere(fast != plain).tolist()


def test_a_hero_in_a_closed_room_sees_it_and_its_walls():
    picture = """
......
.@....
......
"""
    seen = np.asarray(_could_see(_drawn(picture), jnp.array(_hero_of(picture))))
    expected = np.zeros((ROWS, COLUMNS), bool)
    expected[4:9, 2:10] = True
    np.testing.assert_array_equal(seen, expected)


def test_a_broken_door_shows_a_part_of_the_room_behind():
    picture = """
.... ......
@..........
.... ......
"""
    seen = np.asarray(_could_see(_drawn(picture), jnp.array(_hero_of(picture))))
    behind = ["".join(" ."[int(cell)] for cell in row) for row in seen[5:8, 8:14]]
    # Half way to a cell in the next row a line changes rows, and by then it must be past the wall.
    assert behind == ["    ..", "......", "    .."]


def test_fast_and_plain_sight_agree_on_sampled_levels():
    def pose(key):
        rooms_key, broken_key, hero_key = jax.random.split(key, 3)
        clear = terrain_of(sample_rooms(8, key=rooms_key)).clear(jax.random.bernoulli(broken_key, 0.8, (7,)))
        cell = jax.random.categorical(hero_key, jnp.where(clear.ravel(), 0.0, -jnp.inf))
        return clear, jnp.stack(jnp.divmod(cell, COLUMNS))

    clears, heroes = jit(jax.vmap(pose))(jax.random.split(jax.random.key(0), BATCH))
    assert _disagreements(np.asarray(clears), np.asarray(heroes)) == []


def test_fast_and_plain_sight_agree_on_odd_levels():
    random = np.random.default_rng(0)
    poses = [_poses(random, wild_rooms(random), 8) for _ in range(BATCH // 8)]
    assert _disagreements(*map(np.concatenate, zip(*poses, strict=True))) == []


@pytest.mark.slow
def test_fast_and_plain_sight_agree_on_many_odd_levels():
    random = np.random.default_rng(1)
    for _ in range(200):
        poses = [_poses(random, wild_rooms(random), 8) for _ in range(BATCH // 8)]
        assert _disagreements(*map(np.concatenate, zip(*poses, strict=True))) == []


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), which=st.integers(0, 2**16), broken=st.lists(st.booleans(), min_size=7, max_size=7)
)
def test_fast_and_plain_sight_agree(seed, which, broken):
    clear = np.asarray(_terrain_of(wild_rooms(np.random.default_rng(seed))).clear(jnp.array(broken)))
    cells = np.argwhere(clear)
    hero = cells[which % len(cells)]
    np.testing.assert_array_equal(np.asarray(_could_see(clear, hero)), plainly_seen(clear, tuple(hero)))


def test_a_row_of_ever_larger_rooms_needs_the_most_fingers():
    """Each room ends more than twice as far away as the one before, so that a bit of each is seen beside the doors."""
    clear = np.zeros((ROWS, COLUMNS), bool)
    clear[9:12, 3:77] = True
    clear[[[9], [11]], [4, 7, 13, 25, 49]] = False  # walls, each with a door in the hero's row
    hero = (10, 3)
    assert 5 <= most_fingers(clear, hero) <= FINGERS
    np.testing.assert_array_equal(np.asarray(_could_see(clear, jnp.array(hero))), plainly_seen(clear, hero))


def test_there_are_never_more_fingers_than_we_follow():
    random = np.random.default_rng(2)
    most = 0
    for _ in range(150):
        clears, heroes = _poses(random, wild_rooms(random), 8)
        most = max(most, *(most_fingers(clear, tuple(hero)) for clear, hero in zip(clears, heroes, strict=True)))
    assert 2 <= most <= FINGERS // 2, "of those that begin at different cells of a row; more than half would be news"
