"""Driving: one frame after the other, what is visited, what is earned, and when it ends."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from samplr import trees
from samplr.envs.black_ice.contacts import TileGeometry, touching
from samplr.envs.black_ice.ice import IceRule, acting_tiles, friction_limit
from samplr.envs.black_ice.physics import Car, drive_frame, hull_origin, park, start
from samplr.envs.black_ice.tracks import Track
from samplr.errors import SamplrError


class Rules(eqx.Module):
    """What an episode pays, and when it ends."""

    action_repeat: int = 8
    """Frames that each action lasts."""
    frame_limit: int = 1000
    """Frames after which an episode is cut off (truncated); a circuit has a limit of its own."""
    frame_penalty: float = 0.1
    """Taken off for every frame."""
    track_reward: float = 1000.0
    """Paid for visiting all tiles, in equal parts for each tile visited for the first time."""
    out_of_bounds_reward: float | None = None
    """What the frame in which the car leaves the playfield pays instead; without it, that frame pays as any other."""
    idle_limit: int = 100
    """Frames without a new tile after which the episode ends; 0 for never."""
    idle_truncates: bool = False
    """Whether an episode that ends for want of a new tile is cut off (truncated) instead of lost (terminated)."""
    lap_share: float = 0.95
    """Back at the start with more than this share of the tiles visited, the lap counts as driven."""

    def __check_init__(self) -> None:
        for name in ("action_repeat", "frame_limit"):
            if getattr(self, name) < 1:
                raise SamplrError(f"the rules need a {name} of at least 1, not {getattr(self, name)}")
        if self.idle_limit < 0:
            raise SamplrError(f"the rules need an idle_limit of 0 or more, not {self.idle_limit}")
        for name in ("frame_penalty", "track_reward", "out_of_bounds_reward", "lap_share"):
            number = getattr(self, name)
            if number is not None and not math.isfinite(number):
                raise SamplrError(f"the rules need a finite {name}, not {number:g}")

    def is_stuck(self, idle: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether there was no new tile for too long."""
        return (idle >= self.idle_limit) & (self.idle_limit > 0)


TRAINING = Rules()


class Road(eqx.Module):
    """What the car drives on."""

    tiles: TileGeometry
    playfield: Float[Array, ""]
    """Distance from the middle at which the world ends."""
    frame_limit: Int[Array, ""]


class Drive(eqx.Module):
    """How far a drive has come."""

    car: Car
    acting: Bool[Array, "4 tiles"]
    """The tiles whose ice acts on each wheel in the next frame: contacts are a frame old when forces are computed."""
    visited: Bool[Array, " tiles"]
    revealed: Bool[Array, " tiles"]
    """The tiles whose ice has acted on a wheel."""
    frame: Int[Array, ""]
    idle: Int[Array, ""]
    """Frames since the last new tile."""
    pending: Float[Array, ""]
    """Reward for what was visited before the first action, which the first frame pays."""
    terminated: Bool[Array, ""]
    lap: Bool[Array, ""]
    """Whether the lap was driven."""


def begin(track: Track, tiles: TileGeometry, rules: Rules, rule: IceRule) -> Drive:
    """At the start, after the frame that the simulator's reset runs before the first action."""
    contacts = touching(tiles, park(track.centre[0], track.heading[0]))
    visited = jnp.any(contacts.touched, axis=0)
    none = jnp.zeros_like(visited)
    return Drive(
        car=start(track.centre[0], track.heading[0]),
        acting=acting_tiles(contacts, rule),
        visited=visited,
        revealed=none,
        frame=jnp.int32(0),
        idle=jnp.int32(0),
        pending=_worth(visited, rules),
        terminated=jnp.array(False),
        lap=jnp.array(False),
    )


def drive(
    road: Road, before: Drive, action: Float[Array, "3"], icy: Bool[Array, " tiles"], rules: Rules, rule: IceRule
) -> tuple[Drive, Float[Array, ""]]:
    """Hold an action for some frames; those after the end change nothing.

    **Returns:** the drive, and what it has earned.
    """

    def frame(_: Array, carry: tuple[Drive, Array]) -> tuple[Drive, Array]:
        now, earned = carry
        over = now.terminated | cut_off(road, now, rules)
        after, reward = drive_one_frame(road, now, action, icy, rules, rule)
        return trees.where(over, now, after), earned + jnp.where(over, 0.0, reward)

    return jax.lax.fori_loop(0, rules.action_repeat, frame, (before, jnp.zeros(())))


def cut_off(road: Road, drive: Drive, rules: Rules) -> Bool[Array, ""]:
    """Whether a drive is at its limit of frames, or of patience where that truncates."""
    at_limit = drive.frame >= road.frame_limit
    return at_limit | rules.is_stuck(drive.idle) if rules.idle_truncates else at_limit


def drive_one_frame(
    road: Road, now: Drive, action: Float[Array, "3"], icy: Bool[Array, " tiles"], rules: Rules, rule: IceRule
) -> tuple[Drive, Float[Array, ""]]:
    """One frame: forces by the contacts of the frame before, then contacts where the car stands, then motion."""
    limit = friction_limit(now.acting, icy, rule)
    contacts = touching(road.tiles, now.car)
    car = drive_frame(now.car, action, limit)
    touched = jnp.any(contacts.touched, axis=0)
    new, visited = touched & ~now.visited, now.visited | touched
    idle = jnp.where(jnp.any(new) | (now.pending > 0), 0, now.idle + 1)
    lap = jnp.all(visited) | (new[0] & (jnp.mean(visited, dtype=jnp.float32) > rules.lap_share))
    out = jnp.max(jnp.abs(hull_origin(car))) > road.playfield
    over = lap | out if rules.idle_truncates else lap | out | rules.is_stuck(idle)
    reward = _worth(new, rules) - rules.frame_penalty + now.pending
    if rules.out_of_bounds_reward is not None:
        reward = jnp.where(out, rules.out_of_bounds_reward, reward)
    after = Drive(
        car=car,
        acting=acting_tiles(contacts, rule),
        visited=visited,
        revealed=now.revealed | jnp.any(now.acting, axis=0),
        frame=now.frame + 1,
        idle=idle,
        pending=jnp.zeros(()),
        terminated=over,
        lap=lap,
    )
    return after, reward


def _worth(new: Bool[Array, " tiles"], rules: Rules) -> Float[Array, ""]:
    return rules.track_reward / new.size * jnp.sum(new, dtype=float)
