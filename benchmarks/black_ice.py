"""Throughput on black ice.

- `make bench` (no arguments): the world alone against gymnasium's made to do the same, and driving with the tiles
  within reach against driving with all of them, in one go.
- `--runs 10`: training with SAMPLR and PLR⊥ in one go, agent-steps per second with learning, compile time apart.
- `--runs 10 --sketch`: the same with SAMPLR in the world without pictures, and in that with them.
- `--parts`: what the parts of an update cost when each is run alone.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from samplr.compiling import jit
from samplr.config import default_config
from samplr.envs.black_ice import BlackIce, SketchedBlackIce, driving, nearby
from samplr.envs.black_ice.circuits import circuit
from samplr.envs.black_ice.driving import drive
from samplr.envs.black_ice.tracks import bezier_track
from samplr.grounding import Fictitious
from samplr.rollout import collect
from samplr.training import Training


def seconds(function: Callable[..., Any], *arguments: Any, repeats: int = 3) -> float:
    """The best of a few timings of a compiled function, the first call apart."""
    jax.block_until_ready(function(*arguments))
    timings = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        timings.append(time.perf_counter() - began)
    return min(timings)


COPIES = 64
STEPS = 24
ACTION = (0.1, 0.3, 0.0)


def world_speed() -> float:
    """Agent-steps per second of our world: 64 copies, 8 frames and one picture each step, no learning."""
    env = BlackIce()
    keys = jax.random.split(jax.random.key(0), COPIES)
    levels = jit(jax.vmap(lambda key: env.sample_level(key=key)))(keys)
    worlds = jit(jax.vmap(env.build))(levels.layout)
    states, _ = jax.vmap(lambda world, ice, key: env.reset(world, ice, key=key))(worlds, levels.aleatoric, keys)
    actions = jnp.broadcast_to(jnp.array(ACTION), (COPIES, 3))

    def step(states: Any, _: None) -> tuple[Any, Any]:
        after = jax.vmap(lambda *inputs: env.step(*inputs, key=keys[0]))(worlds, states, actions)
        return after.state, (after.reward, jnp.max(after.observation))

    drive_all = jit(lambda states: jax.lax.scan(step, states, None, length=STEPS))
    return COPIES * STEPS / seconds(drive_all, states)


def driving_speed(choose: bool, circuit_name: str = "") -> float:
    """Agent-steps per second of driving alone, on random tracks or on a circuit.

    **Arguments:**

    - `choose`: whether frames look at the tiles within reach only, as they do on a CPU.
    """
    env = BlackIce()
    sample = env.on_circuit(circuit(circuit_name)) if circuit_name else lambda key: env.sample_level(key=key)
    levels = jax.vmap(sample)(jax.random.split(jax.random.key(0), COPIES))
    worlds = jit(jax.vmap(SketchedBlackIce().build), runs_once=True)(levels.layout)
    everywhere = nearby.room
    driving.room = everywhere if choose else lambda tiles: tiles

    def step(drives: Any, _: None) -> tuple[Any, None]:
        def one(world: Any, now: Any, bits: Any) -> Any:
            return driving.drive(world.road, now, jnp.array(ACTION), bits, env.rules, env.ice_rule)[0]

        return jax.vmap(one)(worlds, drives, levels.aleatoric.bits), None

    drive_all = jit(lambda drives: jax.lax.scan(step, drives, None, length=STEPS)[0])
    speed = COPIES * STEPS / seconds(drive_all, worlds.start)
    driving.room = everywhere
    return speed


def gymnasium_speed() -> float:
    """Agent-steps per second of the real simulator made to do the same, in one process."""
    from samplr.envs.black_ice.box2d import RealBlackIce

    env = BlackIce()
    level = env.sample_level(key=jax.random.key(0))
    track = jax.tree.map(np.asarray, bezier_track(level.layout.points))
    real = RealBlackIce(render_mode="state_pixels")
    timings = []
    for _ in range(3):
        real.reset(options={"track": track, "ice": np.asarray(level.aleatoric.bits)})
        began = time.perf_counter()
        for _ in range(STEPS):
            real.step(ACTION)
        timings.append(time.perf_counter() - began)
    return STEPS / min(timings)


def training_speed(method: str, runs: int, updates: int, world: str = "black_ice") -> float:
    """Agent-steps per second with learning."""
    training = Training(default_config(world, method, seeds=runs, replay__fill=0.05))
    state = training.init()
    began = time.perf_counter()
    training.compile(state)
    compiled = time.perf_counter() - began
    state, _ = jax.block_until_ready(training.advance(state, 4))
    # The coin of the schedule decides which updates learn: count them, so that methods are compared at equal shares.
    began = time.perf_counter()
    state, _ = jax.block_until_ready(training.advance(state, updates))
    passed = time.perf_counter() - began
    learned = training.gradient_updates(4 + updates)
    speed = updates * training.steps_per_update * runs / passed
    print(
        f"{world}, {method} × {runs}: {speed:,.0f} agent-steps/s, {passed / updates * 1e3:.1f} ms per update, "
        f"{learned[-1] - learned[3]} of {updates} updates learned, compiled in {compiled:.0f} s",
        flush=True,
    )
    return speed


def parts(runs: int) -> None:
    """What the parts of one update cost, each compiled alone."""
    config = default_config("black_ice", "samplr", seeds=runs)
    env: BlackIce = config.env
    training = Training(config)
    state = training.init()
    copies = runs * config.workers
    keys = jax.random.split(jax.random.key(0), copies)
    levels = jit(jax.vmap(lambda key: env.sample_level(key=key)))(keys)
    build = jit(jax.vmap(env.build))
    worlds = build(levels.layout)
    drives = worlds.start
    actions = jnp.broadcast_to(jnp.array([0.0, 0.2, 0.0]), (copies, 3))

    def over_steps(one: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda carry: jax.lax.fori_loop(0, config.rollout, lambda _, now: one(now), carry)

    def physics(world: Any, icy: Any, action: Any, now: Any) -> Any:
        return drive(world.road, now, action, icy, env.rules, env.ice_rule)[0]

    driving_all = jit(
        lambda worlds, bits, actions, drives: over_steps(lambda now: jax.vmap(physics)(worlds, bits, actions, now))(
            drives
        )
    )

    def look(worlds: Any, drives: Any) -> Any:
        def one(carry: Any) -> Any:
            drives, seen = carry
            views = jax.vmap(env._view)(worlds.track, worlds.road, worlds.scenery, drives)
            moved = eqx.tree_at(lambda d: d.car.angle, drives, drives.car.angle + 0.01)
            return moved, seen + jnp.sum(views, dtype=jnp.uint32)

        return over_steps(one)((drives, jnp.uint32(0)))

    def forward(networks: Any, views: Any) -> Any:
        def one(seen: Any) -> Any:
            policy, value, _ = jax.vmap(jax.vmap(lambda n, v: n(v, None), in_axes=(None, 0)))(
                networks, views + (seen > 1e9).astype(jnp.uint8)
            )
            return jnp.sum(value) + jnp.sum(policy.alpha)

        return over_steps(one)(jnp.zeros(()))

    views = jnp.broadcast_to(worlds.first_view.reshape(runs, -1, 96, 96, 3), (runs, config.workers, 96, 96, 3))
    print(f"parts of an update of {runs} runs ({copies} copies, {config.rollout} steps):")
    print(f"  sample levels {1e3 * seconds(jit(jax.vmap(lambda key: env.sample_level(key=key))), keys):.1f} ms")
    print(f"  build worlds  {1e3 * seconds(build, levels.layout):.1f} ms", flush=True)
    print(
        f"  drive, once   {1e3 * seconds(driving_all, worlds, levels.aleatoric.bits, actions, drives):.1f} ms",
        flush=True,
    )
    print(f"  look, once    {1e3 * seconds(jit(look), worlds, drives):.1f} ms", flush=True)
    print(f"  network, once {1e3 * seconds(jit(forward), state.runs.network, views):.1f} ms", flush=True)
    by_run = jax.tree.map(lambda leaf: leaf.reshape(runs, config.workers, *leaf.shape[1:]), levels)
    play = jit(
        jax.vmap(lambda n, levels, key: collect(env, Fictitious(1), n, levels, config.rollout, key=key).primed_value)
    )
    run_keys = jax.random.split(jax.random.key(1), runs)
    print(f"  rollout, whole {1e3 * seconds(play, state.runs.network, by_run, run_keys):.1f} ms", flush=True)


def main() -> None:
    """Measure."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--runs", type=int, help="train this many runs side by side")
    arguments.add_argument("--updates", type=int, default=20)
    arguments.add_argument("--sketch", action="store_true")
    arguments.add_argument("--parts", action="store_true")
    chosen = arguments.parse_args()
    device = jax.devices()[0]
    print(f"black ice on {device.device_kind} ({device.platform})", flush=True)
    if chosen.runs is None:
        ours, real = world_speed(), gymnasium_speed()
        print(f"the world alone, {COPIES} copies: {ours:,.0f} agent-steps/s; gymnasium, one process: {real:,.0f}")
        print(f"ratio {ours / real:.1f}")
        for name in ("", "Monaco"):
            near, full = driving_speed(True, name), driving_speed(False, name)
            print(f"driving alone, {name or 'random tracks'}: {near:,.0f} agent-steps/s; with all tiles {full:,.0f}")
            print(f"ratio {near / full:.1f}")
        return
    if chosen.parts:
        parts(chosen.runs)
    samplr = training_speed("samplr", chosen.runs, chosen.updates)
    if chosen.sketch:
        sketched = training_speed("samplr", chosen.runs, chosen.updates, "black_ice_sketch")
        print(f"without pictures : with them = {sketched / samplr:.1f}")
        return
    robust = training_speed("robust_plr", chosen.runs, chosen.updates)
    print(f"cost of SAMPLR : PLR⊥ = {robust / samplr:.2f}")


if __name__ == "__main__":
    main()
