"""What the agent sees: gymnasium's 96×96 picture of the car from above, without its window.

The simulator paints a window of 1000×800 pixels, the car always in the same place and facing up, and shrinks it. (In
its forebear, from which the paper's code descends, the car's motion is up instead, so that a car that slides is seen to
do so: the `motion` camera.) Here every pixel averages a few points of that window: the road is looked up in a raster,
all else is worked out. Ice is never seen. What differs by intention: the simulator zooms in during its first second,
prints the return at the bottom left (here that place is black), lets the wheels' bars grow out of the dashboard beyond
400 rad/s, and repaints a tile already when the car's nose is over it, half a unit before a wheel is.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int16, UInt8

from samplr.envs.black_ice.physics import HULL_POLYGONS, WHEEL_HALF_EXTENTS, Car, hull_origin
from samplr.envs.black_ice.raster import EMPTY, Raster
from samplr.envs.black_ice.tracks import PLAYFIELD

SIDE = 96
"""Pixels of the picture, both ways."""

# The simulator's window, in its pixels; y runs down. A pixel of the picture is a block of it.
_BLOCK_WIDTH, _BLOCK_HEIGHT = 1000 / SIDE, 800 / SIDE
_ZOOM = 16.2
_CAR_X, _CAR_Y = 500, 600
_LANDSCAPE_ROWS = 84
# Polygons own the pixels of the window on their outline.
_OUTLINE = 0.5 / _ZOOM
# Shrinking takes two levels off every colour.
_FADE = 2
# Averages that are whole numbers but for the error of floats are not rounded up.
_ROUNDING = 1e-3

_Colour = tuple[int, int, int]
_TILES: tuple[_Colour, ...] = ((102, 102, 102), (104, 104, 104), (107, 107, 107))
_VISITED: _Colour = (102, 102, 102)
_KERBS: tuple[_Colour, ...] = ((255, 255, 255), (255, 0, 0))
_GRASS: _Colour = (102, 204, 102)
_PATCH: _Colour = (102, 230, 102)
_HULL: _Colour = (204, 0, 0)
_STRIPE: _Colour = (77, 77, 77)
# Patches are every other square of this side, both ways; there are none beyond the simulator's own playfield.
_PATCH_SIDE = PLAYFIELD / 20
_PATCHES = 20

Camera = Literal["hull", "motion"]
"""What is up in the picture: where the car points, or where it moves to."""

# The pixels that the car can cover. It is small and always there, so it gets more points per pixel than the landscape.
_CAR_ROWS = slice(66, 78)
_CAR_COLS: dict[Camera, slice] = {"hull": slice(44, 52), "motion": slice(43, 53)}
_CAR_POINTS = 6
# Below this speed, in u/s, a car has no direction of motion, and the camera turns with the hull.
_SLOW = 0.5
# How much of a wheel's turn its stripe takes, in rad.
_STRIPE_ARC = 1.2


def draw(
    raster: Raster,
    car: Car,
    visited: Bool[Array, " tiles"],
    playfield: float | Float[Array, ""] = PLAYFIELD,
    *,
    samples: int = 2,
    camera: Camera = "hull",
) -> UInt8[Array, "96 96 3"]:
    """The picture that the simulator's agent gets.

    Arguments:
        raster: the road, from `rasterise`.
        car: the car. The camera looks down on its hull's origin.
        visited: the tiles that were touched, which are of one grey where the others have three.
        playfield: how far from the middle the grass ends.
        samples: points per pixel, across and down, from 1 (fast, jagged edges) to 4.
        camera: what it turns with.
    """
    up, box = facing(car, camera), (_CAR_ROWS, _CAR_COLS[camera])
    view = _landscape(raster, car, up, visited, playfield, samples)
    with_car = _faded(_car_over(view[box], car, *_from_the_hull(car, up, camera)))
    return jnp.concatenate([_faded(view).at[box].set(with_car), _faded(_dashboard(car))])


def facing(car: Car, camera: Camera) -> Float[Array, ""]:
    """The angle, as the hull's is measured, of what is up in the picture."""
    if camera == "hull":
        return car.angle[0]
    x, y = car.velocity[0]
    return jnp.where(jnp.hypot(x, y) > _SLOW, jnp.arctan2(-x, y), car.angle[0])


