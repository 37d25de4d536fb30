"""Tracks: a closed centre line cut into tiles, and the random Bézier loops that training levels are made of.

Lengths are in the simulator's units (u). A car that drives along the track passes its points in increasing order.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

CONTROL_POINTS = 12
POINTS_PER_CURVE = 39
TILES = CONTROL_POINTS * POINTS_PER_CURVE
PLAYFIELD = 2000 / 6.0
"""Side of the square the control points are drawn from, and the distance from its middle at which the world ends."""
HALF_WIDTH = 40 / 6.0
"""From the centre line to the edge of the road."""

# The shape of the random loops: how round the corners are, and how far each curve's handles reach along its chord.
_ROUNDNESS = jnp.arctan(0.2) / jnp.pi + 0.5
_HANDLE = 0.2
# Neighbouring control points closer than this are drawn again, up to `_ATTEMPTS` times.
_LEAST_GAP = 0.7 / CONTROL_POINTS
_ATTEMPTS = 200


class Track(eqx.Module):
    """A closed road. Tile i lies between the points i−1 and i."""

    centre: Float[Array, "tiles 2"]
    heading: Float[Array, " tiles"]
    """The car's angle where it drives along the road: it faces (−sin, cos)."""

    @property
    def edges(self) -> tuple[Float[Array, "tiles 2"], Float[Array, "tiles 2"]]:
        """The left and the right edge of the road at every point, as the driver sees them."""
        across = HALF_WIDTH * jnp.stack([jnp.cos(self.heading), jnp.sin(self.heading)], axis=-1)
        return self.centre - across, self.centre + across

    @property
    def tiles(self) -> Float[Array, "tiles 4 2"]:
        """The corners of every tile: left and right of its far end, right and left of its near end."""
        left, right = self.edges
        return jnp.stack([left, right, jnp.roll(right, 1, axis=0), jnp.roll(left, 1, axis=0)], axis=1)


def track_along(centre: Float[Array, "tiles 2"]) -> Track:
    """The track whose points these are: each is crossed in the direction from its neighbour before to the one after."""
    ahead = jnp.roll(centre, -1, axis=0) - jnp.roll(centre, 1, axis=0)
    return Track(centre, jnp.arctan2(-ahead[:, 0], ahead[:, 1]))


def sample_control_points(*, key: PRNGKeyArray) -> Float[Array, "12 2"]:
    """Draw control points in the unit square, sorted clockwise around their mean, neighbours not too close."""

    def attempt(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        count, key, _ = carry
        key, draw = jax.random.split(key)
        return count + 1, key, _sort_clockwise(jax.random.uniform(draw, (CONTROL_POINTS, 2)))

    def rejected(carry: tuple[Array, Array, Array]) -> Bool[Array, ""]:
        count, _, points = carry
        # The generator of this research line measures |Δx + Δy| where it means the distance, and leaves out the pair
        # that closes the loop: both shape the distribution of tracks, so both are kept.
        gaps = jnp.abs(jnp.sum(jnp.diff(points, axis=0), axis=1))
        return (count < _ATTEMPTS) & jnp.any(gaps < _LEAST_GAP)

    first = attempt((jnp.int32(0), key, jnp.zeros((CONTROL_POINTS, 2))))
    return jax.lax.while_loop(rejected, attempt, first)[2]


def bezier_track(control_points: Float[Array, "12 2"]) -> Track:
    """The closed smooth loop through the control points, with the middle of its bounding box at the origin.

    The car drives it against the order of the control points, that is, counter-clockwise.
    """
    start = control_points * PLAYFIELD
    end = jnp.roll(start, -1, axis=0)
    chord = end - start
    leaving = _turn_in_between(jnp.arctan2(chord[:, 1], chord[:, 0]) % (2 * jnp.pi))
    reach = _HANDLE * jnp.linalg.norm(chord, axis=1)[:, None]
    direction = jnp.stack([jnp.cos(leaving), jnp.sin(leaving)], axis=1)
    handles = jnp.stack([start, start + reach * direction, end - reach * jnp.roll(direction, -1, axis=0), end], axis=1)
    curves = jnp.einsum("tk,ckd->ctd", _bernstein(), handles)
    centre = curves.reshape(TILES, 2)[::-1]
    return track_along(centre - (jnp.min(centre, axis=0) + jnp.max(centre, axis=0)) / 2)


def _sort_clockwise(points: Float[Array, "12 2"]) -> Float[Array, "12 2"]:
    offset = points - jnp.mean(points, axis=0)
    return points[jnp.argsort(jnp.arctan2(offset[:, 0], offset[:, 1]))]


def _turn_in_between(angle: Float[Array, " curves"]) -> Float[Array, " curves"]:
    """The direction at each control point: between that of the chord before and that of the chord after."""
    before = jnp.roll(angle, 1)
    across_zero = jnp.abs(before - angle) > jnp.pi
    return _ROUNDNESS * angle + (1 - _ROUNDNESS) * before + jnp.pi * across_zero


def _bernstein() -> Float[Array, "points 4"]:
    """The cubic Bernstein polynomials where a curve is sampled; its end is the start of the next."""
    t = jnp.arange(POINTS_PER_CURVE)[:, None] / POINTS_PER_CURVE
    return jnp.concatenate([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)
