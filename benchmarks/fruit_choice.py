"""Throughput on stochastic fruit choice.

- `make bench` (no arguments): the world alone against two processes of the real NetHack on the same levels, in one go.
- `--copies 4096`: the world alone, with so many copies, on whatever device JAX has.
"""

import argparse
import multiprocessing
import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from samplr.compiling import jit
from samplr.envs.api import Level
from samplr.envs.fruit_choice.world import FruitChoice

COPIES = 256
STEPS = 100
PROCESSES = 2
REAL_STEPS = 20_000


def sampled(env: FruitChoice, copies: int) -> Level:
    """The levels that both games are played on."""
    return jit(jax.vmap(lambda key: env.sample_level(key=key)))(jax.random.split(jax.random.key(0), copies))


def world_speed(copies: int, *, repeats: int = 3) -> float:
    """Steps per second of our world under random keys; a game that ends begins anew on its level."""
    env = FruitChoice()
    levels = sampled(env, copies)
    worlds = jit(jax.vmap(env.build))(levels.layout)
    reset = jax.vmap(lambda world, right, key: env.reset(world, right, key=key)[0])
    advance = jax.vmap(lambda world, state, action, key: env.step(world, state, action, key=key))

    def step(states: Any, key: Any) -> tuple[Any, Any]:
        action_key, step_key, reset_key = jax.random.split(key, 3)
        actions = jax.random.randint(action_key, (copies,), 0, env.action_space.n)
        after = advance(worlds, states, actions, jax.random.split(step_key, copies))
        over = after.terminated | after.truncated
        fresh = reset(worlds, levels.aleatoric, jax.random.split(reset_key, copies))
        states = jax.tree.map(
            lambda a, b: jnp.where(jnp.reshape(over, (-1,) + (1,) * (a.ndim - 1)), a, b), fresh, after.state
        )
        return states, (after.reward, jnp.sum(after.observation["glyphs"]))

    play = jit(lambda states, key: jax.lax.scan(step, states, jax.random.split(key, STEPS)))
    states = jit(reset)(worlds, levels.aleatoric, jax.random.split(jax.random.key(1), copies))
    jax.block_until_ready(play(states, jax.random.key(2)))
    timings = []
    for repeat in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(play(states, jax.random.key(3 + repeat)))
        timings.append(time.perf_counter() - began)
    return copies * STEPS / min(timings)


def real_process_speed(levels: Level, process: int) -> float:
    """Steps per second of the real game with random keys, from one of the levels to the next."""
    from samplr.envs.fruit_choice.nethack import RealFruitChoice

    env, rng = RealFruitChoice(), np.random.default_rng(process)
    count = len(levels.layout.count)
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], levels) for i in range(process, count, PROCESSES)]
    keys = rng.integers(10, size=REAL_STEPS).tolist()

    def begin(game: int) -> None:
        level = each[game % len(each)]
        right = level.aleatoric.apple_is_right
        env.reset(seed=game, options={"rooms": level.layout, "apple_is_right": right})

    begin(0)  # compiles what draws the map
    games, began = 0, time.perf_counter()
    begin(0)
    for key in keys:
        _, _, terminated, truncated, _ = env.step(key)
        if terminated or truncated:
            games += 1
            begin(games)
    passed = time.perf_counter() - began
    env.close()
    return REAL_STEPS / passed


def real_speed() -> float:
    """Steps per second of the real game in some processes, resets and the compiling of new levels included."""
    levels = jax.tree.map(np.asarray, sampled(FruitChoice(), COPIES))
    os.environ["JAX_PLATFORMS"] = "cpu"  # of the processes to come, which only draw maps with it
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        return sum(pool.starmap(real_process_speed, [(levels, process) for process in range(PROCESSES)]))


def main() -> None:
    """Measure."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--copies", type=int, help="measure the world alone, with so many copies")
    chosen = arguments.parse_args()
    device = jax.devices()[0]
    print(f"fruit choice on {device.device_kind} ({device.platform})", flush=True)
    if chosen.copies is not None:
        print(f"the world alone, {chosen.copies} copies: {world_speed(chosen.copies):,.0f} steps/s")
        return
    ours, real = world_speed(COPIES), real_speed()
    print(f"the world alone, {COPIES} copies: {ours:,.0f} steps/s; NetHack, {PROCESSES} processes: {real:,.0f}")
    print(f"ratio {ours / real:.1f}")


if __name__ == "__main__":
    main()