def _faded(colours: Float[Array, "rows cols 3"]) -> UInt8[Array, "rows cols 3"]:
    """What shrinking makes of averages: its integers round them up, nearly, and lose two levels."""
    return jnp.maximum(jnp.ceil(colours - _ROUNDING) - _FADE, 0).astype(jnp.uint8)


# ---- landscape


def _landscape(
    raster: Raster,
    car: Car,
    up: Float[Array, ""],
    visited: Bool[Array, " tiles"],
    playfield: float | Float[Array, ""],
    samples: int,
) -> Float[Array, "84 96 3"]:
    """Road, grass and what is beyond the grass."""
    ahead, right = _points(slice(0, _LANDSCAPE_ROWS), slice(0, SIDE), samples)
    x, y = _world(car, up, ahead[:, None], right)
    # Without the barriers XLA looks every point up anew for each channel and each use of its pixel.
    key = jax.lax.optimization_barrier(_look_up(raster, x, y))
    road = _palette(visited).at[jnp.maximum(key, 0).astype(jnp.int32)].get(mode="promise_in_bounds")
    colour = jnp.where(key == EMPTY, _meadow(x, y, playfield), road)
    rows = jax.lax.optimization_barrier(jnp.sum(colour.reshape(_LANDSCAPE_ROWS, samples, SIDE, samples), axis=3))
    return jnp.sum(_unpack(rows), axis=1) / samples**2


def _points(rows: slice, cols: slice, samples: int) -> tuple[Float[np.ndarray, " down"], Float[np.ndarray, " across"]]:
    """Where the points of these pixels lie from the hull's origin: how far ahead of it, and how far to its right."""
    down = (np.arange(rows.start * samples, rows.stop * samples) + 0.5) * (_BLOCK_HEIGHT / samples)
    across = (np.arange(cols.start * samples, cols.stop * samples) + 0.5) * (_BLOCK_WIDTH / samples)
    return ((_CAR_Y - down) / _ZOOM).astype(np.float32), ((across - _CAR_X) / _ZOOM).astype(np.float32)


def _world(
    car: Car, up: Float[Array, ""], ahead: Float[np.ndarray, "*a"], right: Float[np.ndarray, "*b"]
) -> tuple[Array, Array]:
    """The places in the world that are so far up and to the right of the car in the picture."""
    origin, sin, cos = hull_origin(car), jnp.sin(up), jnp.cos(up)
    return origin[0] + cos * right - sin * ahead, origin[1] + sin * right + cos * ahead


def _look_up(raster: Raster, x: Float[Array, "*points"], y: Float[Array, "*points"]) -> Int16[Array, "*points"]:
    side = raster.keys.shape[0]
    row = jnp.clip(((y + raster.extent) * (1 / raster.cell)).astype(jnp.int32), 0, side - 1)
    col = jnp.clip(((x + raster.extent) * (1 / raster.cell)).astype(jnp.int32), 0, side - 1)
    return raster.keys.reshape(-1).at[row * side + col].get(mode="promise_in_bounds")


def _meadow(
    x: Float[Array, "*points"], y: Float[Array, "*points"], playfield: float | Float[Array, ""]
) -> Int[Array, "*points"]:
    # Squares are counted from the corner of the patches: for numbers ≥ 0 the integer part is the floor.
    column = (x * (1 / _PATCH_SIDE) + _PATCHES).astype(jnp.int32)
    line = (y * (1 / _PATCH_SIDE) + _PATCHES).astype(jnp.int32)
    reach = jnp.maximum(jnp.abs(x), jnp.abs(y))
    patch = ((column | line) % 2 == 0) & (reach <= _PATCHES * _PATCH_SIDE)
    return jnp.where(reach <= playfield, jnp.where(patch, _pack(_PATCH), _pack(_GRASS)), 0)


