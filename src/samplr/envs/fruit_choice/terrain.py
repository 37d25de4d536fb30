"""The map of a level: rooms in a chain, and what each cell of the map is made of.

Cells are (row, column) pairs in the coordinates of NetHack's map as an agent sees it: 21 rows of 79 columns.
"""

import enum

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt8

ROWS, COLUMNS = 21, 79
MAX_ROOMS = 8

Cell = Int[Array, "2"]
"""A (row, column) pair."""


class Rooms(eqx.Module):
    """A layout: rooms in a chain, each reached from the one before through a locked door."""

    count: Int[Array, ""]
    """How many of the rooms there are; the others, and the doors that would lead to them, mean nothing and are 0."""
    corners: Int[Array, "8 2"]
    """Of each room, the cell of its upper left corner, which is wall."""
    sizes: Int[Array, "8 2"]
    """Of each room, height and width with the walls."""
    doors: Int[Array, "7 2"]
    """The doors from each room to the next."""
    start: Cell
    """Where the hero begins, on the stairs: a floor cell of the first room."""
    apple: Cell
    banana: Cell


class Kind(enum.IntEnum):
    """What a cell is made of."""

    STONE = 0
    WALL = 1
    FLOOR = 2
    STAIRS = 3
    DOOR = 4


class Terrain(eqx.Module):
    """The map of a layout, before any door is broken."""

    kind: UInt8[Array, "21 79"]
    doors: Int[Array, "7 2"]
    count: Int[Array, ""]

    def clear(self, broken: Bool[Array, "7"]) -> Bool[Array, "21 79"]:
        """The cells that one can see through and walk on: floor, stairs and broken doors."""
        open_doors = jnp.zeros((ROWS, COLUMNS), bool).at[self.doors[:, 0], self.doors[:, 1]].max(broken)
        return (self.kind == Kind.FLOOR) | (self.kind == Kind.STAIRS) | (open_doors & (self.kind == Kind.DOOR))


class Scene(eqx.Module):
    """What can change on the map."""

    hero: Cell
    broken: Bool[Array, "7"]
    """Which doors are broken."""
    apple: Cell
    banana: Cell
    banana_on_top: Bool[Array, ""]
    """Which of the fruits is seen where both lie on one cell: the one that came last."""


def terrain_of(rooms: Rooms) -> Terrain:
    """Draw the rooms on the map."""
    rows, columns = jnp.arange(ROWS)[:, None, None], jnp.arange(COLUMNS)[None, :, None]
    there = jnp.arange(MAX_ROOMS) < rooms.count
    top, left = rooms.corners[:, 0], rooms.corners[:, 1]
    bottom, right = top + rooms.sizes[:, 0] - 1, left + rooms.sizes[:, 1] - 1
    covered = there & (rows >= top) & (rows <= bottom) & (columns >= left) & (columns <= right)
    inside = there & (rows > top) & (rows < bottom) & (columns > left) & (columns < right)
    kind = jnp.where(jnp.any(covered, -1), Kind.WALL, Kind.STONE)
    kind = jnp.where(jnp.any(inside, -1), Kind.FLOOR, kind).astype(jnp.uint8)
    door = jnp.where(jnp.arange(MAX_ROOMS - 1) < rooms.count - 1, Kind.DOOR, 0).astype(jnp.uint8)
    kind = kind.at[rooms.doors[:, 0], rooms.doors[:, 1]].max(door)
    return Terrain(kind.at[rooms.start[0], rooms.start[1]].set(Kind.STAIRS), rooms.doors, rooms.count)
