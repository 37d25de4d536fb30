"""How NetHack draws walls: by how a wall joins its neighbours, and by the sides it was seen from.

A wall never shows more than the hero knows. A T seen from one side only is drawn as a corner or as a plain wall, and a
wall with rock on one side stays blank until it is seen from the other. What is drawn depends on three things: how the
walls around it join it, where there is rock around it, and the set of directions it was seen from. The first two make
its *shape*, which never changes: one of twelve patterns, turned by some quarters. A table says what each shape looks
like for each of the 256 sets of directions.
"""

import enum
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int16, UInt8

from samplr.envs.fruit_choice.glyphs import Glyph
from samplr.envs.fruit_choice.terrain import COLUMNS, ROWS, Kind

NW, N, NE, E, SE, S, SW, W = (1 << i for i in range(8))
"""Directions are bits, clockwise, so that a quarter turn moves them by two places."""
OFFSETS = ((-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1))
"""The neighbour in each direction, in the same order."""


class Pattern(enum.IntEnum):
    """A wall, before it is turned, and where there is rock beside it."""

    LINE = 0
    """Runs from north to south."""
    LINE_ROCK_WEST = 1
    CORNER = 2
    """Goes east and south."""
    CORNER_ROCK_OUTSIDE = 3
    CORNER_ROCK_INSIDE = 4
    TEE = 5
    """Goes east, south and west."""
    TEE_ROCK_NORTH = 6
    TEE_ROCK_SOUTHWEST = 7
    TEE_ROCK_SOUTHEAST = 8
    CROSS = 9
    CROSS_ROCK_SOUTHEAST = 10
    CROSS_ROCK_BOTH = 11
    """Rock in the northwest and in the southeast."""


_CELLS = {Kind.STONE: Glyph.STONE, Kind.FLOOR: Glyph.FLOOR, Kind.STAIRS: Glyph.STAIRS}
_ALWAYS = (Glyph.STONE, Glyph.FLOOR, Glyph.STAIRS, Glyph.VERTICAL_DOOR, Glyph.HORIZONTAL_DOOR)
_FIRST_ALWAYS = 4 * len(Pattern)


def shape_of(glyph: Glyph) -> int:
    """The shape of what looks the same from everywhere."""
    return _FIRST_ALWAYS + _ALWAYS.index(glyph)


def wall_shapes(kind: UInt8[Array, "21 79"]) -> UInt8[Array, "21 79"]:
    """The shape of each cell of a level, which is its row in `LOOKS`."""
    door = kind == Kind.DOOR
    rock = (kind == Kind.STONE) | (kind == Kind.WALL)
    rock_around = _around(rock, outside=True)
    wall = (kind == Kind.WALL) & ~jnp.all(rock_around, axis=0)  # NetHack makes it stone where nobody can see it
    spines = _spines(_around(wall | door, outside=False), _around(rock | door, outside=True))

    shapes = jnp.full((ROWS, COLUMNS), shape_of(Glyph.STONE), jnp.uint8)
    for cell, glyph in _CELLS.items():
        shapes = jnp.where(kind == cell, shape_of(glyph), shapes)
    beside = _around((kind == Kind.WALL) | door, outside=False)
    horizontal = (beside[3] | beside[7]) & ~(beside[1] & beside[5])
    doors = jnp.where(horizontal, shape_of(Glyph.HORIZONTAL_DOOR), shape_of(Glyph.VERTICAL_DOOR))
    shapes = jnp.where(door, doors, shapes)
    for quarters in range(4):
        turned_back = jnp.roll(spines, -2 * quarters, axis=0), jnp.roll(rock_around, -2 * quarters, axis=0)
        for pattern, fits in _patterns(*turned_back).items():
            shapes = jnp.where(wall & fits, 4 * pattern + quarters, shapes)
    return shapes.astype(jnp.uint8)


def _around(cells: Bool[Array, "21 79"], *, outside: bool) -> Bool[Array, "8 21 79"]:
    """Of each cell its neighbours, clockwise from the northwest."""
    padded = jnp.pad(cells, 1, constant_values=outside)
    return jnp.stack([padded[1 + y : 1 + y + ROWS, 1 + x : 1 + x + COLUMNS] for y, x in OFFSETS])


