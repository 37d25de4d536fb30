"""What NetHack's hero can see, where everything is lit.

NetHack looks along *fingers* of light: in each quarter of the map it goes from row to row away from the hero, and a
stretch of a row that is seen lets light fall on the row behind it. Where such a stretch begins, and how far it reaches
behind a corner, is a matter of Bresenham's lines from the hero (`vision.c`, algorithm C). This is the same rule, told
so that many heroes can look at once:

- The lines to all cells are tested together. The cells of a line that lie in one row are neighbours, so that one look
  at where the next blocked cell is tests them all: 20 lookups for a cell, 33,180 in all.
- The fingers of a row are found together, for the four quarters side by side: of the row one needs to know its runs of
  clear cells, of which there are no more than rooms, and of the row before its few fingers.

So a look takes 19 rows one after another, each of some dozens of operations on a dozen numbers, and before and after
them operations on the whole map at once. The lines and the rows cost about the same; masks of bits for the lines are as
fast on a CPU, but read ten times as much memory.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int8, Int16, UInt32

from samplr.envs.fruit_choice.terrain import COLUMNS, MAX_ROOMS, ROWS, Cell

RUNS = MAX_ROOMS
"""Runs of clear cells in a row: each has the floor of a room in it, or is a door between two rooms above and below."""
FINGERS = RUNS
"""Fingers in a row of a quarter. Next to the hero's row a run of clear cells has one at most, and no map is wide enough
for more than five. Further away a run can have several, but hardly any runs have one: of 72,000 quarters of odd levels
none had a row with more than three.
"""
_DEPTH = ROWS - 1
"""Rows in a quarter, with the hero's: the hero is never in the outermost."""
_LAST_WALL = COLUMNS - 2
"""The column beyond which there is but one. NetHack's map has two more on the left, so that no wall is like that there.
"""
_WORD = 32
_WORDS = 3
_NOWHERE = _WORD * _WORDS

Grid = Bool[Array, "21 79"]


class _Chart(eqx.Module):
    """Where to go on in each row, on the way to the right."""

    next_blocked: Int8[Array, "*rows 79"]
    """From each cell, the column of the next blocked one, or of the cell itself."""
    next_lined: Int8[Array, "*rows 79"]
    """The next clear cell that has a clear line to the hero."""
    next_unlined: Int8[Array, "*rows 79"]
    """The next cell of any kind that has none."""
    runs: Int8[Array, "*rows 8"]
    """Where runs of clear cells begin, of those that begin to the right of the hero."""


class _Fingers(eqx.Module):
    """Stretches of a row that let light fall on the next one, each as one number.

    The smaller the number, the further left a stretch begins, and of those that begin at the same cell, the longer it
    is. `_NONE` is a stretch that ends before it begins.
    """

    code: Int[Array, "*rows fingers"]

    @staticmethod
    def of(left: Int[Array, "*rows"], right: Int[Array, "*rows"], ends_clear: Bool[Array, "*rows"]) -> "_Fingers":
        """Stretches from `left` to `right`, whose last cell may be clear or blocked."""
        return _Fingers(left << 8 | (127 - right) << 1 | ends_clear)

    @property
    def left(self) -> Int[Array, "*rows fingers"]:
        return self.code >> 8

    @property
    def right(self) -> Int[Array, "*rows fingers"]:
        return 127 - (self.code >> 1 & 127)

    @property
    def ends_clear(self) -> Bool[Array, "*rows fingers"]:
        return (self.code & 1) == 1


_NONE = 127 << 8 | 127 << 1


def could_see(clear: Grid, hero: Cell) -> Grid:
    """The cells in sight of a hero who stands on a clear cell; blocked cells that end the sight are among them.

    **Arguments:**

    - `clear`: the cells that can be seen through. On the edge of the map there are none, nor in the columns next to it.
    - `hero`: where the hero stands.
    """
    # Looking left is looking right in a mirror.
    clears = jnp.stack([clear, clear[:, ::-1]])
    columns = jnp.stack([hero[1], COLUMNS - 1 - hero[1]])
    next_blocked = _next(~clears)
    lines = _lines_are_clear(next_blocked, hero)
    charts = jax.vmap(_chart)(clears, jnp.stack([lines, lines[:, ::-1]]), next_blocked, columns)
    quarters = jax.vmap(jax.vmap(_look, (None, None, None, 0)), (0, 0, None, None))
    fingers, reach = quarters(charts, columns, hero[0], jnp.array([1, -1]))
    seen = jax.vmap(partial(_seen, row=hero[0]))(clears, fingers, reach)
    return seen[0] | seen[1][:, ::-1]


