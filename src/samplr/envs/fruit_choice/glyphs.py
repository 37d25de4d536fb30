"""What NetHack shows in a cell of the map: the few of its glyphs that can occur here."""

import enum


class Glyph(enum.IntEnum):
    """NetHack's number of a glyph."""

    HERO = 337
    APPLE = 2158
    BANANA = 2162
    STONE = 2359
    """Solid rock, and whatever was never seen."""
    VERTICAL_WALL = 2360
    HORIZONTAL_WALL = 2361
    TOP_LEFT_CORNER = 2362
    TOP_RIGHT_CORNER = 2363
    BOTTOM_LEFT_CORNER = 2364
    BOTTOM_RIGHT_CORNER = 2365
    CROSS_WALL = 2366
    T_UP = 2367
    T_DOWN = 2368
    T_LEFT = 2369
    T_RIGHT = 2370
    BROKEN_DOOR = 2371
    """Also where a door was shattered and none is left."""
    VERTICAL_DOOR = 2374
    """Closed, and here always locked; between a room on its left and one on its right."""
    HORIZONTAL_DOOR = 2375
    FLOOR = 2378
    DARK_FLOOR = 2379
    """Remembered, and out of sight now."""
    STAIRS = 2382


WALLS = tuple(glyph for glyph in Glyph if Glyph.VERTICAL_WALL <= glyph <= Glyph.T_RIGHT)
