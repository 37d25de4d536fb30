"""What is shown of the map: in sight, remembered, and of walls seen from some sides only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.envs.fruit_choice.display import Memory, look, nothing_seen, wall_shapes
from samplr.envs.fruit_choice.glyphs import Glyph
from samplr.envs.fruit_choice.terrain import COLUMNS, ROWS, Kind, Rooms, Scene, Terrain, terrain_of
from samplr.envs.fruit_choice.walls import LOOKS, NE, NW, SE, SW, N, Pattern, S, W, turned

SYMBOLS = {
    Glyph.HERO: "@",
    Glyph.APPLE: "a",
    Glyph.BANANA: "b",
    Glyph.STONE: " ",
    Glyph.VERTICAL_WALL: "│",
    Glyph.HORIZONTAL_WALL: "─",
    Glyph.TOP_LEFT_CORNER: "┌",
    Glyph.TOP_RIGHT_CORNER: "┐",
    Glyph.BOTTOM_LEFT_CORNER: "└",
    Glyph.BOTTOM_RIGHT_CORNER: "┘",
    Glyph.CROSS_WALL: "┼",
    Glyph.T_UP: "┴",
    Glyph.T_DOWN: "┬",
    Glyph.T_LEFT: "┤",
    Glyph.T_RIGHT: "├",
    Glyph.BROKEN_DOOR: "'",
    Glyph.VERTICAL_DOOR: "+",
    Glyph.HORIZONTAL_DOOR: "=",
    Glyph.FLOOR: ".",
    Glyph.DARK_FLOOR: ",",
    Glyph.STAIRS: "<",
}

_look = jit(look)
_wall_shapes = jit(wall_shapes)


def _picture(glyphs: jax.Array | np.ndarray) -> str:
    rows = ["".join(SYMBOLS[Glyph(glyph)] for glyph in row).rstrip() for row in np.asarray(glyphs).tolist()]
    return "\n".join(row[2:] for row in rows).strip("\n")


def _rooms(*rooms: tuple[int, int, int, int], doors: tuple = (), start=(2, 4), apple=(3, 4), banana=(3, 5)) -> Rooms:
    """Rooms as row, column, height and width."""
    table = np.zeros((8, 4), int)
    table[: len(rooms)] = rooms
    its_doors = np.zeros((7, 2), int)
    its_doors[: len(doors)] = np.reshape(doors, (-1, 2))
    cells = (jnp.array(cell) for cell in (start, apple, banana))
    return Rooms(jnp.array(len(rooms)), jnp.array(table[:, :2]), jnp.array(table[:, 2:]), jnp.array(its_doors), *cells)


TWO_ROOMS = _rooms((1, 3, 5, 5), (2, 7, 4, 6), doors=((3, 7),), start=(2, 4), apple=(3, 10), banana=(4, 10))


def _scene(hero: tuple[int, int], rooms: Rooms, *, broken: tuple[int, ...] = (), **fruits) -> Scene:
    places = {"apple": rooms.apple, "banana": rooms.banana, "banana_on_top": jnp.array(False), **fruits}
    return Scene(hero=jnp.array(hero), broken=jnp.isin(jnp.arange(7), jnp.array(broken, int)), **places)


def _see(rooms: Rooms, *scenes: Scene) -> Memory:
    terrain = terrain_of(rooms)
    memory = nothing_seen()
    for scene in scenes:
        memory = _look(terrain, _wall_shapes(terrain.kind), scene, memory)
    return memory


def _all_walls(rooms: Rooms) -> str:
    """The level as seen from everywhere."""
    return _picture(LOOKS[np.asarray(_wall_shapes(terrain_of(rooms).kind)), 255])


def test_at_first_nothing_is_seen():
    memory = nothing_seen()
    assert memory.glyphs.shape == memory.seen_from.shape == (ROWS, COLUMNS)
    assert memory.glyphs.dtype == jnp.int16
    assert memory.seen_from.dtype == jnp.uint8
    assert _picture(memory.glyphs) == ""


def test_a_locked_door_hides_the_next_room():
    memory = _see(TWO_ROOMS, _scene((3, 5), TWO_ROOMS))
    assert _picture(memory.glyphs) == "\n".join([" ┌───┐", " │<..│", " │.@.+", " │...│", " └───┘"])
    assert memory.glyphs.dtype == jnp.int16
    assert memory.seen_from.dtype == jnp.uint8


def test_through_a_broken_door_the_next_room_is_seen_and_walls_join():
    memory = _see(TWO_ROOMS, _scene((3, 5), TWO_ROOMS), _scene((3, 7), TWO_ROOMS, broken=(0,)))
    # The lower T was seen from the first room only, so that it still looks like a corner.
    expected = [" ┌───┐", " │<..├────┐", " │...@..a.│", " │...│..b.│", " └───┘────┘"]
    assert _picture(memory.glyphs) == "\n".join(expected)


def test_out_of_sight_floor_turns_dark_and_the_rest_stays():
    walk = [_scene((3, 5), TWO_ROOMS), _scene((3, 7), TWO_ROOMS, broken=(0,)), _scene((4, 8), TWO_ROOMS, broken=(0,))]
    # Through the doorway a slanting beam still falls into the first room.
    expected = [" ┌───┐", " │<..├────┐", " │,,.'..a.│", " │,,,│@.b.│", " └───┴────┘"]
    memory = _see(TWO_ROOMS, *walk)
    assert _picture(memory.glyphs) == "\n".join(expected)


def test_a_fruit_is_remembered_where_it_was_seen_and_shown_where_it_is():
    seen = _scene((3, 7), TWO_ROOMS, broken=(0,))
    kicked = _scene((3, 7), TWO_ROOMS, broken=(0,), apple=jnp.array([3, 11]))
    assert _picture(_see(TWO_ROOMS, seen, kicked).glyphs).split("\n")[2] == " │...@...a│"
    away = _scene((2, 6), TWO_ROOMS, broken=(0,), apple=jnp.array([3, 11]))
    assert _see(TWO_ROOMS, seen, away).glyphs[3, 10] == Glyph.APPLE


@pytest.mark.parametrize("banana_on_top", [False, True])
def test_of_two_fruits_the_upper_one_is_shown(banana_on_top):
    both = {"banana": TWO_ROOMS.apple, "banana_on_top": jnp.array(banana_on_top)}
    memory = _see(TWO_ROOMS, _scene((3, 8), TWO_ROOMS, **both))
    assert memory.glyphs[3, 10] == (Glyph.BANANA if banana_on_top else Glyph.APPLE)


def test_a_fruit_lies_on_stairs_and_in_doorways():
    memory = _see(TWO_ROOMS, _scene((3, 5), TWO_ROOMS, broken=(0,), apple=TWO_ROOMS.start, banana=jnp.array([3, 7])))
    assert memory.glyphs[2, 4] == Glyph.APPLE
    assert memory.glyphs[3, 7] == Glyph.BANANA


def test_walls_of_rooms_join():
    rooms = _rooms((1, 3, 4, 5), (4, 3, 4, 5), (4, 7, 4, 4), doors=((4, 5), (6, 7)))
    assert _all_walls(rooms) == "\n".join(
        [" ┌───┐", " │<..│", " │...│", " ├─=─┼──┐", " │...│..│", " │...+..│", " └───┴──┘"]
    )


def test_walls_that_touch_do_not_join():
    """As in NetHack: two walls side by side, each of its own room, with no way between them."""
    rooms = _rooms((1, 3, 4, 4), (4, 3, 4, 9), (1, 7, 4, 5), doors=((4, 5), (4, 9)))
    picture = _all_walls(rooms)
    assert picture.split("\n")[0] == " ┌──┐┌───┐"
    assert picture.split("\n")[1] == " │<.││...│"


def test_a_wall_in_the_thick_of_walls_is_solid_rock():
    kind = np.full((ROWS, COLUMNS), Kind.WALL, np.uint8)
    kind[5, 5] = Kind.FLOOR
    glyphs = LOOKS[np.asarray(_wall_shapes(jnp.array(kind))), 255]
    assert (glyphs[5, 5], glyphs[4, 4], glyphs[10, 10]) == (Glyph.FLOOR, Glyph.TOP_LEFT_CORNER, Glyph.STONE)


@pytest.mark.parametrize("quarters", range(4))
def test_a_t_shows_what_is_known_of_it(quarters):
    def turn(directions: int) -> int:
        return (directions << 2 * quarters | directions >> (8 - 2 * quarters)) & 0xFF

    tee = LOOKS[4 * Pattern.TEE + quarters]
    assert tee[turn(N)] == turned(Glyph.HORIZONTAL_WALL, quarters)
    assert tee[turn(SE)] == turned(Glyph.TOP_LEFT_CORNER, quarters)
    assert tee[turn(SW)] == turned(Glyph.TOP_RIGHT_CORNER, quarters)
    assert tee[turn(SE | SW)] == tee[turn(S)] == tee[turn(N | SE)] == turned(Glyph.T_DOWN, quarters)


def test_a_wall_before_rock_is_seen_from_the_room_only():
    line = LOOKS[4 * Pattern.LINE_ROCK_WEST]
    assert line[W] == line[NW] == line[SW] == line[NW | W | SW] == Glyph.STONE
    assert line[NE] == line[NE | W] == line[N] == Glyph.VERTICAL_WALL


def test_many_heroes_look_at_once():
    def first_look(hero: jax.Array, terrain: Terrain) -> jax.Array:
        scene = Scene(hero, jnp.zeros(7, bool), TWO_ROOMS.apple, TWO_ROOMS.banana, jnp.array(False))
        return look(terrain, wall_shapes(terrain.kind), scene, nothing_seen()).glyphs

    heroes = jnp.array([[2, 4], [3, 5], [3, 8]])
    together = jit(jax.vmap(first_look, (0, None)))(heroes, terrain_of(TWO_ROOMS))
    for glyphs, hero in zip(together, heroes, strict=True):
        np.testing.assert_array_equal(glyphs, _see(TWO_ROOMS, _scene(tuple(hero.tolist()), TWO_ROOMS)).glyphs)
