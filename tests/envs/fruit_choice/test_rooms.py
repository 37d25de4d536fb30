"""Chains of rooms against a plain writing of MultiRoom's procedure, and the levels that are refused."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from samplr.compiling import jit
from samplr.envs.fruit_choice.rooms import GRID, MAX_SIZE, MIN_SIZE, ORIGIN, chain_of_rooms, check_rooms, sample_rooms
from samplr.envs.fruit_choice.terrain import Kind, Rooms, terrain_of
from samplr.errors import LevelError

N, ROOMS = 10_000, 5


# --- MultiRoom, once more -------------------------------------------------------------------------------------------


@dataclass
class Box:
    """A room by its first cell and its size; x is the column."""

    x: int
    y: int
    width: int
    height: int


@dataclass
class Chain:
    """What the procedure has laid so far, and how."""

    rooms: list[Box] = field(default_factory=list)
    doors: list[tuple[int, int]] = field(default_factory=list)
    sides: list[str] = field(default_factory=list)


OPPOSITE = {"right": "left", "left": "right", "bottom": "top", "top": "bottom"}


def multiroom(wanted: int, dice: random.Random) -> Chain:
    """Chains are laid until one is long enough."""
    while True:
        chain = Chain()
        # Both are drawn by the width, though the grid is lower than wide.
        x, y = dice.randrange(GRID[1] - 2), dice.randrange(GRID[1] - 2)
        first = Box(x, y, size(dice), size(dice))
        if fits(first, []):
            chain.rooms.append(first)
            extend(chain, wanted, "left", dice)
        if len(chain.rooms) == wanted:
            return chain


def extend(chain: Chain, wanted: int, entry: str, dice: random.Random) -> None:
    for _ in range(8):
        if len(chain.rooms) == wanted:
            return
        last = chain.rooms[-1]
        side = dice.choice([side for side in OPPOSITE if side != entry])
        door_x, door_y = last.x + dice.randint(1, last.width - 2), last.y + dice.randint(1, last.height - 2)
        width, height = size(dice), size(dice)
        # Counting from the door back to the corner, the door is neither the first nor the last of the wall's cells.
        x, y = door_x - dice.randint(1, width - 2), door_y - dice.randint(1, height - 2)
        if side == "right":
            x = door_x = last.x + last.width - 1
        elif side == "left":
            door_x = last.x
            x = door_x - width + 1
        elif side == "bottom":
            y = door_y = last.y + last.height - 1
        else:
            door_y = last.y
            y = door_y - height + 1
        room = Box(x, y, width, height)
        if fits(room, chain.rooms[:-1]):
            chain.rooms.append(room)
            chain.doors.append((door_y, door_x))
            chain.sides.append(side)
            return extend(chain, wanted, OPPOSITE[side], dice)


def size(dice: random.Random) -> int:
    return dice.randint(MIN_SIZE, MAX_SIZE)


def fits(room: Box, others: Iterable[Box]) -> bool:
    right, bottom = room.x + room.width, room.y + room.height
    if room.x < 0 or room.y < 0 or right > GRID[1] or bottom >= GRID[0]:
        return False
    return all(
        right < other.x or other.x + other.width <= room.x or bottom < other.y or other.y + other.height <= room.y
        for other in others
    )


# --- Both, in one form ----------------------------------------------------------------------------------------------


@dataclass
class Sample:
    """Many chains in cells of the grid, one per row."""

    corners: np.ndarray
    sizes: np.ndarray
    doors: np.ndarray


@pytest.fixture(scope="module")
def theirs() -> Sample:
    dice = random.Random(0)
    chains = [multiroom(ROOMS, dice) for _ in range(N)]
    return Sample(
        np.array([[(room.y, room.x) for room in chain.rooms] for chain in chains]),
        np.array([[(room.height, room.width) for room in chain.rooms] for chain in chains]),
        np.array([chain.doors for chain in chains]),
    )


@pytest.fixture(scope="module")
def levels() -> Rooms:
    sample = jit(jax.vmap(lambda key: chain_of_rooms(ROOMS, key=key)))
    return jax.tree.map(np.asarray, sample(jax.random.split(jax.random.key(0), N)))


@pytest.fixture(scope="module")
def ours(levels: Rooms) -> Sample:
    return Sample(
        levels.corners[:, :ROOMS] - ORIGIN, levels.sizes[:, :ROOMS], levels.doors[:, : ROOMS - 1] - np.array(ORIGIN)
    )


def same_distribution(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two samples of whole numbers look drawn from one distribution; rare values count as one."""
    values, which = np.unique(np.concatenate([a, b]), return_inverse=True)
    table = np.stack([np.bincount(part, minlength=len(values)) for part in (which[: len(a)], which[len(a) :])])
    rare = table.sum(axis=0) < 20
    table = np.concatenate([table[:, ~rare], table[:, rare].sum(axis=1, keepdims=True)], axis=1)
    return stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue > 0.001


