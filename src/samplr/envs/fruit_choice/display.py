"""What the hero sees and remembers of the map: the glyphs that NetHack shows.

In sight, a cell shows the hero, the upper fruit on it, or what it is made of. Out of sight it shows what was last seen
there, and floor turns dark. How a wall is drawn depends on all the directions it was seen from so far, so that they are
remembered too.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int16, UInt8

from samplr.envs.fruit_choice import walls
from samplr.envs.fruit_choice.glyphs import Glyph
from samplr.envs.fruit_choice.terrain import COLUMNS, ROWS, Cell, Kind, Scene, Terrain
from samplr.envs.fruit_choice.vision import could_see
from samplr.envs.fruit_choice.walls import wall_shapes

__all__ = ["Memory", "look", "nothing_seen", "wall_shapes"]


class Memory(eqx.Module):
    """What a hero has seen so far."""

    glyphs: Int16[Array, "21 79"]
    """What the map shows now, which is what an agent observes."""
    seen_from: UInt8[Array, "21 79"]
    """From which of the eight directions each cell was seen, a bit each."""


def nothing_seen() -> Memory:
    """Of a hero with closed eyes."""
    return Memory(jnp.full((ROWS, COLUMNS), Glyph.STONE, jnp.int16), jnp.zeros((ROWS, COLUMNS), jnp.uint8))


def look(terrain: Terrain, shapes: UInt8[Array, "21 79"], scene: Scene, memory: Memory) -> Memory:
    """Open the eyes after a step.

    **Arguments:**

    - `terrain`: the map.
    - `shapes`: how its walls and doors are drawn, `wall_shapes(terrain.kind)`.
    - `scene`: where everything is now.
    - `memory`: what was seen before.
    """
    clear = terrain.clear(scene.broken)
    seen = could_see(clear, scene.hero)
    seen_from = memory.seen_from | jnp.where(seen, _direction_to(scene.hero), jnp.uint8(0))
    glyphs = jnp.asarray(walls.LOOKS)[shapes, seen_from]
    glyphs = jnp.where(clear & (terrain.kind == Kind.DOOR), Glyph.BROKEN_DOOR, glyphs)
    glyphs = jnp.where(_at(scene.apple), Glyph.APPLE, glyphs)
    glyphs = jnp.where(_at(scene.banana) & (scene.banana_on_top | ~_at(scene.apple)), Glyph.BANANA, glyphs)
    remembered = jnp.where(memory.glyphs == Glyph.FLOOR, Glyph.DARK_FLOOR, memory.glyphs)
    glyphs = jnp.where(_at(scene.hero), Glyph.HERO, jnp.where(seen, glyphs, remembered))
    return Memory(glyphs.astype(jnp.int16), seen_from)


def _at(cell: Cell) -> Bool[Array, "21 79"]:
    return (jnp.arange(ROWS)[:, None] == cell[0]) & (jnp.arange(COLUMNS) == cell[1])


def _direction_to(hero: Cell) -> UInt8[Array, "21 79"]:
    """The bit of the direction in which each cell has the hero; no bit where the hero is."""
    below, right = jnp.sign(hero[0] - jnp.arange(ROWS)[:, None]), jnp.sign(hero[1] - jnp.arange(COLUMNS))
    bits = jnp.zeros((ROWS, COLUMNS), jnp.uint8)
    for i, (down, east) in enumerate(walls.OFFSETS):
        bits = jnp.where((below == down) & (right == east), jnp.uint8(1 << i), bits)
    return bits
