"""The road as a map of cells: which tile or kerb is seen at every place, worked out once per rollout.

A frame then looks its points up instead of testing them against hundreds of tiles.
"""

import functools
import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int16

from samplr.envs.black_ice.tracks import HALF_WIDTH, Track

KERB_WIDTH = 8 / 6.0
EMPTY = -1
"""What the raster holds where there is neither tile nor kerb."""

# A kerb stands where the road turns by more than this per tile, to the same side, over so many tiles in a row.
_SHARP = 0.31 * 0.2
_RUN = 4
# The simulator's polygons own the pixels on their outline: they reach half a pixel of its window further than drawn.
_OUTLINE = 0.5 / 16.2
# Quads of width w and length l whose widths point everywhere are as high as √(w² + l²) at most. A tile with its kerb is
# 14.7 u wide, and 3.5 u long on average on the longest tracks; one cell more each for the fraction of a cell.
_ROWS_PER_TILE = 17.0
_LONGEST_ROW = 32.0
COARSEST_CELL = _LONGEST_ROW / 2


class Raster(eqx.Module):
    """What is seen at every cell of the square |x|, |y| ≤ extent: 2i for tile i, 2i+1 for its kerb, or `EMPTY`.

    Its outermost cells are empty, so a place outside may be looked up at the nearest cell inside.
    """

    keys: Int16[Array, "rows cols"]
    cell: float = eqx.field(static=True)
    extent: float = eqx.field(static=True)


def kerbs(track: Track) -> Int[Array, " tiles"]:
    """The side of every tile's kerb: −1 left, +1 right, 0 where it has none.

    The simulator's rule but for one thing: there, headings that jump by 2π look like a sharp turn.
    """
    turn = track.heading - jnp.roll(track.heading, 1)
    turn = (turn + jnp.pi) % (2 * jnp.pi) - jnp.pi
    sharp = jnp.where(jnp.abs(turn) > _SHARP, jnp.sign(turn), 0.0)
    in_a_row = jnp.abs(jnp.sum(_rolled(sharp, range(_RUN)), axis=0)) == _RUN
    # The simulator goes through its list once to mark the tiles before as well. What the first tiles mark at the end of
    # the loop is therefore marked when it comes there, and goes further back.
    index = jnp.arange(turn.size)
    end = _with_those_before(in_a_row & (index < _RUN - 1)) & (index > turn.size - _RUN)
    return jnp.where(_with_those_before(in_a_row | end), -jnp.sign(turn), 0.0).astype(int)


def kerb_quads(track: Track) -> Float[Array, "tiles 4 2"]:
    """The corners of every tile's kerb, the far end first; where `kerbs` is 0 they lie in one line."""
    return _quads(track, kerbs(track)[:, None] * jnp.array([HALF_WIDTH, HALF_WIDTH + KERB_WIDTH]))


def rasterise(track: Track, *, cell: float, extent: float) -> Raster:
    """Paint tile 0, its kerb, tile 1, its kerb, … over one another into cells of about this side.

    Every quad is cut into rows of cells, and every row into blocks as a binary tree does: single cells at its ends,
    blocks of 2, 4, … towards its middle. Blocks of one size are scattered together. That is a tenth of the scattered
    numbers that a cell by cell painting needs, and twice the memory of the raster.
    """
    largest = 1 << math.floor(math.log2(_LONGEST_ROW / cell / 2))
    side = math.ceil(2 * extent / cell / largest) * largest
    quads = (_painted(track) + extent) / cell - 0.5
    quad, row = _rows(quads, total=math.ceil(_ROWS_PER_TILE / cell) * track.heading.size)
    start, stop = _spans(quads[quad], row)
    inside = (start > 0) & (stop < side) & (row > 0) & (row < side - 1)
    start = jnp.where(inside, start, stop)
    layers = []
    for power in range(largest.bit_length()):
        blocks, start, stop = _blocks(start, stop, last=1 << power == largest)
        layer = jnp.full((side, side >> power), EMPTY, jnp.int16)
        layers.append(layer.at[row, blocks].max(quad.astype(jnp.int16), mode="drop"))
    return Raster(functools.reduce(_refined, reversed(layers)), cell, extent)