def sides(chains: Sample) -> np.ndarray:
    """The wall of each room that holds the door to the next."""
    at = chains.doors - chains.corners[:, :-1]
    last = chains.sizes[:, :-1] - 1
    return np.argmax(np.concatenate([at == 0, at == last], axis=-1), axis=-1)


FIGURES: dict[str, Callable[[Sample], np.ndarray]] = {
    "first row": lambda s: s.corners[:, 0, 0],
    "first column": lambda s: s.corners[:, 0, 1],
    "first size": lambda s: 10 * s.sizes[:, 0, 0] + s.sizes[:, 0, 1],
    "second size": lambda s: 10 * s.sizes[:, 1, 0] + s.sizes[:, 1, 1],
    "last size": lambda s: 10 * s.sizes[:, -1, 0] + s.sizes[:, -1, 1],
    "last row": lambda s: s.corners[:, -1, 0],
    "last column": lambda s: s.corners[:, -1, 1],
    "first side": lambda s: sides(s)[:, 0],
    "sides in a row": lambda s: sides(s) @ (4 ** np.arange(ROOMS - 1)),
    "door in the wall": lambda s: (s.doors - s.corners[:, :-1])[:, 1] @ [10, 1],
    "room behind the door": lambda s: (s.doors - s.corners[:, 1:])[:, 1] @ [10, 1],
    "last door": lambda s: s.doors[:, -1, 0],
}


@pytest.mark.parametrize("figure", FIGURES)
def test_rooms_are_laid_as_in_multiroom(figure, ours, theirs):
    assert same_distribution(FIGURES[figure](ours), FIGURES[figure](theirs))


def test_the_comparison_would_notice(ours, theirs):
    sizes = FIGURES["last size"](ours)
    assert not same_distribution(np.where(sizes == 44, 45, sizes), FIGURES["last size"](theirs))


def test_the_first_room_has_no_door_on_its_left(ours):
    left = 1
    assert left not in sides(ours)[:, 0]
    assert left in sides(ours)[:, 1]


# --- Hero and fruit -------------------------------------------------------------------------------------------------


def uniform(counts: np.ndarray) -> bool:
    return stats.chisquare(counts).pvalue > 0.001


@pytest.mark.parametrize(("name", "room"), [("start", 0), ("apple", ROOMS - 1), ("banana", ROOMS - 1)])
def test_each_floor_cell_is_as_likely(name, room, levels):
    # Rooms of 5 by 5, which have nine.
    of_size = np.all(levels.sizes[:, room] == 5, axis=-1)
    at = (getattr(levels, name) - levels.corners[:, room] - 1)[of_size]
    counts = np.bincount(at @ [3, 1], minlength=9)
    assert len(counts) == 9
    assert uniform(counts)


def test_in_a_single_room_all_three_have_cells_of_their_own():
    sample = jit(jax.vmap(lambda key: chain_of_rooms(1, key=key)), runs_once=True)
    rooms = jax.tree.map(np.asarray, sample(jax.random.split(jax.random.key(1), N)))
    smallest = np.all(rooms.sizes[:, 0] == 4, axis=-1)
    places = [(cell - rooms.corners[:, 0] - 1)[smallest] @ [2, 1] for cell in (rooms.start, rooms.apple, rooms.banana)]
    assert not np.any(places[0] == places[1])
    assert not np.any(places[0] == places[2])
    assert not np.any(places[1] == places[2])
    # 4 · 3 · 2 ways to do it.
    counts = np.bincount(np.array(places).T @ [16, 4, 1])
    assert len(counts[counts > 0]) == 24
    assert uniform(counts[counts > 0])


@pytest.mark.parametrize("most", [1, 3, 8])
def test_numbers_of_rooms_are_as_likely(most):
    # Of the rest nothing is asked for, so that it need not be computed.
    sample = jit(jax.vmap(lambda key: sample_rooms(most, key=key).count), runs_once=True)
    counts = np.bincount(np.asarray(sample(jax.random.split(jax.random.key(2), N))))
    assert len(counts) == most + 1
    assert counts[0] == 0
    assert most == 1 or uniform(counts[1:])


@pytest.fixture(scope="module")
def any_level() -> Callable[[int], Rooms]:
    sample = jit(lambda key: sample_rooms(8, key=key))
    return lambda seed: sample(jax.random.key(seed))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31 - 1))
