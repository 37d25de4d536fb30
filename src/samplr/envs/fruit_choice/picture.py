"""Fruit choice for human eyes: NetHack's terminal, and below it what the agent cannot see.

From top to bottom: the question that is open, the map, NetHack's two bottom lines, and which fruit is right. Cells are
pasted from tiles that are drawn once, which is what makes films quick.
"""

import functools

import numpy as np
from jaxtyping import Int, Int16, UInt8
from PIL import Image, ImageDraw, ImageFont

from samplr.envs.fruit_choice.glyphs import WALLS, Glyph
from samplr.envs.fruit_choice.rules import Prompt
from samplr.envs.fruit_choice.terrain import COLUMNS, ROWS

CELL = (24, 12)
"""Height and width of a cell in pixels."""
_FONT_SIZE = 20.0
_MARGIN = 18
_CAPTION_HEIGHT = 42
_LEAST_SHARE = 0.6
"""A picture of the rooms alone shows at least this many pixels of the terminal for one of its own: no giants."""
_LINES = 1 + ROWS + 2
"""Of the terminal: the message, the map and the bottom lines."""
HEIGHT, WIDTH = _LINES * CELL[0] + 2 * _MARGIN + _CAPTION_HEIGHT, COLUMNS * CELL[1] + 2 * _MARGIN

_BLACK, _CAPTION, _CURSOR = (12, 12, 14), (30, 33, 40), (44, 56, 80)
_INK, _FAINT_INK, _QUESTION = (214, 216, 220), (132, 138, 148), (255, 226, 130)
_WHITE, _WALL, _FLOOR, _DARK = (255, 255, 255), (150, 153, 160), (186, 190, 198), (72, 84, 128)
_WOOD, _STAIRS = (206, 140, 66), (226, 228, 232)
_RED, _YELLOW, _GREEN = (238, 62, 58), (250, 214, 66), (116, 206, 118)
_UNSEEN = 0.38
"""How bright the cells are that the agent has not seen."""

_Colour = tuple[int, int, int]
_LETTERS: dict[Glyph, tuple[str, _Colour]] = {
    Glyph.HERO: ("@", _WHITE),
    Glyph.APPLE: ("%", _RED),
    Glyph.BANANA: ("%", _YELLOW),
    Glyph.VERTICAL_DOOR: ("+", _WOOD),
    Glyph.HORIZONTAL_DOOR: ("+", _WOOD),
    Glyph.STAIRS: ("<", _STAIRS),
}
_DOTS = {Glyph.FLOOR: (1, _FLOOR), Glyph.DARK_FLOOR: (1, _DARK), Glyph.BROKEN_DOOR: (2, _WOOD)}
"""Half the side in pixels, and the colour, of what is a dot in the middle of its cell."""
_ARMS = dict(zip(WALLS, ("NS", "EW", "ES", "SW", "NE", "NW", "NESW", "NEW", "ESW", "NSW", "NES"), strict=True))
"""The directions in which walls go on from the middle of their cell, as NetHack draws them where it can draw lines."""
_QUESTIONS = {
    Prompt.NONE: "",
    Prompt.KICK: "In what direction?",
    Prompt.EAT: "There is a fruit here; eat it? [ynq] (n)",
    Prompt.EAT_LOWER: "There is another fruit here; eat it? [ynq] (n)",
}


def picture(
    glyphs: Int16[np.ndarray, "21 79"],
    blstats: Int[np.ndarray, " 27"],
    prompt: int,
    apple_is_right: bool,
    level: Int16[np.ndarray, "21 79"] | None = None,
) -> UInt8[np.ndarray, "height width 3"]:
    """The terminal as a player sees it, and what neither player nor agent is told.

    Arguments:
        glyphs: the map as the agent sees it.
        blstats: NetHack's bottom lines.
        prompt: the question that the next key answers.
        apple_is_right: which fruit pays.
        level: the whole map, if what the agent has not seen of it is to be shown too, dimly.
    """
    image = Image.new("RGB", (WIDTH, HEIGHT), _BLACK)
    image.paste(Image.fromarray(_map(np.asarray(glyphs), level)), (_MARGIN, _MARGIN + CELL[0]))
    brush = ImageDraw.Draw(image)
    _write(brush, _line(0), [(_QUESTIONS[Prompt(int(prompt))], _QUESTION)])
    numbers = np.asarray(blstats).astype(int).tolist()
    _write(brush, _line(1 + ROWS), _attributes(numbers))
    _write(brush, _line(2 + ROWS), _condition(numbers))
    _add_caption(brush, apple_is_right=bool(apple_is_right))
    return np.asarray(image)


def level_picture(
    glyphs: Int16[np.ndarray, "21 79"], right: tuple[int, int], *, size: tuple[int, int] = (480, 320)
) -> UInt8[np.ndarray, "height width 3"]:
    """The rooms of a level alone, as large as they fit, with a frame around the right fruit.

    Arguments:
        glyphs: the whole map.
        right: row and column of the right fruit.
        size: width and height of the picture.
    """
    image = Image.fromarray(_map(glyphs, None))
    height, width = CELL
    top, left = right[0] * height, right[1] * width
    ImageDraw.Draw(image).rectangle((left - 3, top - 1, left + width + 2, top + height), outline=_GREEN, width=2)
    rows, columns = np.nonzero(glyphs != Glyph.STONE)
    low = np.array([columns.min() * width, rows.min() * height])
    high = np.array([(columns.max() + 1) * width, (rows.max() + 1) * height])
    shown = np.array(size)
    scale = max(_LEAST_SHARE, float(np.max((high - low + 2 * _MARGIN) / shown)))
    corner = (low + high - shown * scale) / 2
    window = Image.new("RGB", tuple((shown * scale).round().astype(int).tolist()), _BLACK)
    window.paste(image, tuple((-corner).round().astype(int).tolist()))
    return np.asarray(window.resize(size, Image.Resampling.LANCZOS))