def _painted(track: Track) -> Float[Array, "quads 4 2"]:
    """Tiles and kerbs in the order they are painted, with their outline. A kerb that is not there is a point."""
    edge = HALF_WIDTH + _OUTLINE
    tiles = _quads(track, jnp.array([[-edge, edge]]))
    side = kerbs(track)[:, None]
    kerb = _quads(track, side * jnp.array([HALF_WIDTH - _OUTLINE, HALF_WIDTH + KERB_WIDTH + _OUTLINE]))
    kerb = jnp.where(side[:, None] == 0, 0.0, kerb)
    return jnp.stack([tiles, kerb], axis=1).reshape(-1, 4, 2)


def _quads(track: Track, offsets: Float[Array, "#tiles 2"]) -> Float[Array, "tiles 4 2"]:
    """The strip of every tile between two offsets from the centre line: far end, then near end the other way round."""
    across = jnp.stack([jnp.cos(track.heading), jnp.sin(track.heading)], axis=-1)[:, None]
    offsets = offsets[:, :, None]
    far = track.centre[:, None] + offsets * across
    near = jnp.roll(track.centre, 1, axis=0)[:, None] + offsets[:, ::-1] * jnp.roll(across, 1, axis=0)
    return jnp.concatenate([far, near], axis=1)


def _rows(quads: Float[Array, "quads 4 2"], *, total: int) -> tuple[Int[Array, " total"], Int[Array, " total"]]:
    """All rows of cells that any quad crosses, as pairs of quad and row; pairs left over are no rows of their quad."""
    first = jnp.ceil(jnp.min(quads[:, :, 1], axis=1)).astype(int)
    after = jnp.floor(jnp.max(quads[:, :, 1], axis=1)).astype(int) + 1
    count = after - first
    quad = jnp.repeat(jnp.arange(len(quads)), count, total_repeat_length=total)
    before = jnp.cumsum(count) - count
    return quad, jnp.arange(total) + (first - before)[quad]


def _spans(
    quads: Float[Array, "rows 4 2"], row: Int[Array, " rows"]
) -> tuple[Int[Array, "2 rows"], Int[Array, "2 rows"]]:
    """From which cell to before which the quad covers its row: one span, or two where it is bent or crosses itself."""
    crossings = []
    for corner in range(4):
        (x0, y0), (x1, y1) = quads[:, corner].T, quads[:, corner - 1].T
        x = x0 + (row - y0) / (y1 - y0) * (x1 - x0)
        crossings.append(jnp.where((y0 > row) != (y1 > row), x, jnp.inf))
    a, b, c, d = _sort4(*crossings)
    # Two edges of a row without any crossing are both infinite, and so is their span empty.
    cells = jnp.ceil(jnp.clip(jnp.stack([a, b, c, d]), -1.0, 1e6)).astype(int)
    return cells[0::2], cells[1::2]


def _sort4(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array, Array, Array]:
    """Sort four arrays elementwise; a network of five comparisons, because a sort along an axis does not fuse."""
    a, b, c, d = jnp.minimum(a, b), jnp.maximum(a, b), jnp.minimum(c, d), jnp.maximum(c, d)
    a, b, c, d = jnp.minimum(a, c), jnp.minimum(b, d), jnp.maximum(a, c), jnp.maximum(b, d)
    return a, jnp.minimum(b, c), jnp.maximum(b, c), d


def _blocks(start: Int[Array, "2 rows"], stop: Int[Array, "2 rows"], *, last: bool) -> tuple[Array, Array, Array]:
    """The blocks of this size in every span, and what is left of it for the blocks of twice the size.

    Only a block at an odd place at the start, or at an even one at the end, is no half of a larger one.
    """
    nothing = jnp.iinfo(jnp.int32).max
    some = start < stop
    first, final = (some, some) if last else (some & (start % 2 == 1), some & (stop % 2 == 1))
    blocks = jnp.stack([jnp.where(first, start, nothing), jnp.where(final, stop - 1, nothing)])
    return blocks, (start + first) // 2, (stop - final) // 2


def _refined(coarse: Int16[Array, "rows half"], fine: Int16[Array, "rows cols"]) -> Int16[Array, "rows cols"]:
    """Both layers in one, at the size of the finer blocks."""
    return jnp.maximum(jnp.repeat(coarse, 2, axis=1), fine)


def _with_those_before(marks: Bool[Array, " tiles"]) -> Bool[Array, " tiles"]:
    return jnp.any(_rolled(marks, range(0, -_RUN, -1)), axis=0)


def _rolled(values: Array, shifts: range) -> Array:
    return jnp.stack([jnp.roll(values, shift) for shift in shifts])
