"""The tiles that a car can come to touch while an action lasts: no frame needs to look at any others.

On a CPU nearly all of the cost of driving is to find out what the wheels touch, and most tiles are far away.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from samplr.envs.black_ice.contacts import SKIN, TileGeometry
from samplr.envs.black_ice.physics import FRAME, TOP_ACCELERATION, TOP_SPEED, WHEEL_ANCHORS, WHEEL_HALF_EXTENTS, Car

# From the hull's centre of mass to the outermost point of a wheel, with room for joints that give and for rounding.
_CAR = max(math.hypot(*anchor) for anchor in WHEEL_ANCHORS) + math.hypot(*WHEEL_HALF_EXTENTS) + SKIN + 0.5


class Nearby(eqx.Module):
    """Tiles within reach, and whether there is room for all of them."""

    index: Int[Array, " room"]
    """Their places among all tiles, in order; after the last of them, the number of all tiles."""
    crowded: Bool[Array, ""]
    """Whether some are missing."""


def room(tiles: int) -> int:
    """For how many tiles within reach there is room: as many as all but one place in a thousand need, or all tiles.

    A GPU has room for all: to it, all tiles are one fused loop, and to choose among them is not.
    """
    return tiles if jax.default_backend() == "gpu" else min(tiles, 32 * math.ceil((64 + tiles / 16) / 32))


def nearby(geometry: TileGeometry, car: Car, frames: int) -> Nearby:
    """The tiles that a car may touch within so many frames, whatever it does."""
    tiles = geometry.middle.shape[1]
    x, y = car.position[0]
    radius = jnp.sqrt(jnp.max(geometry.corners[0] ** 2 + geometry.corners[1] ** 2, axis=0))
    reach = _way(car, frames) + _CAR + radius
    within = (geometry.middle[0] - x) ** 2 + (geometry.middle[1] - y) ** 2 <= reach**2
    (index,) = jnp.nonzero(within, size=room(tiles), fill_value=tiles)
    return Nearby(index, jnp.sum(within) > room(tiles))


def _way(car: Car, frames: int) -> Float[Array, ""]:
    """How far a car may come: its wheels push it no faster than they have grip, and nothing is faster than the top."""
    speed = jnp.hypot(car.velocity[0, 0], car.velocity[0, 1])
    gained = TOP_ACCELERATION * FRAME * (frames + 1) / 2
    return jnp.minimum(speed + gained, TOP_SPEED) * FRAME * frames


def picked(near: Nearby, values: Array, missing: float = 0) -> Array:
    """Of something that every tile has, what those within reach have, and something else in the places left over."""
    return values.at[..., near.index].get(mode="fill", fill_value=missing)


def tiles_near(near: Nearby, geometry: TileGeometry) -> TileGeometry:
    """The tiles within reach; in the places left over, tiles that nothing can touch."""
    here: TileGeometry = jax.tree.map(lambda values: picked(near, values), geometry)
    return eqx.tree_at(lambda tiles: tiles.middle, here, picked(near, geometry.middle, jnp.inf))
