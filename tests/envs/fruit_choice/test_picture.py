"""Pictures for human eyes."""

import numpy as np
import pytest

from samplr.envs.fruit_choice.glyphs import Glyph
from samplr.envs.fruit_choice.picture import level_picture, picture
from samplr.envs.fruit_choice.rules import Prompt

MARGIN, HEIGHT, WIDTH = 18, 24, 12
BACKGROUND = (12, 12, 14)
EMPTY = np.full((21, 79), Glyph.STONE, np.int16)
BLSTATS = np.array([5, 3, 17, 17, 16, 12, 10, 9, 8, 0, 12, 12, 1, 0, 2, 2, 7, 0, 1, 0, 37, 1, 0, 0, 1, 0, -1])


def glyphs_with(glyph: int, row: int, column: int) -> np.ndarray:
    glyphs = EMPTY.copy()
    glyphs[row, column] = glyph
    return glyphs


def cell(image: np.ndarray, row: int, column: int) -> np.ndarray:
    """The pixels of a cell of the map, which begins below the line for messages."""
    top, left = MARGIN + (1 + row) * HEIGHT, MARGIN + column * WIDTH
    return image[top : top + HEIGHT, left : left + WIDTH].astype(int)


def line(image: np.ndarray, number: int) -> np.ndarray:
    """The pixels of a line of the terminal: 0 is the message, 22 and 23 are the bottom lines."""
    return image[MARGIN + number * HEIGHT : MARGIN + (number + 1) * HEIGHT].astype(int)


def drawn(pixels: np.ndarray) -> np.ndarray:
    """The average colour of what is not background."""
    return pixels[np.any(pixels != BACKGROUND, axis=-1)].mean(axis=0)


@pytest.mark.parametrize("prompt", list(Prompt))
def test_pictures_are_of_one_even_size_and_show_an_open_question(prompt: Prompt) -> None:
    image = picture(EMPTY, BLSTATS, prompt, True)
    assert image.shape == (654, 984, 3)
    assert image.dtype == np.uint8
    assert np.all(line(image, 0) == BACKGROUND) == (prompt == Prompt.NONE)


def test_each_question_looks_different() -> None:
    lines = {line(picture(EMPTY, BLSTATS, prompt, True), 0).tobytes() for prompt in Prompt}
    assert len(lines) == len(Prompt)


def test_the_caption_tells_which_fruit_is_right_and_nothing_else_does() -> None:
    apple, banana = (picture(EMPTY, BLSTATS, Prompt.NONE, right) for right in (True, False))
    differs = np.flatnonzero(np.any(apple != banana, axis=(1, 2)))
    assert differs.min() > 654 - 42
    red, yellow = apple[-42:, :520].astype(int), banana[-42:, :520].astype(int)
    assert np.any((red[..., 0] > 200) & (red[..., 1] < 100))
    assert np.any((yellow[..., 0] > 200) & (yellow[..., 1] > 180) & (yellow[..., 2] < 120))