def _palette(visited: Bool[Array, " tiles"]) -> Int[Array, " keys"]:
    """The colour of every key of a raster: as a table it is one look-up per point for greys and kerbs alike."""
    index = np.arange(visited.size)
    fresh = np.array([_pack(grey) for grey in _TILES], np.int32)[index % len(_TILES)]
    kerb = np.array([_pack(colour) for colour in _KERBS], np.int32)[index % len(_KERBS)]
    return jnp.stack([jnp.where(visited, _pack(_VISITED), fresh), jnp.asarray(kerb)], axis=1).reshape(-1)


MOST_SMOOTHING = 4
"""As many points in a row as `_pack` has room for."""


def _pack(colour: _Colour) -> int:
    """A colour as one number of ten bits per channel, so that up to four can be added up before they are unpacked."""
    red, green, blue = colour
    return red | green << 10 | blue << 20


def _unpack(packed: Int[Array, "*points"]) -> Int[Array, "*points 3"]:
    return packed[..., None] >> jnp.array([0, 10, 20]) & 1023


# ---- car


_Points = Float[np.ndarray, "*points"] | Float[Array, "*points"]


def _from_the_hull(car: Car, up: Float[Array, ""], camera: Camera) -> tuple[_Points, _Points]:
    """How far ahead of the hull's origin, and to its right, the points lie that the car can cover."""
    ahead, right = _points(_CAR_ROWS, _CAR_COLS[camera], _CAR_POINTS)
    if camera == "hull":  # known before any car is, and so is where the hull lies
        return ahead[:, None], right
    sin, cos = jnp.sin(up - car.angle[0]), jnp.cos(up - car.angle[0])
    return sin * right + cos * ahead[:, None], cos * right - sin * ahead[:, None]


def _car_over(
    under: Float[Array, "rows cols 3"], car: Car, ahead: _Points, right: _Points
) -> Float[Array, "rows cols 3"]:
    """The car painted over these pixels: the wheels, their stripes, and the hull over both."""
    tyre, stripe = _wheels(car, ahead, right)
    hull = _hull(ahead, right)
    cover = _shares(hull | tyre)[..., None]
    red = _shares(hull)[..., None] * np.array(_HULL, np.float32)
    grey = _shares(stripe & ~hull)[..., None] * np.array(_STRIPE, np.float32)
    return (1 - cover) * under + red + grey


def _wheels(car: Car, ahead: _Points, right: _Points) -> tuple[Bool[Array, "down across"], Bool[Array, "down across"]]:
    """Which points lie on a tyre, and which of them on its stripe."""
    sin, cos = jnp.sin(car.angle[0]), jnp.cos(car.angle[0])
    x, y = (car.position[1:] - hull_origin(car)).T
    from_wheel_right = right - (cos * x + sin * y)[:, None, None]
    from_wheel_ahead = ahead - (cos * y - sin * x)[:, None, None]
    turn = (car.angle[1:] - car.angle[0])[:, None, None]
    side = jnp.cos(turn) * from_wheel_right + jnp.sin(turn) * from_wheel_ahead
    along = jnp.cos(turn) * from_wheel_ahead - jnp.sin(turn) * from_wheel_right
    half_width, radius = WHEEL_HALF_EXTENTS
    tyre = (jnp.abs(side) <= half_width + _OUTLINE) & (jnp.abs(along) <= radius + _OUTLINE)
    middle, half = (part[:, None, None] for part in _stripe(car.phase))
    stripe = tyre & (jnp.abs(along - radius * middle) <= radius * half + _OUTLINE)
    return jnp.any(tyre, axis=0), jnp.any(stripe, axis=0)


def _stripe(phase: Float[Array, "4"]) -> tuple[Float[Array, "4"], Float[Array, "4"]]:
    """Middle and half length, in wheel radii, of what is seen of the stripes; negative lengths are out of sight.

    The stripe is an arc of the tyre from `phase` on, seen from above: its ends are at their cosine, or at the rim of
    the wheel where they are on its lower half.
    """
    angle = jnp.stack([phase, phase + _STRIPE_ARC])
    below = jnp.sin(angle) > 0
    start, end = jnp.where(below, jnp.sign(jnp.cos(angle)), jnp.cos(angle))
    return (start + end) / 2, jnp.where(jnp.all(below, axis=0), -1.0, jnp.abs(start - end) / 2)


