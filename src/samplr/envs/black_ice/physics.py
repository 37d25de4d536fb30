"""The car: a hull and four wheels on joints, moved as gymnasium's CarRacing moves them, but in closed form.

The real simulator iterates Box2D's solver 180 times per frame. That has converged long before, so one frame is written
here as what it converges to: tyre forces, then the only velocities that keep the wheels on the hull and turn them as
commanded, then a pass or two over the joints that pull together what integration moved apart.
Units: u, seconds, radians; a body at angle 0 faces +y. Everything is unbatched and elementwise, so that a batch of cars
becomes a few fused loops; it runs in the precision of its inputs.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

FRAME = 1 / 50
"""Seconds per frame."""
ROAD_LIMIT = 400.0
"""The greatest force between a wheel and the road; on ice it is 0."""
GRASS_LIMIT = 0.6 * ROAD_LIMIT
TOP_SPEED = 2.0 / FRAME
"""Box2D moves no body by more than 2 u per frame."""
WHEEL_WIDTH = 0.56
WHEEL_RADIUS = 0.54
WHEEL_HALF_EXTENTS = (WHEEL_WIDTH / 2, WHEEL_RADIUS)
"""Of a wheel's rectangle, across and along the direction it rolls in."""
WHEEL_ANCHORS = ((-1.1, 1.6), (1.1, 1.6), (-1.1, -1.64), (1.1, -1.64))
"""Front left, front right, rear left, rear right: where the wheels sit on the hull, from its origin."""
HULL_POLYGONS = (
    ((-1.2, 2.6), (1.2, 2.6), (1.2, 2.2), (-1.2, 2.2)),
    ((-0.3, 2.4), (0.3, 2.4), (0.4, 0.4), (-0.4, 0.4)),
    ((0.5, 0.4), (1.0, -0.2), (1.0, -0.8), (0.4, -1.8), (-0.4, -1.8), (-1.0, -0.8), (-1.0, -0.2), (-0.5, 0.4)),
    ((-1.0, -2.4), (1.0, -2.4), (1.0, -1.8), (-1.0, -1.8)),
)

# Masses and moments of inertia follow from the polygons; the hull has density 1 and the wheels 0.1.
_HULL_MASS, _HULL_INERTIA, _HULL_CENTRE = 7.06, 18.212278785, -0.0825306893
_WHEEL_MASS, _WHEEL_INERTIA = 0.06048, 0.0074592
_MASS = _HULL_MASS + 4 * _WHEEL_MASS
TOP_ACCELERATION = 4 * ROAD_LIMIT / _MASS
"""What four wheels at the limit of their grip give the car."""
_ENGINE_POWER = 4e4
_ROLLING_INERTIA = 1.6
_GRIP = 82.0  # force per u/s of slip
_GAS_RISE = 0.1  # per frame
_BRAKING = 15.0  # rad/s per frame at full brake
_LOCKING_BRAKE = 0.9

# The steering joints: their motors aim at the target with a bounded speed, within limits that give by a slop.
_AIM, _TURN_RATE = 50.0, 3.0
_ANGLE_LIMIT, _ANGLE_SLOP, _ANGLE_CORRECTION = 0.4, math.radians(2), math.radians(8)
_MOTOR_IMPULSE = 64.8 * FRAME
_MOTOR_MASS = 1 / (1 / _HULL_INERTIA + 1 / _WHEEL_INERTIA)
_VELOCITY_PASSES = 180
# Over the joints at most. While driving, Box2D needs a second pass where the car spins, and hardly ever a third.
_PASSES_AT_START, _PASSES = 60, 2
_JOINT_SLOP = 0.005
# Box2D collects the joints starting from the body that was made last.
_JOINT_ORDER = (3, 2, 1, 0)


class Car(eqx.Module):
    """The five bodies, hull first and then the wheels in the order of `WHEEL_ANCHORS`, and what drives the wheels."""

    position: Float[Array, "5 2"]
    """Centres of mass."""
    angle: Float[Array, " 5"]
    velocity: Float[Array, "5 2"]
    spin: Float[Array, " 5"]
    """Angular velocities."""
    omega: Float[Array, " 4"]
    """How fast the wheels roll, rad/s."""
    phase: Float[Array, " 4"]
    """How far they have rolled, rad."""
    gas: Float[Array, " 4"]
    """It rises slowly and falls at once; only the rear wheels are driven."""
    windup: Float[Array, " 4"]
    """Impulse a steering motor has built up against its joint's limit, and must unwind before it turns back."""


class _Joints(eqx.Module):
    """What the joints do in a frame."""

    turn: Float[Array, " 4"]
    """The wheels' spin relative to the hull."""
    windup: Float[Array, " 4"]
    side: Float[Array, " 4"]
    """1 at the upper limit when the frame began, −1 at the lower, 0 in between."""