def _spines(joined: Bool[Array, "8 21 79"], dark: Bool[Array, "8 21 79"]) -> Bool[Array, "8 21 79"]:
    """Towards which neighbours a wall goes on: those that are wall or door, but not into a thickness of walls.

    Only the four straight directions mean anything. A wall that goes nowhere is drawn as if it went north.
    """
    left, right = jnp.roll(dark, 1, axis=0), jnp.roll(dark, -1, axis=0)
    beside = jnp.roll(dark, 2, axis=0) & jnp.roll(dark, -2, axis=0)
    spines = joined & ~(left & right & beside)
    return spines.at[1].max(~jnp.any(spines[1::2], axis=0))


def _patterns(spines: Bool[Array, "8 21 79"], rock: Bool[Array, "8 21 79"]) -> dict[Pattern, Bool[Array, "21 79"]]:
    """Where each pattern fits as it is. Patterns that fit in several turns look the same in all of them."""
    _, north, _, east, _, south, _, west = spines
    r_nw, r_n, r_ne, r_e, r_se, _, r_sw, r_w = rock
    line = (north | south) & ~east & ~west
    corner = east & south & ~north & ~west
    outside = r_nw & r_n & r_w
    tee = east & south & west & ~north
    of_tee = r_n.astype(int) + r_sw + r_se
    cross = east & south & west & north
    of_cross = r_nw.astype(int) + r_ne + r_se + r_sw
    opposite = (r_nw == r_se) & (r_ne == r_sw) & (of_cross == 2)
    return {
        Pattern.LINE: line & (r_w == r_e),
        Pattern.LINE_ROCK_WEST: line & r_w & ~r_e,
        Pattern.CORNER: corner & ~outside & ~r_se,
        Pattern.CORNER_ROCK_OUTSIDE: corner & outside & ~r_se,
        Pattern.CORNER_ROCK_INSIDE: corner & r_se,
        Pattern.TEE: tee & (of_tee != 1),
        Pattern.TEE_ROCK_NORTH: tee & r_n & (of_tee == 1),
        Pattern.TEE_ROCK_SOUTHWEST: tee & r_sw & (of_tee == 1),
        Pattern.TEE_ROCK_SOUTHEAST: tee & r_se & (of_tee == 1),
        Pattern.CROSS: cross & (of_cross != 1) & ~opposite,
        Pattern.CROSS_ROCK_SOUTHEAST: cross & r_se & (of_cross == 1),
        Pattern.CROSS_ROCK_BOTH: cross & r_nw & opposite,
    }


def _line_rock_west(seen: int) -> Glyph:
    return Glyph.VERTICAL_WALL if seen & (N | NE | E | SE | S) else Glyph.STONE


def _corner_rock_outside(seen: int) -> Glyph:
    return Glyph.TOP_LEFT_CORNER if seen & (E | SE | S) else Glyph.STONE


def _corner_rock_inside(seen: int) -> Glyph:
    return Glyph.STONE if _only(seen, SE) else Glyph.TOP_LEFT_CORNER


def _tee(seen: int) -> Glyph:
    if seen in (SE, SW):
        return Glyph.TOP_LEFT_CORNER if seen == SE else Glyph.TOP_RIGHT_CORNER
    return Glyph.T_DOWN if seen & (E | SE | S | SW | W) else Glyph.HORIZONTAL_WALL


def _tee_rock_north(seen: int) -> Glyph:
    east, west = bool(seen & (E | SE)), bool(seen & (SW | W))
    if seen & S or (east and west):
        return Glyph.T_DOWN
    if east or west:
        return Glyph.TOP_LEFT_CORNER if east else Glyph.TOP_RIGHT_CORNER
    return Glyph.STONE


def _tee_rock_southwest(seen: int) -> Glyph:
    if _only(seen, SE | S):
        return Glyph.TOP_LEFT_CORNER
    if seen & (E | SE | S):
        return Glyph.T_DOWN
    return Glyph.STONE if _only(seen, SW) else Glyph.HORIZONTAL_WALL


def _tee_rock_southeast(seen: int) -> Glyph:
    if _only(seen, S | SW):
        return Glyph.TOP_RIGHT_CORNER
    if seen & (S | SW | W):
        return Glyph.T_DOWN
    return Glyph.STONE if _only(seen, SE) else Glyph.HORIZONTAL_WALL


