"""Driving: one frame after the other, what is visited, what is earned, and when it ends."""

import functools
import math
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from samplr import trees
from samplr.envs.black_ice.contacts import TileGeometry, touching
from samplr.envs.black_ice.ice import IceRule, acting_tiles, friction_limit
from samplr.envs.black_ice.nearby import Nearby, nearby, picked, room, tiles_near
from samplr.envs.black_ice.physics import Car, drive_frame, hull_origin, park, start
from samplr.envs.black_ice.tracks import Track
from samplr.errors import SamplrError


class Rules(eqx.Module):
    """What an episode pays, and when it ends."""

    action_repeat: int = 8
    """Frames that each action lasts."""
    frame_limit: int = 1000
    """Frames after which an episode is cut off; a circuit has a limit of its own."""
    limit_truncates: bool = True
    """Whether an episode at that limit is cut off (truncated) or over (terminated)."""
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
    end_bonus: float = 0.0
    """Paid besides in the frame in which the lap is driven, the playfield left or the limit of frames reached."""
    lap_share: float = 0.95
    """Back at the start with more than this share of the tiles visited, the lap counts as driven."""

    def __check_init__(self) -> None:
        for name in ("action_repeat", "frame_limit"):
            if getattr(self, name) < 1:
                raise SamplrError(f"the rules need a {name} of at least 1, not {getattr(self, name)}")
        if self.idle_limit < 0:
            raise SamplrError(f"the rules need an idle_limit of 0 or more, not {self.idle_limit}")
        for name in ("frame_penalty", "track_reward", "out_of_bounds_reward", "end_bonus", "lap_share"):
            number = getattr(self, name)
            if number is not None and not math.isfinite(number):
                raise SamplrError(f"the rules need a finite {name}, not {number:g}")

    def is_stuck(self, idle: Int[Array, ""]) -> Bool[Array, ""]:
        """Whether there was no new tile for too long."""
        return (idle >= self.idle_limit) & (self.idle_limit > 0)


TRAINING = Rules()


class Rest(eqx.Module):
    """Of a road some of whose tiles were left out: what must be known of all of it."""

    tiles: int = eqx.field(static=True)
    """How many there are in all."""
    visited: Int[Array, ""]
    """How many of those that were left out are visited."""
    first: Bool[Array, " tiles"]
    """Which of those that are here is the first of all."""


class Road(eqx.Module):
    """What the car drives on."""

    tiles: TileGeometry
    playfield: Float[Array, ""]
    """Distance from the middle at which the world ends."""
    frame_limit: Int[Array, ""]
    rest: Rest | None = None
    """Where only some of the tiles are here, the others."""


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
        pending=_worth(visited, visited.size, rules),
        terminated=jnp.array(False),
        lap=jnp.array(False),
    )


def drive(
    road: Road, before: Drive, action: Float[Array, "3"], icy: Bool[Array, " tiles"], rules: Rules, rule: IceRule
) -> tuple[Drive, Float[Array, ""]]:
    """Hold an action for some frames; those after the end change nothing.

    **Returns:** the drive, and what it has earned.
    """
    if room(icy.size) == icy.size:
        return _hold(road, before, icy, action, rules, rule)
    near = nearby(road.tiles, before.car, rules.action_repeat)
    after, earned = _hold(*_near(road, before, icy, near), action, rules, rule)
    after = _on_the_whole_road(before, after, near)

    # A loop of one turn at most: a batch of cars goes round if any of them needs it, where it would always compute both
    # sides of a `cond`. What the turn does depends on the flag, or the compiler would do it before the loop.
    def with_all_tiles(found: Any) -> Any:
        crowded = found[2]
        return *_hold(road, before, icy & crowded, action, rules, rule), jnp.array(False)

    after, earned, _ = jax.lax.while_loop(lambda found: found[2], with_all_tiles, (after, earned, near.crowded))
    return after, earned