class _Pushed(eqx.Module):
    """The whole car after the forces on its wheels, as if none of them turned on its joint."""

    momentum_x: Float[Array, ""]
    momentum_y: Float[Array, ""]
    spin: Float[Array, ""]
    inertia: Float[Array, ""]
    arm_x: Float[Array, " 4"]
    """From the hull's centre of mass to the wheels."""
    arm_y: Float[Array, " 4"]


class _Bodies(eqx.Module):
    """Positions and angles by coordinate, which is how the joints are solved: one after another, in scalars."""

    x: list[Float[Array, ""]]
    y: list[Float[Array, ""]]
    angle: list[Float[Array, ""]]
    unsettled: Bool[Array, ""]
    """Whether the last pass over the joints found something to mend."""


def park(position: Float[Array, "2"], angle: Float[Array, ""]) -> Car:
    """The car as the simulator creates it, the hull's origin at `position`.

    Its wheels are not where they belong: the simulator offsets them without turning the offsets by `angle`. The first
    frame finds the wheels there when it looks what they touch, and then pops them in place: see `start`.
    """
    dtype = jnp.result_type(position)
    angle = jnp.asarray(angle, dtype)
    hull = position + _HULL_CENTRE * jnp.stack([-jnp.sin(angle), jnp.cos(angle)])
    wheels = position + jnp.asarray(WHEEL_ANCHORS, dtype)
    zero = jnp.zeros(4, dtype)
    return Car(
        position=jnp.concatenate([hull[None], wheels]),
        angle=jnp.full(5, angle),
        velocity=jnp.zeros((5, 2), dtype),
        spin=jnp.zeros(5, dtype),
        omega=zero,
        phase=zero,
        gas=zero,
        windup=zero,
    )


def start(position: Float[Array, "2"], angle: Float[Array, ""]) -> Car:
    """The car after the frame without an action that the simulator's reset runs.

    Nothing moves in it but what the joints pull in place, at the cost of turning the hull by up to 0.05 rad.
    """
    parked = park(position, angle)
    free = jnp.zeros_like(parked.omega)

    bodies = _split(parked.position, parked.angle)
    return _put(parked, jax.lax.fori_loop(0, _PASSES_AT_START, lambda _, bodies: _pull_together(bodies, free), bodies))


def drive_frame(car: Car, action: Float[Array, "3"], friction_limit: Float[Array, "4"]) -> Car:
    """One frame of driving.

    **Arguments:**

    - `action`: steering (−1 left to 1 right), gas and brake (0 to 1).
    - `friction_limit`: the greatest force on each wheel: `ROAD_LIMIT`, `GRASS_LIMIT`, or 0 on ice.
    """
    steering, gas, brake = jnp.unstack(action)
    car = _roll(car, gas, brake)
    car, force_x, force_y = _grip(car, friction_limit)
    pushed = _push(car, force_x, force_y)
    joints = _steer(car, steering, pushed.spin)
    car = _move(car, pushed, joints.turn)
    bodies = _split(car.position, car.angle)
    for _ in range(_PASSES):
        # The barrier keeps the compiler from working a pass out again for every number that the next one takes from it.
        bodies = jax.lax.optimization_barrier(_pull_together(bodies, joints.side))
    return eqx.tree_at(lambda c: c.windup, _put(car, bodies), joints.windup)


def hull_origin(car: Car) -> Float[Array, "2"]:
    """Where the hull's own coordinates begin; the camera looks at it, and the playfield's edge is measured by it."""
    angle = car.angle[0]
    return car.position[0] - _HULL_CENTRE * jnp.stack([-jnp.sin(angle), jnp.cos(angle)])


def _steer(car: Car, steering: Float[Array, ""], hull_spin: Float[Array, ""]) -> _Joints:
    """How the motors turn the wheels: towards their target, but neither beyond a limit nor before they are unwound."""
    steered = jnp.asarray([-1, -1, 0, 0], car.angle.dtype)
    angle = car.angle[1:] - car.angle[0]
    missing = steered * steering - angle
    motor = jnp.sign(missing) * jnp.minimum(_AIM * jnp.abs(missing), _TURN_RATE)
    upper, lower = angle >= _ANGLE_LIMIT, angle <= -_ANGLE_LIMIT
    side = jnp.where(upper, 1.0, jnp.where(lower, -1.0, 0.0)).astype(angle.dtype)
    # At the limit, every pass of the solver adds this to the motor's impulse or takes it away, and the limit undoes it;
    # until, maybe in a frame's last pass, the limit would have to pull: its impulse is the motor's, less what the wheel
    # needs to keep up with the hull.
    pass_impulse = _MOTOR_MASS * jnp.abs(motor)
    outward, limited = motor * side > 0, side != 0
    change = _VELOCITY_PASSES * pass_impulse
    undone = car.windup - side * _WHEEL_INERTIA * (hull_spin - car.spin[1:])
    freed = jnp.clip((change - undone) / (pass_impulse + 1e-12), 0, 1)
    share = jnp.where(limited, jnp.where(outward, 0.0, freed), 1.0)
    windup = jnp.where(outward, jnp.minimum(car.windup + change, _MOTOR_IMPULSE), jnp.maximum(car.windup - change, 0))
    return _Joints(share * motor, jnp.where(limited, windup, 0.0), side)