def _cross(seen: int) -> Glyph:
    """Seen into one quarter only, it is a corner; into the two on one side, a T."""
    for quarters in range(4):
        if seen == _turned(NW, quarters):
            return turned(Glyph.BOTTOM_RIGHT_CORNER, quarters)
        if _only(seen, _turned(NW | N | NE, quarters)) and seen != _turned(NE, quarters):
            return turned(Glyph.T_UP, quarters)
    return Glyph.CROSS_WALL


def _cross_rock_southeast(seen: int) -> Glyph:
    if _only(seen, SE):
        return Glyph.STONE
    if _only(seen, SE | NW):
        return Glyph.BOTTOM_RIGHT_CORNER
    if seen & (N | NE | E) and seen & (S | SW | W):
        return Glyph.CROSS_WALL
    if seen & (N | NE | E):
        return Glyph.T_UP if seen & (NW | N) else Glyph.BOTTOM_LEFT_CORNER
    return Glyph.T_LEFT if seen & (NW | W) else Glyph.TOP_RIGHT_CORNER


def _cross_rock_both(seen: int) -> Glyph:
    if _only(seen, NW | SE):
        return Glyph.STONE
    if _only(seen, N | NE | E):
        return Glyph.BOTTOM_LEFT_CORNER
    return Glyph.TOP_RIGHT_CORNER if _only(seen, S | SW | W) else Glyph.CROSS_WALL


_LOOK: dict[Pattern, Callable[[int], Glyph]] = {
    Pattern.LINE: lambda seen: Glyph.VERTICAL_WALL,
    Pattern.LINE_ROCK_WEST: _line_rock_west,
    Pattern.CORNER: lambda seen: Glyph.TOP_LEFT_CORNER,
    Pattern.CORNER_ROCK_OUTSIDE: _corner_rock_outside,
    Pattern.CORNER_ROCK_INSIDE: _corner_rock_inside,
    Pattern.TEE: _tee,
    Pattern.TEE_ROCK_NORTH: _tee_rock_north,
    Pattern.TEE_ROCK_SOUTHWEST: _tee_rock_southwest,
    Pattern.TEE_ROCK_SOUTHEAST: _tee_rock_southeast,
    Pattern.CROSS: _cross,
    Pattern.CROSS_ROCK_SOUTHEAST: _cross_rock_southeast,
    Pattern.CROSS_ROCK_BOTH: _cross_rock_both,
}
"""What each pattern looks like when seen from some directions, at least one."""

_TURNS = (
    (Glyph.VERTICAL_WALL, Glyph.HORIZONTAL_WALL),
    (Glyph.TOP_LEFT_CORNER, Glyph.TOP_RIGHT_CORNER, Glyph.BOTTOM_RIGHT_CORNER, Glyph.BOTTOM_LEFT_CORNER),
    (Glyph.T_DOWN, Glyph.T_LEFT, Glyph.T_UP, Glyph.T_RIGHT),
    (Glyph.CROSS_WALL,),
    (Glyph.STONE,),
)
"""What becomes of a glyph by quarter turns to the right."""


def turned(glyph: Glyph, quarters: int) -> Glyph:
    """A wall's glyph after some quarter turns to the right."""
    cycle = next(cycle for cycle in _TURNS if glyph in cycle)
    return cycle[(cycle.index(glyph) + quarters) % len(cycle)]


def _turned(directions: int, quarters: int) -> int:
    places = 2 * (quarters % 4)
    return (directions << places | directions >> (8 - places)) & 0xFF


def _only(seen: int, directions: int) -> bool:
    return not seen & ~directions


def _looks() -> Int16[np.ndarray, "53 256"]:
    looks = np.empty((_FIRST_ALWAYS + len(_ALWAYS), 256), np.int16)
    for pattern, look in _LOOK.items():
        for quarters in range(4):
            looks[4 * pattern + quarters] = [turned(look(_turned(seen, -quarters)), quarters) for seen in range(256)]
    looks[_FIRST_ALWAYS:] = np.array(_ALWAYS)[:, None]
    return looks


LOOKS = _looks()
"""The glyph of each shape, for each set of directions it was seen from."""