def _hold(
    road: Road, before: Drive, icy: Bool[Array, " tiles"], action: Float[Array, "3"], rules: Rules, rule: IceRule
) -> tuple[Drive, Float[Array, ""]]:
    def frame(_: Array, carry: tuple[Drive, Array]) -> tuple[Drive, Array]:
        now, earned = carry
        over = now.terminated | cut_off(road, now, rules)
        after, reward = drive_one_frame(road, now, action, icy, rules, rule)
        return trees.where(over, now, after), earned + jnp.where(over, 0.0, reward)

    return jax.lax.fori_loop(0, rules.action_repeat, frame, (before, jnp.zeros(())))


def _near(
    road: Road, drive: Drive, icy: Bool[Array, " tiles"], near: Nearby
) -> tuple[Road, Drive, Bool[Array, " tiles"]]:
    """Road, drive and ice of the tiles within reach."""
    here = _with_marks(drive, picked(near, _marks(drive)))
    rest = Rest(icy.size, jnp.sum(drive.visited) - jnp.sum(here.visited), near.index == 0)
    return Road(tiles_near(near, road.tiles), road.playfield, road.frame_limit, rest), here, picked(near, icy)


def _on_the_whole_road(before: Drive, here: Drive, near: Nearby) -> Drive:
    """A drive among the tiles within reach, with the others as they were before."""
    return _with_marks(here, _marks(before).at[near.index].set(_marks(here), mode="drop"))


def _marks(drive: Drive) -> Int[Array, " tiles"]:
    """All that a drive says of each tile as one number, so that places are looked up once and not six times."""
    by_tile = (*drive.acting, drive.visited, drive.revealed)
    return functools.reduce(operator.or_, (marked.astype(int) << bit for bit, marked in enumerate(by_tile)))


def _with_marks(drive: Drive, marks: Int[Array, " tiles"]) -> Drive:
    """A drive with what such numbers say."""
    *acting, visited, revealed = ((marks >> bit & 1).astype(bool) for bit in range(6))
    return eqx.tree_at(lambda d: (d.acting, d.visited, d.revealed), drive, (jnp.stack(acting), visited, revealed))


def cut_off(road: Road, drive: Drive, rules: Rules) -> Bool[Array, ""]:
    """Whether a drive is at its limit of frames or of patience, where that truncates."""
    at_limit, stuck = drive.frame >= road.frame_limit, rules.is_stuck(drive.idle)
    return (at_limit & rules.limit_truncates) | (stuck & rules.idle_truncates)


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
    lap = _is_lap(road, new, visited, rules)
    out = jnp.max(jnp.abs(hull_origin(car))) > road.playfield
    at_limit, stuck = now.frame + 1 >= road.frame_limit, rules.is_stuck(idle)
    over = lap | out | (at_limit & (not rules.limit_truncates)) | (stuck & (not rules.idle_truncates))
    reward = _worth(new, _tiles(road), rules) - rules.frame_penalty + now.pending
    if rules.out_of_bounds_reward is not None:
        reward = jnp.where(out, rules.out_of_bounds_reward, reward)
    if rules.end_bonus:
        reward += jnp.where(lap | out | at_limit, rules.end_bonus, 0.0)
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


def _worth(new: Bool[Array, " tiles"], tiles: int, rules: Rules) -> Float[Array, ""]:
    return rules.track_reward / tiles * jnp.sum(new, dtype=float)


def _tiles(road: Road) -> int:
    return road.tiles.middle.shape[1] if road.rest is None else road.rest.tiles


def _is_lap(road: Road, new: Bool[Array, " tiles"], visited: Bool[Array, " tiles"], rules: Rules) -> Bool[Array, ""]:
    """Whether every tile was visited, or nearly every one and the first just now."""
    count, at_first = jnp.sum(visited), new[0]
    if road.rest is not None:
        count, at_first = count + road.rest.visited, jnp.any(new & road.rest.first)
    return (count == _tiles(road)) | (at_first & (count / _tiles(road) > rules.lap_share))