def _roll(car: Car, gas: Float[Array, ""], brake: Float[Array, ""]) -> Car:
    """Engine and brakes: ω += dt·P·gas/(I·(|ω|+5)), then the brake takes 15·brake off |ω|, or all of it."""
    driven = jnp.asarray([0, 0, 1, 1], car.gas.dtype)
    gas_now = car.gas + driven * jnp.minimum(jnp.clip(gas, 0, 1) - car.gas, _GAS_RISE)
    omega = car.omega + FRAME * _ENGINE_POWER / _ROLLING_INERTIA * gas_now / (jnp.abs(car.omega) + 5)
    braked = jnp.sign(omega) * jnp.maximum(jnp.abs(omega) - _BRAKING * jnp.maximum(brake, 0), 0)
    omega = jnp.where(brake >= _LOCKING_BRAKE, 0, braked)
    return eqx.tree_at(lambda c: (c.gas, c.omega, c.phase), car, (gas_now, omega, car.phase + FRAME * omega))


def _grip(car: Car, friction_limit: Float[Array, "4"]) -> tuple[Car, Float[Array, "4"], Float[Array, "4"]]:
    """The force of the ground on each wheel, against its slip and at most the limit; it also drags on the rolling."""
    sin, cos = jnp.sin(car.angle[1:]), jnp.cos(car.angle[1:])
    vx, vy = car.velocity[1:, 0], car.velocity[1:, 1]
    forward = _GRIP * (WHEEL_RADIUS * car.omega - (cos * vy - sin * vx))
    side = -_GRIP * (cos * vx + sin * vy)
    # The tiny addend keeps 0/0 out: a wheel at rest on ice has neither slip nor limit.
    kept = jnp.minimum(1, friction_limit / jnp.sqrt(forward**2 + side**2 + 1e-12))
    forward, side = kept * forward, kept * side
    omega = car.omega - FRAME * WHEEL_RADIUS / _ROLLING_INERTIA * forward
    return eqx.tree_at(lambda c: c.omega, car, omega), side * cos - forward * sin, side * sin + forward * cos


def _push(car: Car, force_x: Float[Array, "4"], force_y: Float[Array, "4"]) -> _Pushed:
    """Momenta of all five bodies together. With rᵢ from the hull's centre of mass to wheel i and S = Σrᵢ:

    ω = (L − m/M·S×P) / (I + 4·I_w + m·Σ|rᵢ|² − m²/M·|S|²).
    """
    rx, ry = _arms(jnp.sin(car.angle[0]), jnp.cos(car.angle[0]), jnp.asarray(WHEEL_ANCHORS, car.angle.dtype).T)
    vx = car.velocity[1:, 0] + FRAME / _WHEEL_MASS * force_x
    vy = car.velocity[1:, 1] + FRAME / _WHEEL_MASS * force_y
    px = _HULL_MASS * car.velocity[0, 0] + _WHEEL_MASS * _total(vx)
    py = _HULL_MASS * car.velocity[0, 1] + _WHEEL_MASS * _total(vy)
    sx, sy, share = _total(rx), _total(ry), _WHEEL_MASS / _MASS
    momentum = _HULL_INERTIA * car.spin[0] + _WHEEL_INERTIA * _total(car.spin[1:])
    momentum += _WHEEL_MASS * _total(rx * vy - ry * vx) - share * (sx * py - sy * px)
    inertia = _HULL_INERTIA + 4 * _WHEEL_INERTIA + _WHEEL_MASS * (_total(rx**2 + ry**2) - share * (sx**2 + sy**2))
    return _Pushed(px, py, momentum / inertia, inertia, rx, ry)