def _hull(ahead: _Points, right: _Points) -> Bool[Array, "down across"] | Bool[np.ndarray, "down across"]:
    """Which points lie on the hull."""
    return functools.reduce(operator.or_, [_in_convex(corners, right, ahead) for corners in HULL_POLYGONS])


def _in_convex(corners: Sequence[tuple[float, float]], x: _Points, y: _Points) -> Array | np.ndarray:
    """Which points lie in a convex polygon with its outline, whichever way its corners go round."""
    inside: list[Array | np.ndarray] = []
    middle_x, middle_y = np.mean(corners, axis=0)
    for (x0, y0), (x1, y1) in zip(corners, [*corners[1:], corners[0]], strict=True):
        normal_x, normal_y = (y0 - y1) / math.dist((x0, y0), (x1, y1)), (x1 - x0) / math.dist((x0, y0), (x1, y1))
        depth = (x - x0) * normal_x + (y - y0) * normal_y
        inwards = float(np.sign((middle_x - x0) * normal_x + (middle_y - y0) * normal_y))
        inside.append(depth * inwards >= -_OUTLINE)
    return functools.reduce(operator.and_, inside)


def _shares(points: Bool[Array, "down across"] | Bool[np.ndarray, "down across"]) -> Float[Array, "rows cols"]:
    """The share of each pixel's points that are true."""
    down, across = points.shape
    blocks = points.reshape(down // _CAR_POINTS, _CAR_POINTS, across // _CAR_POINTS, _CAR_POINTS)
    return jnp.mean(blocks.astype(jnp.float32), axis=(1, 3))


# ---- dashboard


def _dashboard(car: Car) -> Float[Array, "12 96 3"]:
    """Bars on black: speed, how fast each wheel rolls, the steering angle and the hull's spin."""
    speed = jnp.hypot(car.velocity[0, 0], car.velocity[0, 1])
    steering = car.angle[1] - car.angle[0]
    board = jnp.zeros((SIDE - _LANDSCAPE_ROWS, SIDE, 3))
    board = _bar(board, speed, (125, 150), (780 - 0.4 * speed, 780), (255, 255, 255))
    for wheel, colour in enumerate([(0, 0, 255), (0, 0, 255), (51, 0, 255), (51, 0, 255)]):
        left, omega = 175 + 25 * wheel, car.omega[wheel]
        board = _bar(board, omega, (left, left + 25), (780 - 0.2 * omega, 780), colour)
    board = _bar(board, steering, (500, 500 - 250 * steering), (720, 760), (0, 255, 0))
    return _bar(board, car.spin[0], (750, 750 - 20 * car.spin[0]), (720, 760), (255, 0, 0))


def _bar(
    board: Float[Array, "12 96 3"],
    value: Float[Array, ""],
    across: tuple[Array | float, Array | float],
    down: tuple[Array | float, Array | float],
    colour: _Colour,
) -> Float[Array, "12 96 3"]:
    """A rectangle of the window painted over the board; values of almost zero have none."""
    rows = _overlap(*down, np.arange(_LANDSCAPE_ROWS, SIDE), _BLOCK_HEIGHT)
    cols = _overlap(*across, np.arange(SIDE), _BLOCK_WIDTH)
    cover = jnp.where(jnp.abs(value) > 1e-4, rows[:, None] * cols, 0.0)[..., None]
    return board + cover * (np.array(colour, np.float32) - board)


def _overlap(one: Array | float, other: Array | float, index: np.ndarray, size: float) -> Float[Array, " pixels"]:
    """The share of each pixel that lies between two ends, whole pixels of the window with both ends."""
    start, stop = jnp.floor(jnp.minimum(one, other)), jnp.floor(jnp.maximum(one, other)) + 1
    length = jnp.minimum(stop, (index + 1) * size) - jnp.maximum(start, index * size)
    return jnp.maximum(length, 0.0) / size