def test_what_is_sampled_can_be_played(any_level, seed):
    rooms = any_level(seed)
    check_rooms(rooms)
    count = int(rooms.count)
    for rest in (rooms.corners[count:], rooms.sizes[count:], rooms.doors[count - 1 :]):
        assert not np.any(rest)
    # All of the floor can be reached through the doors.
    kind = np.asarray(terrain_of(rooms).kind)
    open_cells = {tuple(cell) for cell in np.argwhere(kind >= Kind.FLOOR)}
    reached, border = set(), {tuple(np.asarray(rooms.start).tolist())}
    while border:
        reached |= border
        near = {(r + dr, c + dc) for r, c in border for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0))}
        border = (near & open_cells) - reached
    assert reached == open_cells
    assert np.sum(kind == Kind.DOOR) == count - 1


# --- What is refused ------------------------------------------------------------------------------------------------


def two_rooms() -> Rooms:
    """Rows 3 to 7: a room of columns 10 to 16, and one of columns 16 to 22 that begins a row higher."""
    none = jnp.zeros((8, 2), jnp.int32)
    return Rooms(
        count=jnp.int32(2),
        corners=none.at[:2].set(jnp.array([(3, 10), (2, 16)])),
        sizes=none.at[:2].set(jnp.array([(5, 7), (6, 7)])),
        doors=none[1:].at[0].set(jnp.array([5, 16])),
        start=jnp.array([5, 12]),
        apple=jnp.array([5, 19]),
        banana=jnp.array([4, 20]),
    )


def changed(name: str, value: object, at: int | None = None) -> Rooms:
    rooms = two_rooms()
    old = getattr(rooms, name)
    new = jnp.asarray(value, jnp.int32) if at is None else old.at[at].set(jnp.asarray(value))
    return eqx.tree_at(lambda rooms: getattr(rooms, name), rooms, new)


def test_a_level_by_hand_is_accepted():
    check_rooms(two_rooms())


@pytest.mark.parametrize(
    ("rooms", "message"),
    [
        (changed("count", 0), "a level has 1 to 8 rooms, not 0"),
        (changed("count", 9), "a level has 1 to 8 rooms, not 9"),
        (changed("sizes", (2, 7), 0), "room 1 is 2 by 7"),
        (changed("corners", (3, 1), 0), "room 1 does not lie on the map"),
        (changed("corners", (16, 16), 1), "room 2 does not lie on the map"),
        (changed("corners", (2, 72), 1), "room 2 does not lie on the map"),
        (changed("corners", (2, 15), 1), "rooms 1 and 2 overlap by more than a wall"),
        (changed("corners", (2, 17), 1), "rooms 1 and 2 share no wall"),
        (changed("corners", (7, 16), 1), "rooms 1 and 2 share no wall"),
        (changed("count", 3), "room 3 is 0 by 0"),
        (changed("doors", (5, 15), 0), "the door at row 5, column 15 is not in the wall that rooms 1 and 2 share"),
        (changed("doors", (3, 16), 0), "the door at row 3, column 16 is not"),
        (changed("doors", (7, 16), 0), "the door at row 7, column 16 is not"),
        (changed("apple", (2, 19)), "the apple at row 2, column 19 is not on the floor of the last room"),
        (changed("banana", (5, 12)), "the banana at row 5, column 12 is not on the floor of the last room"),
        (changed("start", (5, 16)), "the start at row 5, column 16 is not on the floor of the first room"),
        (changed("start", (5, 19)), "the start at row 5, column 19 is not on the floor of the first room"),
        (changed("apple", (4, 20)), "the apple and the banana share a cell, row 4, column 20"),
    ],
)
def test_levels_that_cannot_be_played_are_refused(rooms, message):
    with pytest.raises(LevelError, match=message):
        check_rooms(rooms)


def test_rooms_that_do_not_follow_each_other_must_not_overlap():
    rooms = two_rooms()
    third = eqx.tree_at(
        lambda rooms: (rooms.count, rooms.corners, rooms.sizes, rooms.doors),
        rooms,
        (
            jnp.int32(3),
            rooms.corners.at[2].set(jnp.array([7, 14])),
            rooms.sizes.at[2].set(jnp.array([4, 8])),
            rooms.doors.at[1].set(jnp.array([7, 18])),
        ),
    )
    with pytest.raises(LevelError, match="rooms 1 and 3 overlap"):
        check_rooms(third)


@pytest.mark.parametrize("fruit", ["apple", "banana"])
def test_in_a_single_room_the_start_is_not_on_a_fruit(fruit):
    rooms = two_rooms()
    single = eqx.tree_at(
        lambda rooms: (rooms.count, rooms.apple, rooms.banana),
        rooms,
        (jnp.int32(1), jnp.array([4, 11]), jnp.array([6, 13])),
    )
    check_rooms(single)
    on_it = eqx.tree_at(lambda rooms: rooms.start, single, getattr(single, fruit))
    with pytest.raises(LevelError, match=f"the start and the {fruit} share a cell"):
        check_rooms(on_it)
