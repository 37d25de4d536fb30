"""Rooms in a chain, laid as MultiRoom lays them (the mazes behind MiniHack's), and which rooms make a level.

A chain grows room by room. The next room shares a wall with the last, and the wall holds a door. Where eight tries to
lay it fail, the chain begins anew, until it has as many rooms as wanted.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from samplr.envs.fruit_choice.terrain import MAX_ROOMS, Cell, Rooms
from samplr.errors import LevelError

MIN_SIZE, MAX_SIZE = 4, 8
"""Sides of a room, its walls included."""
TRIES = 8

ORIGIN, GRID = (0, 2), (21, 76)
"""MiniHack's grid of rooms: where its first cell lies on the map, and its height and width."""
_FIRST_CORNERS = (17, 74)
"""Rows and columns in which the first room may begin; MultiRoom draws lower rows too, and rejects them all."""
_REACH = (20, 76)
"""Where rooms end at the latest: MultiRoom leaves the last row free, and not the last column."""

_RIGHT, _BELOW, _LEFT, _ABOVE = range(4)
_INSIDE = np.stack(np.meshgrid(np.arange(1, MAX_SIZE - 1), np.arange(1, MAX_SIZE - 1), indexing="ij"), -1)


class _Chain(eqx.Module):
    """A chain that grows, in cells of the grid."""

    length: Int[Array, ""]
    corners: Int[Array, "8 2"]
    sizes: Int[Array, "8 2"]
    doors: Int[Array, "7 2"]
    entry: Int[Array, ""]
    """In which of its walls the last room has its entry."""
    key: PRNGKeyArray


class _Try(eqx.Module):
    """A room that may come next, the door to it, and the wall of it that holds the door."""

    corner: Cell
    size: Int[Array, "2"]
    door: Cell
    entry: Int[Array, ""]


def sample_rooms(max_rooms: int, *, key: PRNGKeyArray) -> Rooms:
    """A level of 1 to `max_rooms` rooms, each number as likely."""
    count_key, rooms_key = jax.random.split(key)
    return chain_of_rooms(jax.random.randint(count_key, (), 1, max_rooms + 1), key=rooms_key)


def chain_of_rooms(count: Int[Array, ""] | int, *, key: PRNGKeyArray) -> Rooms:
    """A level of so many rooms: the hero begins in the first, the fruits lie on two other cells of the last."""
    chain_key, start_key, fruit_key = jax.random.split(key, 3)
    nothing = jnp.zeros((MAX_ROOMS, 2), jnp.int32)
    chain = _Chain(jnp.int32(0), nothing, nothing, nothing[1:], jnp.int32(_LEFT), chain_key)
    chain = jax.lax.while_loop(lambda chain: chain.length < count, _grow, chain)
    # Begun anew, a chain may still hold rooms of a longer one before it.
    there = (jnp.arange(MAX_ROOMS) < count)[:, None]
    corners = jnp.where(there, chain.corners + jnp.array(ORIGIN), 0)
    sizes = jnp.where(there, chain.sizes, 0)
    doors = jnp.where(there[1:], chain.doors + jnp.array(ORIGIN), 0)
    (start,) = _cells_of(corners[0], sizes[0], 1, jnp.array([-1, -1]), key=start_key)
    apple, banana = _cells_of(corners[count - 1], sizes[count - 1], 2, start, key=fruit_key)
    return Rooms(jnp.asarray(count, jnp.int32), corners, sizes, doors, start, apple, banana)


def _grow(chain: _Chain) -> _Chain:
    """Add the first of eight rooms that fits; where none does, begin anew."""
    key, first_key, next_key = jax.random.split(chain.key, 3)
    first = jax.vmap(lambda key: _first_room(key=key))(jax.random.split(first_key, TRIES))
    after = jax.vmap(lambda key: _next_room(chain, key=key))(jax.random.split(next_key, TRIES))
    tries: _Try = jax.tree.map(lambda a, b: jnp.where(chain.length == 0, a, b), first, after)
    fits = jax.vmap(lambda room: _fits(chain, room))(tries)
    room: _Try = jax.tree.map(lambda leaf: leaf[jnp.argmax(fits)], tries)
    return _Chain(
        length=jnp.where(jnp.any(fits), chain.length + 1, 0),
        corners=chain.corners.at[chain.length].set(room.corner),
        sizes=chain.sizes.at[chain.length].set(room.size),
        # The first room has no door to it: its index is out of range, and nothing is written.
        doors=chain.doors.at[jnp.where(chain.length == 0, MAX_ROOMS, chain.length - 1)].set(room.door, mode="drop"),
        entry=room.entry,
        key=key,
    )


def _first_room(*, key: PRNGKeyArray) -> _Try:
    """Anywhere; MultiRoom has it entered from the left, so that no door to the next room is there."""
    size_key, corner_key = jax.random.split(key)
    corner = jax.random.randint(corner_key, (2,), 0, jnp.array(_FIRST_CORNERS))
    return _Try(corner, _size(key=size_key), corner, jnp.int32(_LEFT))