@pytest.mark.parametrize("place", [(0, 0), (20, 78), (7, 31)])
def test_only_the_cell_of_a_glyph_is_painted(place: tuple[int, int]) -> None:
    before = picture(EMPTY, BLSTATS, Prompt.NONE, True)
    after = picture(glyphs_with(Glyph.APPLE, *place), BLSTATS, Prompt.NONE, True)
    assert np.any(cell(after, *place) != cell(before, *place))
    cells = np.argwhere(np.any(before != after, axis=-1)) - (MARGIN + HEIGHT, MARGIN)
    assert set(map(tuple, cells // (HEIGHT, WIDTH))) == {place}


def test_things_have_the_colours_of_nethack() -> None:
    def colour(glyph: Glyph) -> np.ndarray:
        return drawn(cell(picture(glyphs_with(glyph, 4, 9), BLSTATS, Prompt.NONE, True), 4, 9))

    red, green, blue = colour(Glyph.APPLE)
    assert red > 2 * max(green, blue)
    red, green, blue = colour(Glyph.BANANA)
    assert min(red, green) > 2 * blue
    for door in (Glyph.VERTICAL_DOOR, Glyph.HORIZONTAL_DOOR, Glyph.BROKEN_DOOR):
        red, green, blue = colour(door)
        assert red > green > blue
    red, green, blue = colour(Glyph.VERTICAL_WALL)
    assert max(red, green, blue) - min(red, green, blue) < 20
    dark, lit = colour(Glyph.DARK_FLOOR), colour(Glyph.FLOOR)
    assert dark.sum() < 0.7 * lit.sum()
    assert dark[2] > dark[0]


def test_walls_join_their_neighbours() -> None:
    """A room of 3×3: every wall's line reaches the edge of its cell where the next wall begins."""
    glyphs = EMPTY.copy()
    glyphs[4, 4:7] = Glyph.TOP_LEFT_CORNER, Glyph.HORIZONTAL_WALL, Glyph.TOP_RIGHT_CORNER
    glyphs[5, [4, 6]] = Glyph.VERTICAL_WALL
    glyphs[6, 4:7] = Glyph.BOTTOM_LEFT_CORNER, Glyph.HORIZONTAL_WALL, Glyph.BOTTOM_RIGHT_CORNER
    painted = np.any(picture(glyphs, BLSTATS, Prompt.NONE, True) != BACKGROUND, axis=-1)
    top, left = MARGIN + 5 * HEIGHT + HEIGHT // 2, MARGIN + 4 * WIDTH + WIDTH // 2
    bottom, right = top + 2 * HEIGHT, left + 2 * WIDTH
    assert np.all(painted[[top, bottom], left : right + 1])
    assert np.all(painted[top : bottom + 1, [left, right]])
    room = painted[MARGIN + HEIGHT : MARGIN + 22 * HEIGHT]
    assert room.sum() == 2 * 2 * (2 * WIDTH + 2 * HEIGHT)


def test_the_unseen_rest_of_the_level_is_dim() -> None:
    level = glyphs_with(Glyph.BANANA, 4, 9)
    level[8, 8] = Glyph.FLOOR
    glyphs = glyphs_with(Glyph.APPLE, 8, 8)
    without = picture(glyphs, BLSTATS, Prompt.NONE, True)
    with_level = picture(glyphs, BLSTATS, Prompt.NONE, True, level)
    seen = picture(level, BLSTATS, Prompt.NONE, True)
    assert np.all(cell(without, 4, 9) == BACKGROUND)
    np.testing.assert_array_equal(cell(with_level, 8, 8), cell(without, 8, 8))
    assert 30 < drawn(cell(with_level, 4, 9)).max() < 0.5 * drawn(cell(seen, 4, 9)).max()


def test_the_bottom_lines_tell_what_happens_and_low_hit_points_are_red() -> None:
    before = picture(EMPTY, BLSTATS, Prompt.NONE, True)
    for index, number in ((3, 22), (4, 22), (8, 22), (10, 23), (20, 23)):
        changed = BLSTATS.copy()
        changed[index] -= 1
        after = picture(EMPTY, changed, Prompt.NONE, True)
        differs = {i for i in range(24) if np.any(line(before, i) != line(after, i))}
        assert differs == {number}
    hurt = BLSTATS.copy()
    hurt[10] = 3
    second = line(picture(EMPTY, hurt, Prompt.NONE, True), 23)
    assert np.any((second[..., 0] > 200) & (second[..., 1] < 100))


def test_unknown_glyphs_look_like_rock() -> None:
    unknown = picture(glyphs_with(1234, 4, 9), BLSTATS, Prompt.NONE, True)
    np.testing.assert_array_equal(unknown, picture(EMPTY, BLSTATS, Prompt.NONE, True))


class TestLevelPicture:
    """The rooms alone."""

    def green(self, image: np.ndarray) -> np.ndarray:
        """Where the frame around the right fruit is."""
        red, green, blue = np.moveaxis(image.astype(int), -1, 0)
        return (green > red + 40) & (green > blue + 40)

    @pytest.mark.parametrize(("row", "column"), [(1, 1), (10, 40), (20, 78)])
    def test_what_there_is_lies_in_the_middle_wherever_it_is(self, row: int, column: int) -> None:
        image = level_picture(glyphs_with(Glyph.APPLE, row, column), (row, column))
        assert image.shape == (320, 480, 3)
        ys, xs = np.nonzero(np.any(image != BACKGROUND, axis=-1))
        assert abs(ys.mean() - 160) < 12
        assert abs(xs.mean() - 240) < 12
        assert self.green(image).sum() > 50

    def test_the_frame_is_around_the_right_fruit(self) -> None:
        glyphs = glyphs_with(Glyph.APPLE, 10, 30)
        glyphs[10, 50] = Glyph.BANANA
        places = [np.nonzero(self.green(level_picture(glyphs, (10, column))))[1].mean() for column in (30, 50)]
        assert places[0] < 180
        assert places[1] > 300

    def test_large_levels_are_shown_whole(self) -> None:
        glyphs = glyphs_with(Glyph.APPLE, 1, 1)
        glyphs[19, 77] = Glyph.BANANA
        image = level_picture(glyphs, (19, 77)).astype(int)
        ys, xs = np.nonzero(np.any(image != BACKGROUND, axis=-1))
        assert xs.min() < 40 < 440 < xs.max()
        assert ys.min() < ys.max()
