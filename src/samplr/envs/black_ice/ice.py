"""What ice does: which tiles act on a wheel, and how much friction they leave it."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from samplr.envs.black_ice.contacts import Contacts
from samplr.envs.black_ice.physics import GRASS_LIMIT, ROAD_LIMIT

IceRule = Literal["nearest", "min", "max", "mean"]
"""How a wheel that touches several tiles combines their friction; the paper does not say."""


def acting_tiles(contacts: Contacts, rule: IceRule) -> Bool[Array, "4 tiles"]:
    """The tiles whose ice acts on each wheel: the one under its centre, or all that it touches."""
    if rule != "nearest":
        return contacts.touched
    tiles = jnp.arange(contacts.outside.shape[1])
    return contacts.touched & (tiles == contacts.nearest[:, None])


def friction_limit(acting: Bool[Array, "4 tiles"], icy: Bool[Array, " tiles"], rule: IceRule) -> Float[Array, "4"]:
    """The greatest force on each wheel: on the road, on grass where no tile acts, or nothing on ice.

    In gymnasium no tile gives less than grass; for ice to be slippery, that floor is dropped for a wheel on a tile.
    """
    on_road = jnp.any(acting, axis=1)
    on_ice = jnp.any(acting & icy, axis=1)
    if rule == "max":
        dry_share = jnp.any(acting & ~icy, axis=1).astype(jnp.float32)
    elif rule == "mean":
        dry_share = jnp.sum(acting & ~icy, axis=1) / jnp.maximum(jnp.sum(acting, axis=1), 1)
    else:
        dry_share = (~on_ice).astype(jnp.float32)
    return jnp.where(on_road, ROAD_LIMIT * dry_share, GRASS_LIMIT)
