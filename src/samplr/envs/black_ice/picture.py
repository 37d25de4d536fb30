"""Black ice for human eyes: the road from above, with the ice that the driver cannot see.

Painted with Pillow at twice the size and shrunk, which is what smooths the edges.
"""

import math

import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from samplr.envs.black_ice.physics import HULL_POLYGONS, WHEEL_HALF_EXTENTS, Car, hull_origin
from samplr.envs.black_ice.raster import kerb_quads, kerbs
from samplr.envs.black_ice.tracks import HALF_WIDTH, Track

_FINE = 2
"""Pixels painted per pixel shown, across and down."""
_VIEW_HEIGHT = 50.0
"""Units from the bottom to the top of a picture that follows the car."""
_CAR_HEIGHT = 0.3
"""Where the car stands in it, as a share of the height from the bottom."""
_SEAMS_FROM = 5.0
"""Pixels per unit from which on tiles can be told apart; on smaller roads the seams would be noise."""
_PATCH_SIDE = 2 * HALF_WIDTH

_GRASS, _MOWN = (111, 163, 92), (119, 171, 99)
_ROAD, _VISITED = (88, 90, 96), (126, 129, 137)
_ICE, _VISITED_ICE = (150, 205, 236), (186, 226, 247)
_KERBS = ((240, 240, 236), (200, 58, 52))
_HULL, _COCKPIT, _TYRE, _TREAD = (206, 40, 44), (70, 14, 18), (24, 24, 26), (92, 92, 96)
_PANEL, _MAP_ROAD, _INK = (24, 28, 34), (104, 111, 122), (244, 246, 248)
_PANEL_OPACITY = 205

_Colour = tuple[int, ...]
_Points = Float[np.ndarray, "points 2"]


class _Canvas:
    """An image to paint on in the world's units."""

    def __init__(self, size: tuple[int, int], *, middle: _Points, angle: float, scale: float, anchor: _Points):
        """`middle` of the world, turned by `angle`, comes to lie at `anchor`; `scale` is pixels per unit."""
        self.size = (size[0] * _FINE, size[1] * _FINE)
        self.image = Image.new("RGB", self.size, _GRASS)
        self.brush = ImageDraw.Draw(self.image)
        self.scale = scale * _FINE
        self.middle, self.anchor = middle, anchor * _FINE
        cos, sin = math.cos(angle) * self.scale, math.sin(angle) * self.scale
        self.turn = np.array([[cos, sin], [sin, -cos]])

    def place(self, points: Float[np.ndarray, "*shape 2"]) -> Float[np.ndarray, "*shape 2"]:
        """Where these points of the world are in the image; its y runs down."""
        return (points - self.middle) @ self.turn + self.anchor

    def polygons(self, polygons: Float[np.ndarray, "count corners 2"], colours: list[_Colour]) -> None:
        """Paint those polygons that are in the picture, in order."""
        placed = self.place(polygons)
        seen = np.all((placed.max(axis=1) >= 0) & (placed.min(axis=1) <= np.array(self.size)), axis=1)
        for i in np.flatnonzero(seen):
            self.brush.polygon(placed[i].ravel().tolist(), fill=colours[i])


def picture(
    track: Track,
    car: Car,
    ice: Bool[np.ndarray, " tiles"],
    visited: Bool[np.ndarray, " tiles"],
    *,
    size: tuple[int, int] = (640, 480),
    follow: bool = True,
) -> UInt8[np.ndarray, "height width 3"]:
    """The car on its road, icy tiles in blue, tiles that were touched lighter.

    Arguments:
        track: the road.
        car: the car.
        ice: the icy tiles.
        visited: the tiles that were touched.
        size: width and height of the picture.
        follow: whether the picture moves and turns with the car, with a map of the whole road in its corner; otherwise
            it is a map of the whole road itself.
    """
    ice, visited = np.asarray(ice), np.asarray(visited)
    if follow:
        canvas = _camera(car, size)
        _paint_road(canvas, track, ice, visited)
        _paint_car(canvas, car)
        image = canvas.image.reduce(_FINE)
        _add_map(image, track, car, ice)
    else:
        canvas = _overview(np.asarray(track.centre), size, margin=0.06)
        _paint_road(canvas, track, ice, visited)
        _paint_marker(canvas, car, radius=7.0)
        image = canvas.image.reduce(_FINE)
    _add_readout(image, car)
    return np.asarray(image)


# ---- cameras


def _camera(car: Car, size: tuple[int, int]) -> _Canvas:
    """The car heads up, below the middle of the picture, so that more of the road ahead is seen."""
    width, height = size
    anchor = np.array([width / 2, height * (1 - _CAR_HEIGHT)])
    middle = np.asarray(hull_origin(car), float)
    return _Canvas(size, middle=middle, angle=float(car.angle[0]), scale=height / _VIEW_HEIGHT, anchor=anchor)


def _overview(centre: _Points, size: tuple[int, int], *, margin: float) -> _Canvas:
    """The whole road, north up, as large as it fits."""
    low, high = centre.min(axis=0), centre.max(axis=0)
    room = np.array(size) * (1 - 2 * margin)
    scale = float(np.min(room / (high - low + 16.0)))
    return _Canvas(size, middle=(low + high) / 2, angle=0.0, scale=scale, anchor=np.array(size) / 2)


# ---- the world