def _move(car: Car, pushed: _Pushed, turn: Float[Array, "4"]) -> Car:
    """The velocities that the joints allow, v = (P − m·ω·S⊥)/M, vᵢ = v + ω·rᵢ⊥, ωᵢ = ω + turnᵢ, and their motion.

    A wheel that turns on its joint leaves that much less of the angular momentum to the rest.
    """
    hull = jnp.zeros(1, car.angle.dtype)
    spin = pushed.spin - _WHEEL_INERTIA * _total(turn) / pushed.inertia
    hull_x = (pushed.momentum_x + _WHEEL_MASS * spin * _total(pushed.arm_y)) / _MASS
    hull_y = (pushed.momentum_y - _WHEEL_MASS * spin * _total(pushed.arm_x)) / _MASS
    velocity_x = hull_x + spin * jnp.concatenate([hull, -pushed.arm_y])
    velocity_y = hull_y + spin * jnp.concatenate([hull, pushed.arm_x])
    speed = jnp.sqrt(velocity_x**2 + velocity_y**2)
    velocity = jnp.stack([velocity_x, velocity_y], axis=-1) * jnp.minimum(1, TOP_SPEED / (speed + 1e-12))[:, None]
    spins = spin + jnp.concatenate([hull, turn])
    return eqx.tree_at(
        lambda c: (c.position, c.angle, c.velocity, c.spin),
        car,
        (car.position + FRAME * velocity, car.angle + FRAME * spins, velocity, spins),
    )


def _pull_together(bodies: _Bodies, side: Float[Array, "4"]) -> _Bodies:
    """One pass over the joints that mends angles beyond a limit and wheels off their anchors.

    As in Box2D, the first pass that finds everything within the slop is the last: those after it do nothing.
    """
    x, y, angle = list(bodies.x), list(bodies.y), list(bodies.angle)
    sides = jnp.unstack(side)
    off = jnp.zeros((), bool)
    for i in _JOINT_ORDER:
        wheel = i + 1
        beyond = sides[i] * (angle[wheel] - angle[0]) - _ANGLE_LIMIT
        excess = jnp.where(sides[i] != 0, jnp.clip(beyond - _ANGLE_SLOP, 0, _ANGLE_CORRECTION), 0)
        angle[0] = angle[0] + _MOTOR_MASS / _HULL_INERTIA * sides[i] * excess
        angle[wheel] = angle[wheel] - _MOTOR_MASS / _WHEEL_INERTIA * sides[i] * excess
        rx, ry = _arms(jnp.sin(angle[0]), jnp.cos(angle[0]), WHEEL_ANCHORS[i])
        gap_x, gap_y = x[wheel] - x[0] - rx, y[wheel] - y[0] - ry
        off |= (gap_x**2 + gap_y**2 > _JOINT_SLOP**2) | (excess > 0)
        push_x, push_y = _mending_impulse(rx, ry, gap_x, gap_y)
        x[0], y[0] = x[0] - push_x / _HULL_MASS, y[0] - push_y / _HULL_MASS
        angle[0] = angle[0] - (rx * push_y - ry * push_x) / _HULL_INERTIA
        x[wheel], y[wheel] = x[wheel] + push_x / _WHEEL_MASS, y[wheel] + push_y / _WHEEL_MASS
    mended = _Bodies(x, y, angle, off)
    return jax.tree.map(lambda old, new: jnp.where(bodies.unsettled, new, old), bodies, mended)


def _mending_impulse(
    rx: Float[Array, ""], ry: Float[Array, ""], gap_x: Float[Array, ""], gap_y: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """−K⁻¹·gap with K = (1/m_hull + 1/m_wheel)·1 + r⊥r⊥ᵀ/I_hull, the inverse written out."""
    mobility = 1 / _HULL_MASS + 1 / _WHEEL_MASS
    xx, yy, xy = mobility + ry * ry / _HULL_INERTIA, mobility + rx * rx / _HULL_INERTIA, -rx * ry / _HULL_INERTIA
    determinant = xx * yy - xy * xy
    return (xy * gap_y - yy * gap_x) / determinant, (xy * gap_x - xx * gap_y) / determinant


def _arms(sin: Array, cos: Array, anchor: tuple[float, float] | Float[Array, "2 4"]) -> tuple[Array, Array]:
    """From the hull's centre of mass to an anchor (or all four), in the world's directions."""
    along = anchor[1] - _HULL_CENTRE
    return cos * anchor[0] - sin * along, sin * anchor[0] + cos * along


def _total(x: Float[Array, "4"]) -> Float[Array, ""]:
    """The sum, written out: a reduction of four would keep its neighbours from being fused."""
    a, b, c, d = jnp.unstack(x)
    return (a + b) + (c + d)


def _split(position: Float[Array, "5 2"], angle: Float[Array, "5"]) -> _Bodies:
    x, y = jnp.unstack(position, axis=-1)
    return _Bodies(list(jnp.unstack(x)), list(jnp.unstack(y)), list(jnp.unstack(angle)), jnp.ones((), bool))


def _put(car: Car, bodies: _Bodies) -> Car:
    position = jnp.stack([jnp.stack(bodies.x), jnp.stack(bodies.y)], axis=-1)
    return eqx.tree_at(lambda c: (c.position, c.angle), car, (position, jnp.stack(bodies.angle)))
