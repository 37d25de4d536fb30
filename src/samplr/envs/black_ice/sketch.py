"""Black ice for a driver that need not learn to see: what a picture shows, as some thirty numbers.

Physics, tracks, ice and rules are those of `BlackIce`. Without pictures and convolutions a CPU trains it some sixteen
times as fast, which makes it the place to find out what a curriculum or a grounding does.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from samplr.envs.api import Encoder
from samplr.envs.black_ice.driving import Drive, Road
from samplr.envs.black_ice.networks import SketchEncoder
from samplr.envs.black_ice.physics import WHEEL_RADIUS, Car, hull_origin
from samplr.envs.black_ice.rendering import Camera, facing
from samplr.envs.black_ice.tracks import Track
from samplr.envs.black_ice.world import BlackIce
from samplr.envs.spaces import Box

AHEAD = (0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 37.0)
"""How far along the road, in u, the points lie whose places the driver knows; a picture reaches 37 u ahead."""
NUMBERS = 11 + 2 * len(AHEAD)

# Numbers of about 1: what a brisk driver comes to.
_SPEED, _SPIN, _STEERING, _DISTANCE = 50.0, 3.0, 0.4, 20.0
_FARTHEST = 40.0
# Where a road crosses itself, the driver is on the part that leads its way: one across counts as this much farther, u².
_ACROSS = 200.0


class Route(eqx.Module):
    """How long the road is up to every point, and in all."""

    along: Float[Array, " tiles"]
    length: Float[Array, ""]


class SketchedBlackIce(BlackIce):
    """Black ice, driven by numbers instead of pictures: quick to train on a CPU."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "student.encoder": "sketch",
        "student.learning_rate": 3e-4,
        "steps": 1_000_000,
    }

    backends: ClassVar[Mapping[str, str]] = {"box2d": "samplr.envs.black_ice.host:SketchedBlackIceBox2D"}

    @property
    def _view_space(self) -> Box:
        return Box((NUMBERS * self.frame_stack,))

    def encoders(self) -> Mapping[str, Any]:
        """`sketch`: hidden layers over the numbers, and over the evidence where the driver is told it."""

        def sketch(hidden: tuple[int, ...], key: PRNGKeyArray) -> Encoder:
            return SketchEncoder(sum(box.shape[0] for box in jax.tree.leaves(self.observation_space)), hidden, key=key)

        return {"sketch": sketch}

    def _scenery(self, track: Track, extent: float) -> Route:
        return route_of(track)

    def _view(self, track: Track, road: Road, scenery: Route, drive: Drive) -> Float[Array, " numbers"]:
        return sketch(track, scenery, drive.car, facing(drive.car, self.camera))


def route_of(track: Track) -> Route:
    """Measure a road."""
    steps = jnp.linalg.norm(jnp.roll(track.centre, -1, axis=0) - track.centre, axis=1)
    along = jnp.cumsum(steps)
    return Route(along - steps, along[-1])


def sketch_along(track: Track, car: Car, camera: Camera) -> Float[Array, " numbers"]:
    """What there is to see of a road that was not measured yet."""
    return sketch(track, route_of(track), car, facing(car, camera))


def sketch(track: Track, route: Route, car: Car, up: Float[Array, ""]) -> Float[Array, " numbers"]:
    """What there is to see.

    **Arguments:**

    - `up`: the angle of what would be up in a picture.

    **Returns:** the dashboard (speed, the wheels' rolling, steering, spin), where the hull and the road point, and the
    road's middle at `AHEAD`, to the right and up.
    """
    here = _nearest(track, car)
    dashboard = [
        jnp.hypot(car.velocity[0, 0], car.velocity[0, 1])[None] / _SPEED,
        car.omega * WHEEL_RADIUS / _SPEED,
        (car.angle[1] - car.angle[0])[None] / _STEERING,
        car.spin[:1] / _SPIN,
    ]
    turned = jnp.stack([car.angle[0], track.heading[here]]) - up
    away = track.centre[_ahead(route, here)] - hull_origin(car)
    sin, cos = jnp.sin(up), jnp.cos(up)
    places = jnp.concatenate([cos * away[:, 0] + sin * away[:, 1], cos * away[:, 1] - sin * away[:, 0]])
    places = jnp.clip(places, -_FARTHEST, _FARTHEST) / _DISTANCE
    return jnp.concatenate([*dashboard, jnp.sin(turned), jnp.cos(turned), places])


def _nearest(track: Track, car: Car) -> Int[Array, ""]:
    """The point of the road that the car is at."""
    away = track.centre - hull_origin(car)
    cost = jnp.sum(away**2, axis=1) + _ACROSS * (1 - jnp.cos(track.heading - car.angle[0]))
    # Not `argmin`, for which a CPU takes far longer.
    points = cost.shape[0]
    return jnp.min(jnp.where(cost == jnp.min(cost), jnp.arange(points), points - 1))


def _ahead(route: Route, here: Int[Array, ""]) -> Int[Array, " points"]:
    """The points that lie so far along the road from one of its points."""
    wanted = (route.along[here] + jnp.array(AHEAD)) % route.length
    return jnp.sum(route.along < wanted[:, None], axis=1) % route.along.shape[0]