def _chart(clear: Grid, lines: Grid, next_blocked: Int8[Array, "21 79"], column: Int[Array, ""]) -> _Chart:
    begins = clear & ~jnp.pad(clear, ((0, 0), (1, 0)))[:, :-1] & (jnp.arange(COLUMNS) > column)
    words, runs = _packed(begins), []
    for _ in range(RUNS):
        runs.append(_lowest(words))
        words &= ~_bit(runs[-1])
    return _Chart(next_blocked, _next(clear & lines), _next(~lines), jnp.stack(runs, axis=-1))


def _look(
    chart: _Chart, column: Int[Array, ""], row: Int[Array, ""], step: Int[Array, ""]
) -> tuple[_Fingers, Int[Array, "19 fingers"]]:
    """The fingers of each row of a quarter, the hero's first, and how far they light the blocked cells of the next."""
    wall = chart.next_blocked[row, column].astype(int)
    first = _Fingers(jnp.full(FINGERS, _NONE).at[0].set(_Fingers.of(column, wall, jnp.array(False)).code))
    rows = row + step * jnp.arange(1, _DEPTH)
    _, (fingers, reach) = jax.lax.scan(partial(_next_row, chart, column), first, rows)
    return _Fingers(jnp.concatenate([first.code[None], fingers.code])), reach


def _next_row(
    chart: _Chart, column: Int[Array, ""], fingers: _Fingers, row: Int[Array, ""]
) -> tuple[_Fingers, tuple[_Fingers, Int[Array, " fingers"]]]:
    """What fingers of light show of the next row: stretches that begin with clear cells, and blocked cells."""

    def at(table: Int8[Array, "21 width"], columns: Int[Array, "*some"]) -> Int[Array, "*some"]:
        return table.at[row, columns].get(mode="clip", wrap_negative_indices=False).astype(int)

    runs = at(chart.runs, jnp.arange(RUNS))
    # Light enters a run of clear cells at its beginning, or where a finger begins inside of it. Of fingers that enter
    # at the same cell only the one that reaches furthest matters.
    passes = (fingers.left < runs[:, None]) & (fingers.right >= runs[:, None])
    entry = jnp.concatenate([runs, fingers.left])
    mark = jnp.concatenate([jnp.max(jnp.where(passes, fingers.right, -1), axis=1), fingers.right])
    end, left = at(chart.next_blocked, entry), at(chart.next_lined, entry)
    right = jnp.where(mark < end, jnp.minimum(at(chart.next_unlined, mark) - 1, end), end)
    # Next to the hero's own column a wall is seen, however narrow the stretch.
    beside = (left == right) & (left == column) & (at(chart.next_blocked, column + 1) == column + 1)
    right = jnp.where(beside, column + 1, right)
    on_map = (row >= 0) & (row < ROWS)
    entered = on_map & (entry <= mark) & (left < end)
    stretches = _Fingers.of(left, right, right < end)
    behind = _distinct(jnp.where(entered & (left <= right), stretches.code, _NONE))

    # A wall that goes on past the end of a finger is seen one cell further, unless a stretch ends with it.
    enters = jnp.concatenate([passes, jnp.eye(FINGERS, dtype=bool)])
    ends_stretch = jnp.any(enters & entered[:, None] & (end[:, None] == fingers.right), axis=0)
    goes_on = fingers.ends_clear & (at(chart.next_blocked, fingers.right) == fingers.right) & ~ends_stretch
    # At the edge of the map a wall behind clear cells is not seen where no line leads to any of them, nor to the wall.
    unseen = (
        (entry < end) & (entry <= mark) & (left >= end) & (at(chart.next_unlined, end) == end) & (end == _LAST_WALL)
    )
    stops = jnp.any(enters & unseen[:, None] & (fingers.right == _LAST_WALL), axis=0)
    return behind, (behind, fingers.right + goes_on - stops)


def _distinct(codes: Int[Array, " entries"]) -> _Fingers:
    """Of stretches that begin at the same cell the longest, moved to the front."""
    entries = jnp.arange(len(codes))
    before = (codes < codes[:, None]) | ((codes == codes[:, None]) & (entries < entries[:, None]))
    keep = (codes != _NONE) & ~jnp.any(before & (codes >> 8 == codes[:, None] >> 8), axis=1)
    place = jnp.sum(before & keep, axis=1)
    return _Fingers(jnp.min(jnp.where(keep & (place == jnp.arange(FINGERS)[:, None]), codes, _NONE), axis=1))