# ---- the map


def _map(
    glyphs: Int16[np.ndarray, "21 79"], level: Int16[np.ndarray, "21 79"] | None
) -> UInt8[np.ndarray, "height width 3"]:
    if level is None:
        tiles = _tiles()[0, _indices()[glyphs]]
    else:
        unseen = glyphs == Glyph.STONE
        tiles = _tiles()[unseen.astype(int), _indices()[np.where(unseen, level, glyphs)]]
    return np.swapaxes(tiles, 1, 2).reshape(ROWS * CELL[0], COLUMNS * CELL[1], 3)


@functools.cache
def _indices() -> Int16[np.ndarray, " glyphs"]:
    """The tile of each glyph; what is unknown looks like rock."""
    table = np.full(2**15, list(Glyph).index(Glyph.STONE), np.int16)
    table[list(Glyph)] = np.arange(len(Glyph))
    return table


@functools.cache
def _tiles() -> UInt8[np.ndarray, "2 tiles cell_height cell_width 3"]:
    """A tile for each glyph, and then for each a dim one."""
    bright = np.stack([_tile(glyph) for glyph in Glyph])
    dim = _BLACK + _UNSEEN * (bright - np.array(_BLACK, float))
    return np.stack([bright, dim.astype(np.uint8)])


def _tile(glyph: Glyph) -> UInt8[np.ndarray, "cell_height cell_width 3"]:
    height, width = CELL
    row, column = height // 2, width // 2
    image = Image.new("RGB", (width, height), _CURSOR if glyph == Glyph.HERO else _BLACK)
    if glyph in _LETTERS:
        letter, colour = _LETTERS[glyph]
        ImageDraw.Draw(image).text((column, row), letter, font=_font(), fill=colour, anchor="mm")
    tile = np.array(image)
    if glyph in _DOTS:
        half, colour = _DOTS[glyph]
        tile[row - half : row + half, column - half : column + half] = colour
    along, across = slice(row - 1, row + 1), slice(column - 1, column + 1)
    north, south, west, east = slice(row + 1), slice(row - 1, None), slice(column + 1), slice(column - 1, None)
    arms = {"N": (north, across), "E": (along, east), "S": (south, across), "W": (along, west)}
    for direction in _ARMS.get(glyph, ""):
        tile[arms[direction]] = _WALL
    return tile


@functools.cache
def _font() -> ImageFont.FreeTypeFont:
    # The font comes with matplotlib, so it is there on every machine; importing that takes a while.
    from matplotlib import font_manager

    return ImageFont.truetype(font_manager.findfont("DejaVu Sans Mono"), _FONT_SIZE)


# ---- the lines of text

_Words = list[tuple[str, _Colour]]


def _line(number: int) -> float:
    """The middle of one of the terminal's lines."""
    return _MARGIN + (number + 0.5) * CELL[0]


def _write(brush: ImageDraw.ImageDraw, middle: float, words: _Words, left: float = _MARGIN) -> None:
    """Write words one after the other, each in its colour."""
    for text, colour in words:
        brush.text((left, middle), text, font=_font(), fill=colour, anchor="lm")
        left += len(text) * CELL[1]


def _attributes(numbers: list[int]) -> _Words:
    """NetHack's first bottom line; it counts strength 18/01 as 19 and so on."""
    strength = str(numbers[3]) if numbers[3] <= 18 else "18/**" if numbers[3] == 118 else f"18/{numbers[3] - 18:02d}"
    dexterity, constitution, intelligence, wisdom, charisma = numbers[4:9]
    others = f"Dx:{dexterity} Co:{constitution} In:{intelligence} Wi:{wisdom} Ch:{charisma}"
    return [("Agent the Footpad", _WHITE), (f"   St:{strength} {others}   Chaotic", _INK)]


def _condition(numbers: list[int]) -> _Words:
    """NetHack's second bottom line; hit points turn yellow at a half and red at a third."""
    hp, greatest = numbers[10:12]
    colour = _RED if 3 * hp <= greatest else _YELLOW if 2 * hp <= greatest else _GREEN
    before, after = f"Dlvl:{numbers[12]} $:{numbers[13]} ", f" Pw:{numbers[14]}({numbers[15]}) AC:{numbers[16]}"
    return [(before, _INK), (f"HP:{hp}({greatest})", colour), (f"{after} Xp:{numbers[18]} T:{numbers[20]}", _INK)]


def _add_caption(brush: ImageDraw.ImageDraw, *, apple_is_right: bool) -> None:
    """A bar below the terminal."""
    brush.rectangle((0, HEIGHT - _CAPTION_HEIGHT, WIDTH, HEIGHT), fill=_CAPTION)
    middle = HEIGHT - _CAPTION_HEIGHT / 2
    fruit, colour = ("apple", _RED) if apple_is_right else ("banana", _YELLOW)
    _write(brush, middle, [("unknown to the agent: ", _FAINT_INK), (f"the {fruit} is right", colour)])
    legend: _Words = [("%", _RED), (" apple  ", _FAINT_INK), ("%", _YELLOW), (" banana  ", _FAINT_INK)]
    legend += [("+", _WOOD), (" locked door", _FAINT_INK)]
    length = sum(len(text) for text, _ in legend) * CELL[1]
    _write(brush, middle, legend, left=WIDTH - _MARGIN - length)
