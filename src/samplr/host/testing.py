"""Put a simulator on the host through the laws of the contract, as `samplr.testing` does for worlds in JAX.

from samplr.host.testing import check_simulator
check_simulator(MyEnv())
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from samplr.compiling import jit
from samplr.envs.api import GroundedEnvironment
from samplr.envs.gymnasium import GymnasiumEnvironment, facts_of
from samplr.testing import ContractError

MAX_STEPS = 32


def check_simulator(env: GymnasiumEnvironment, *, episodes: int = 4, seed: int = 0) -> None:
    """Check an environment on the host, on random levels under random actions.

    The same level, seed and actions must give the same episode. Where the simulator can be grounded, a copy of its
    state must go on as it does, taking copies must not disturb it, and the first two laws must hold. What the agent
    sees of a state cannot be asked of a simulator, so the first law is checked for the evidence alone.

    **Arguments:**

    - `episodes`: how many levels to try; each is played for at most 32 steps.
    - `seed`: which levels and actions.
    """
    grounded = isinstance(env, GroundedEnvironment) and not facts_of(env).missing
    real, twin = env.simulator(), env.simulator()
    try:
        for key in jax.random.split(jax.random.key(seed), episodes):
            level_key, episode_key = jax.random.split(key)
            level = jit(lambda key: env.sample_level(key=key), runs_once=True)(level_key)
            env.validate(level)
            luck = int(jax.random.bits(episode_key)) >> 1
            start = {"seed": luck, "options": {"level": jax.device_get(level)}}
            real.action_space.seed(luck)
            moves = [real.action_space.sample() for _ in range(MAX_STEPS)]
            episode = _play(real, start, moves)
            _require(_same(episode, _play(real, start, moves)), "the same level, seed and actions give another episode")
            if grounded:
                _check_copies(env, real, twin, start, moves[: len(episode) - 1], episode[1:], episode_key)
    finally:
        real.close()
        twin.close()


def _play(simulator: Any, start: dict[str, Any], moves: Sequence[Any]) -> list[Any]:
    """All that an agent is told in an episode."""
    told: list[Any] = [simulator.reset(**start)[0]]
    for move in moves:
        told.append(simulator.step(move)[:4])
        if told[-1][2] or told[-1][3]:
            break
    return told


def _check_copies(
    env: Any, real: Any, twin: Any, start: dict[str, Any], moves: list[Any], episode: list[Any], key: PRNGKeyArray
) -> None:
    """What makes a simulator one that can be grounded, at every step of an episode."""
    draw = jit(lambda evidence, key: env.posterior.sample(None, evidence, key=key), runs_once=True)
    level = start["options"]["level"]
    other = jax.device_get(jit(lambda key: env.sample_aleatoric(level.layout, key=key), runs_once=True)(key))
    # Where another θ′ begins with the same observation, the first fictitious step must be the same from there.
    swapped = {**start, "options": {"level": dataclasses.replace(level, aleatoric=other)}}
    alike = _same(twin.reset(**swapped)[0], real.reset(**start)[0])
    hidden = twin.get_wrapper_attr("get_state")() if alike else real.get_wrapper_attr("get_state")()
    twin.reset(**start)
    for index, (move, expected) in enumerate(zip(moves, episode, strict=True)):
        evidence = real.get_wrapper_attr("evidence")()
        drawn = jax.device_get(draw(evidence, jax.random.fold_in(key, index)))
        state, luck = real.get_wrapper_attr("get_state")(), real.unwrapped.np_random.bit_generator.state

        def fictitious(state: Any, *swaps: PyTree, luck: Any = luck, move: Any = move, kept: PyTree = evidence) -> Any:
            twin.get_wrapper_attr("set_state")(state)
            for aleatoric in swaps:
                twin.get_wrapper_attr("substitute")(aleatoric)
                _require(
                    _same(kept, twin.get_wrapper_attr("evidence")()),
                    "law 1: copying the state or substituting θ′ changes what was revealed",
                )
            twin.unwrapped.np_random.bit_generator.state = luck
            return twin.step(move)[:4]

        grounded = fictitious(state, drawn)
        others = [fictitious(state, other, drawn), fictitious(state if index else hidden, drawn)]
        leak = "law 2: the fictitious transition depends on the real, unrevealed θ′, so it leaks"
        _require(all(_same(grounded, each) for each in others), leak)
        copied = fictitious(state)
        _require(_same(real.step(move)[:4], expected), "taking copies of the state disturbs the episode")
        _require(_same(copied, expected), "a copy of the state goes on another way than the state itself")


def _same(a: PyTree, b: PyTree) -> bool:
    """Whether all agrees, bit for bit."""
    mine, its = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(mine) == len(its) and all(map(np.array_equal, mine, its))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ContractError(message)