def _seen(clear: Grid, fingers: _Fingers, reach: Int[Array, "2 19 fingers"], *, row: Int[Array, ""]) -> Grid:
    """The cells in stretches of their row, and blocked ones in the light from the row before."""
    away = jnp.arange(ROWS) - row
    half, distance = (away < 0).astype(int), jnp.minimum(jnp.abs(away), _DEPTH - 1)
    cells = jnp.arange(COLUMNS)[:, None]
    here = _Fingers(fingers.code[half, distance][:, None])
    in_stretch = jnp.any((here.left <= cells) & (cells <= here.right), axis=-1)
    before = jnp.maximum(distance - 1, 0)  # in the hero's own row the stretch holds all there is to see
    left = _Fingers(fingers.code[half, before]).left[:, None]
    in_light = jnp.any((left <= cells) & (cells <= reach[half, before][:, None]), axis=-1)
    return in_stretch | (in_light & ~clear & (distance > 0)[:, None])


def _lines_are_clear(next_blocked: Int8[Array, "2 21 79"], hero: Cell) -> Grid:
    """Whether all cells strictly between the hero and a cell are clear, along Bresenham's line."""
    down, right = jnp.arange(ROWS)[:, None] - hero[0], jnp.arange(COLUMNS) - hero[1]
    to = jnp.minimum(jnp.abs(down), _DEPTH - 1), jnp.abs(right)
    part = jnp.asarray(_LINES).at[:, *to].get(mode="promise_in_bounds").astype(int)
    side = (right < 0).astype(int)
    row = jnp.clip(hero[0] + jnp.sign(down) * jnp.arange(_DEPTH)[:, None, None], 0, ROWS - 1)
    first = jnp.where(side, COLUMNS - 1 - hero[1], hero[1]) + part % _WIDTH
    wall = next_blocked.at[side, row, jnp.minimum(first, COLUMNS - 1)].get(mode="promise_in_bounds")
    return jnp.all(wall >= first + part // _WIDTH, axis=0)


def _bresenham() -> Int16[np.ndarray, "20 20 79"]:
    """The part in each row of the line to each cell down and to the right, between its ends: first column, and length.

    The line goes along its longer side, and a step across whenever its error, twice the short side less the long one at
    first, is not negative.
    """
    first, length = np.zeros((2, _DEPTH, _DEPTH, COLUMNS), np.int16)
    for row in range(_DEPTH):
        for column in range(COLUMNS):
            long, short = max(row, column), min(row, column)
            error, across = 2 * short - long, 0
            for along in range(1, long):
                if error >= 0:
                    across, error = across + 1, error - 2 * long
                error += 2 * short
                y, x = (along, across) if row > column else (across, along)
                if not length[y, row, column]:
                    first[y, row, column] = x
                length[y, row, column] += 1
    return first + _WIDTH * length


_WIDTH = 128  # room for a column, in a number that holds a length too
_LINES = _bresenham()


def _next(cells: Bool[Array, "*rows 79"]) -> Int8[Array, "*rows 79"]:
    """From each cell the column of the next one in `cells`, which may be the cell itself."""
    at_or_after = _packed(jnp.triu(jnp.ones((COLUMNS, COLUMNS), bool)))
    return _lowest(_packed(cells)[..., None, :] & at_or_after)


def _packed(cells: Bool[Array, "*rows 79"]) -> UInt32[Array, "*rows 3"]:
    """A row as the bits of a few words."""
    bits = jnp.pad(cells, [(0, 0)] * (cells.ndim - 1) + [(0, _NOWHERE - COLUMNS)]).astype(jnp.uint32)
    return jnp.sum(bits.reshape(*cells.shape[:-1], _WORDS, _WORD) << jnp.arange(_WORD, dtype=jnp.uint32), -1)


def _lowest(words: UInt32[Array, "*rows 3"]) -> Int8[Array, "*rows"]:
    """The column of the first bit that is set, or `_NOWHERE`."""
    below = jax.lax.population_count(~words & (words - 1))  # all bits of a word where none is set
    column = jnp.full(words.shape[:-1], _NOWHERE, jnp.int8)
    for i in reversed(range(_WORDS)):
        column = jnp.where(words[..., i] == 0, column, (_WORD * i + below[..., i]).astype(jnp.int8))
    return column


def _bit(column: Int8[Array, "*rows"]) -> UInt32[Array, "*rows 3"]:
    """The words in which only this bit is set."""
    shift = column[..., None].astype(int) - _WORD * jnp.arange(_WORDS)
    return jnp.where((shift >= 0) & (shift < _WORD), jnp.uint32(1) << shift.astype(jnp.uint32), jnp.uint32(0))