def _paint_road(
    canvas: _Canvas, track: Track, ice: Bool[np.ndarray, " tiles"], visited: Bool[np.ndarray, " tiles"]
) -> None:
    _paint_meadow(canvas)
    tiles, kerb = np.asarray(track.tiles), np.asarray(kerb_quads(track))
    kerbed = np.flatnonzero(np.asarray(kerbs(track)))
    canvas.polygons(kerb[kerbed], [_KERBS[i % 2] for i in kerbed])
    colours = np.where(visited[:, None], _VISITED, _ROAD)
    if canvas.scale > _SEAMS_FROM * _FINE:
        colours[1::2] = colours[1::2] * 0.95
    colours = np.where(ice[:, None], np.where(visited[:, None], _VISITED_ICE, _ICE), colours)
    canvas.polygons(tiles, [tuple(colour) for colour in colours.tolist()])


def _paint_meadow(canvas: _Canvas) -> None:
    """Mown squares, without which standing and moving over grass look the same."""
    corner = np.array(canvas.size) / canvas.scale
    reach = math.hypot(*corner)
    low = np.floor((canvas.middle - reach) / _PATCH_SIDE).astype(int)
    high = np.ceil((canvas.middle + reach) / _PATCH_SIDE).astype(int)
    x, y = np.meshgrid(np.arange(low[0], high[0]), np.arange(low[1], high[1]))
    cells = np.stack([x, y], axis=-1)[(x + y) % 2 == 0]
    square = np.array([(0, 0), (1, 0), (1, 1), (0, 1)])
    canvas.polygons((cells[:, None] + square) * _PATCH_SIDE, [_MOWN] * len(cells))


def _paint_car(canvas: _Canvas, car: Car) -> None:
    position, angle = np.asarray(car.position, float), np.asarray(car.angle, float)
    half = np.array(WHEEL_HALF_EXTENTS)
    box = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    for wheel in range(4):
        canvas.polygons(_posed(box * half, position[wheel + 1], angle[wheel + 1])[None], [_TYRE])
        # A tread that moves up as the wheel rolls.
        shift = (float(car.phase[wheel]) / (2 * math.pi) % 1 * 2 - 1) * half[1] * 0.8
        tread = box * half * (1, 0.16) + (0, shift)
        canvas.polygons(_posed(tread, position[wheel + 1], angle[wheel + 1])[None], [_TREAD])
    origin = np.asarray(hull_origin(car), float)
    for corners in HULL_POLYGONS:
        canvas.polygons(_posed(np.array(corners), origin, angle[0])[None], [_HULL])
    cockpit = np.array([(-0.32, -0.1), (0.32, -0.1), (0.38, -0.75), (-0.38, -0.75)])
    canvas.polygons(_posed(cockpit, origin, angle[0])[None], [_COCKPIT])


def _posed(points: _Points, position: Float[np.ndarray, "2"], angle: float) -> _Points:
    """The points of a body where the body is."""
    cos, sin = math.cos(angle), math.sin(angle)
    return points @ np.array([[cos, sin], [-sin, cos]]) + position


def _paint_marker(canvas: _Canvas, car: Car, *, radius: float) -> None:
    """The car on a map: an arrow of this many pixels."""
    arrow = np.array([(0, 1.4), (0.9, -1), (0, -0.5), (-0.9, -1)]) * radius * _FINE / canvas.scale
    placed = _posed(arrow, np.asarray(car.position[0], float), float(car.angle[0]))
    corners = canvas.place(placed).ravel().tolist()
    canvas.brush.polygon(corners, fill=_HULL, outline=_INK, width=_FINE)


# ---- on top


def _add_map(image: Image.Image, track: Track, car: Car, ice: Bool[np.ndarray, " tiles"]) -> None:
    """The whole road in a corner of the picture."""
    side = min(image.size) * 3 // 10
    centre = np.asarray(track.centre, float)
    canvas = _overview(centre, (side, side), margin=0.1)
    canvas.image.paste(_PANEL, (0, 0, *canvas.size))
    # Beginning and ending with the last point: so the loop is closed, and tile i lies between points i and i + 1.
    line = canvas.place(np.concatenate([centre[-1:], centre]))
    canvas.brush.line(line.ravel().tolist(), fill=_MAP_ROAD, width=3 * _FINE, joint="curve")
    for i in np.flatnonzero(ice):
        canvas.brush.line(line[i : i + 2].ravel().tolist(), fill=_VISITED_ICE, width=4 * _FINE)
    _paint_marker(canvas, car, radius=4.5)
    _paste_panel(image, canvas.image.reduce(_FINE), (image.width - side - 10, 10))


def _add_readout(image: Image.Image, car: Car) -> None:
    """The speed in u/s, and a bar that is full at the greatest there is."""
    height = max(image.height // 12, 24)
    width = height * 3
    panel = Image.new("RGB", (width, height), _PANEL)
    brush = ImageDraw.Draw(panel)
    speed = math.hypot(*np.asarray(car.velocity[0], float))
    font = ImageFont.load_default(height * 0.46)
    brush.text((height * 0.25, height * 0.42), f"{speed:.0f} u/s", font=font, fill=_INK, anchor="lm")
    left, right, top = height * 0.25, width - height * 0.25, height * 0.78
    brush.rectangle((left, top, right, top + height * 0.08), fill=_MAP_ROAD)
    brush.rectangle((left, top, left + (right - left) * min(speed / 100, 1), top + height * 0.08), fill=_ICE)
    _paste_panel(image, panel, (10, image.height - height - 10))


def _paste_panel(image: Image.Image, panel: Image.Image, corner: tuple[int, int]) -> None:
    """Lay a panel with round corners over the picture, slightly transparent."""
    mask = Image.new("L", panel.size, 0)
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, panel.width - 1, panel.height - 1), radius=6, fill=_PANEL_OPACITY)
    image.paste(panel, corner, mask)
