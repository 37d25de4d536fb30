"""Which tiles the wheels touch, and which one each wheel stands on.

A tile is the convex hull of its four corners. Two convex shapes are apart if they are along one of the directions their
sides are perpendicular to. Of a tile, those are among the normals of the six lines through two of its corners, whatever
the order of the corners; they and the tile's extent along them are worked out once per rollout (`tile_geometry`).
Arrays over tiles have the tiles last, and directions are written out, so that what is left per frame is one fused loop.
"""

from functools import reduce
from itertools import combinations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from samplr.envs.black_ice.physics import WHEEL_HALF_EXTENTS, Car

SKIN = 0.02
"""Box2D's polygons touch when they are as close as this."""


class TileGeometry(eqx.Module):
    """Tiles, prepared for `touching`. Coordinates are relative to the tile's middle, which keeps them exact."""

    middle: Float[Array, "2 tiles"]
    corners: Float[Array, "2 4 tiles"]
    normals: Float[Array, "2 6 tiles"]
    """Unit vectors; zero for a line through two equal corners, which then separates nothing."""
    centres: Float[Array, "6 tiles"]
    """Where along each normal the tile has its middle."""
    halves: Float[Array, "6 tiles"]
    """Half the tile's extent along each normal."""


class Contacts(eqx.Module):
    """What the wheels touch."""

    outside: Float[Array, "4 tiles"]
    """How far a wheel's centre is outside of a tile that the wheel touches, negative inside; infinite for the others.

    Inside, it is the distance to the nearest side; outside, the widest gap along the tile's normals.
    """

    @property
    def touched(self) -> Bool[Array, "4 tiles"]:
        """Which tiles each wheel touches."""
        return self.outside < jnp.inf

    @property
    def on_road(self) -> Bool[Array, "4"]:
        """Whether a wheel touches any tile."""
        return jnp.min(self.outside, axis=1) < jnp.inf

    @property
    def nearest(self) -> Int[Array, "4"]:
        """Of the tiles a wheel touches, the one its centre is in; the first if it touches none.

        Where it is in several (a road that crosses itself), the one it is deepest in; where in none, the one it is
        least outside of; on equal terms the first.
        """
        # On a CPU, `argmin` (which XLA reduces pair by pair) takes five times as long as all the rest of a frame.
        tiles = self.outside.shape[1]
        least = self.outside == jnp.min(self.outside, axis=1, keepdims=True)
        return jnp.min(jnp.where(least, jnp.arange(tiles), tiles), axis=1)


def tile_geometry(tiles: Float[Array, "tiles 4 2"]) -> TileGeometry:
    """Prepare tiles, given by their corners in any order."""
    middle = jnp.mean(tiles, axis=1)
    corners = jnp.transpose(tiles - middle[:, None], (2, 1, 0))
    first, second = (jnp.array(ends) for ends in zip(*combinations(range(4), 2), strict=True))
    side_x, side_y = corners[:, second] - corners[:, first]
    length = jnp.sqrt(side_x**2 + side_y**2)
    normals = jnp.stack([-side_y, side_x]) / jnp.where(length > 0, length, 1)
    along = normals[0, :, None] * corners[0] + normals[1, :, None] * corners[1]
    low, high = jnp.min(along, axis=1), jnp.max(along, axis=1)
    return TileGeometry(middle.T, corners, normals, (low + high) / 2, (high - low) / 2)


def touching(geometry: TileGeometry, car: Car) -> Contacts:
    """What each wheel touches: the tiles that along no direction are further from it than the skin."""
    dx = car.position[1:, 0, None] - geometry.middle[0]
    dy = car.position[1:, 1, None] - geometry.middle[1]
    # All about wheels is a column, all about tiles a row.
    sin, cos = jnp.sin(car.angle[1:, None]), jnp.cos(car.angle[1:, None])
    half_width, half_length = WHEEL_HALF_EXTENTS
    outside, gaps = [], []
    for nx, ny, centre, half in zip(*geometry.normals, geometry.centres, geometry.halves, strict=True):
        shadow = half_width * jnp.abs(nx * cos + ny * sin) + half_length * jnp.abs(ny * cos - nx * sin)
        outside.append(jnp.abs(nx * dx + ny * dy - centre) - half)
        gaps.append(outside[-1] - shadow)
    for ax, ay, half_extent in ((cos, sin, half_width), (-sin, cos, half_length)):
        corners = [ax * x + ay * y for x, y in zip(*geometry.corners, strict=True)]
        along = ax * dx + ay * dy
        beyond = jnp.maximum(along - reduce(jnp.maximum, corners), reduce(jnp.minimum, corners) - along)
        gaps.append(beyond - half_extent)
    touched = reduce(jnp.maximum, gaps) <= SKIN
    # The barrier keeps the compiler from working all this out again for every use of the result.
    return Contacts(jax.lax.optimization_barrier(jnp.where(touched, reduce(jnp.maximum, outside), jnp.inf)))