def _next_room(chain: _Chain, *, key: PRNGKeyArray) -> _Try:
    """Behind a door in any wall of the last room but that of its entry, and moved along that wall at random."""
    size_key, wall_key, door_key, shift_key = jax.random.split(key, 4)
    last_corner, last_size, size = chain.corners[chain.length - 1], chain.sizes[chain.length - 1], _size(key=size_key)
    wall = (chain.entry + jax.random.randint(wall_key, (), 1, 4)) % 4
    across = jnp.array([(wall == _BELOW) | (wall == _ABOVE), (wall == _RIGHT) | (wall == _LEFT)])
    beyond = (wall == _RIGHT) | (wall == _BELOW)
    along = last_corner + jax.random.randint(door_key, (2,), 1, last_size - 1)
    door = jnp.where(across, last_corner + jnp.where(beyond, last_size - 1, 0), along)
    shifted = door - jax.random.randint(shift_key, (2,), 1, size - 1)
    corner = jnp.where(across, jnp.where(beyond, door, door - size + 1), shifted)
    return _Try(corner, size, door, (wall + 2) % 4)


def _size(*, key: PRNGKeyArray) -> Int[Array, "2"]:
    return jax.random.randint(key, (2,), MIN_SIZE, MAX_SIZE + 1)


def _fits(chain: _Chain, room: _Try) -> Bool[Array, ""]:
    """Whether a room lies on the grid and clear of all rooms but the last, whose wall it shares.

    As in MultiRoom, it may touch a room above it or to its left, and keeps a cell away from others.
    """
    end = room.corner + room.size
    on_grid = jnp.all((room.corner >= 0) & (end <= jnp.array(_REACH)))
    clear = jnp.any((end < chain.corners) | (chain.corners + chain.sizes <= room.corner), axis=-1)
    return on_grid & jnp.all(clear | (jnp.arange(MAX_ROOMS) >= chain.length - 1))


def _cells_of(corner: Cell, size: Int[Array, "2"], number: int, but: Cell, *, key: PRNGKeyArray) -> Int[Array, "n 2"]:
    """Different floor cells of a room, each as likely, and none of them `but`."""
    cells = (corner + _INSIDE).reshape(-1, 2)
    allowed = jnp.all(cells < corner + size - 1, -1) & jnp.any(cells != but, -1)
    _, chosen = jax.lax.top_k(jnp.where(allowed, jax.random.uniform(key, allowed.shape), -1.0), number)
    return cells[chosen]


def check_rooms(rooms: Rooms) -> None:
    """Raise `LevelError` where rooms make no level that can be played."""
    count = int(rooms.count)
    if not 1 <= count <= MAX_ROOMS:
        raise LevelError(f"a level has 1 to {MAX_ROOMS} rooms, not {count}")
    corners, sizes = np.asarray(rooms.corners)[:count], np.asarray(rooms.sizes)[:count]
    ends = corners + sizes - 1
    for i in range(count):
        if np.any(sizes[i] < 3):
            raise LevelError(f"room {i + 1} is {_by(sizes[i])}; with its walls a room is at least 3 by 3")
        if np.any(corners[i] < ORIGIN) or np.any(ends[i] >= np.add(ORIGIN, GRID)):
            raise LevelError(f"room {i + 1} does not lie on the map: rows 0 to 20, columns 2 to 77")
        for j in range(i - 1):
            if np.all(_overlap(corners, ends, i, j) > 0):
                raise LevelError(f"rooms {j + 1} and {i + 1} overlap")
    for i in range(count - 1):
        _check_door(i, corners, ends, np.asarray(rooms.doors)[i])
    _check_cells(rooms, corners, ends)


def _overlap(corners: np.ndarray, ends: np.ndarray, i: int, j: int) -> np.ndarray:
    """How many rows and columns two rooms have in common."""
    return np.minimum(ends[i], ends[j]) - np.maximum(corners[i], corners[j]) + 1


def _check_door(i: int, corners: np.ndarray, ends: np.ndarray, door: np.ndarray) -> None:
    """The rooms before and behind a door share one wall, and the door is in it."""
    names, overlap = f"{i + 1} and {i + 2}", _overlap(corners, ends, i, i + 1)
    if overlap.min() > 1:
        raise LevelError(f"rooms {names} overlap by more than a wall")
    if overlap.min() < 1 or overlap.max() == 1:
        raise LevelError(f"rooms {names} share no wall")
    first, last = np.maximum(corners[i], corners[i + 1]), np.minimum(ends[i], ends[i + 1])
    # Across the wall the two agree, along it the door keeps off the corners of both.
    inside = np.where(overlap == 1, door == first, (door > first) & (door < last))
    if not inside.all():
        raise LevelError(f"the door at {_at(door)} is not in the wall that rooms {names} share, or in its corner")


def _check_cells(rooms: Rooms, corners: np.ndarray, ends: np.ndarray) -> None:
    """Hero and fruits lie on cells of their own, on the floor of their rooms."""
    start, apple, banana = (np.asarray(cell) for cell in (rooms.start, rooms.apple, rooms.banana))
    for name, cell, room in (("start", start, 0), ("apple", apple, -1), ("banana", banana, -1)):
        if not np.all((cell > corners[room]) & (cell < ends[room])):
            which = "last" if room else "first"
            raise LevelError(f"the {name} at {_at(cell)} is not on the floor of the {which} room")
    pairs = (("apple", apple, "banana", banana), ("start", start, "apple", apple), ("start", start, "banana", banana))
    for name, cell, other, its in pairs:
        if np.all(cell == its):
            raise LevelError(f"the {name} and the {other} share a cell, {_at(cell)}")


def _by(size: np.ndarray) -> str:
    return f"{size[0]} by {size[1]}"


def _at(cell: np.ndarray) -> str:
    return f"row {cell[0]}, column {cell[1]}"
