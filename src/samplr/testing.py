"""Put an environment, a user's own included, through the laws of the contract.

from samplr.testing import check_environment
check_environment(MyEnv())
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from samplr.compiling import jit
from samplr.envs.api import Environment, GroundedEnvironment, Level, State, TimeStep, World
from samplr.errors import SamplrError
from samplr.grounding import Fictitious, RealStep
from samplr.student.distributions import policy_from, policy_outputs

MAX_STEPS = 64


class ContractError(SamplrError, AssertionError):
    """An environment breaks a law of the contract; the message says which and how."""


def check_environment(env: Environment, *, episodes: int = 32, seed: int = 0) -> None:
    """Check an environment against the contract, on random levels under random actions.

    Besides the three laws (the first two for a `GroundedEnvironment`) this checks that shapes and types never change,
    that rewards are finite, that levels survive JSON, and that nothing depends on anything but arguments and keys.

    **Arguments:**

    - `env`: the environment.
    - `episodes`: how many levels to try; each is played for at most 64 steps.
    - `seed`: which levels and actions.
    """
    play = jit(lambda key, other: _play(env, key, other), runs_once=True)
    step = jit(lambda world, state, action, key: env.step(world, state, action, key=key), runs_once=True)
    laws = None
    if isinstance(env, GroundedEnvironment):
        laws = jit(functools.partial(_grounded_pairs, env), runs_once=True)
    for episode_key in jax.random.split(jax.random.key(seed), episodes):
        level, world, states, actions, steps = play(episode_key, False)
        twins = play(episode_key, True)[2]
        _check_level(env, level)
        _check_determinism(play, episode_key, steps)
        live = int(np.argmax(np.append(np.asarray(steps.done), True))) + 1
        for index in np.unique(np.linspace(0, min(live, MAX_STEPS) - 1, 6).astype(int)):
            state, twin, action = (
                jax.tree.map(lambda leaf, i=index: leaf[i], tree) for tree in (states, twins, actions)
            )
            key = jax.random.fold_in(episode_key, int(index))
            _check_step(env, state, step(world, state, action, key), steps)
            if laws is not None:
                for broken, (before, after) in laws(level, world, state, twin, action, key).items():
                    _require(_same(before, after), broken)


def _random_action(env: Environment, key: PRNGKeyArray) -> jax.Array:
    space = env.action_space
    outputs = jnp.zeros(policy_outputs(space))
    return space.decode(policy_from(outputs, space).sample(key=key))


def _play(
    env: Environment, key: PRNGKeyArray, other: bool | jax.Array
) -> tuple[Level, World, State, jax.Array, TimeStep]:
    """A level, and an episode of random actions on it (stepping on after the end does no harm here).

    **Arguments:**

    - `other`: whether to play with another θ′ than the level's, and otherwise all the same.
    """
    level_key, other_key, reset_key, steps_key = jax.random.split(key, 4)
    level = env.sample_level(key=level_key)
    world = env.build(level.layout)
    drawn = env.sample_aleatoric(level.layout, key=other_key)
    aleatoric = jax.tree.map(lambda mine, its: jnp.where(other, its, mine), level.aleatoric, drawn)
    state, _ = env.reset(world, aleatoric, key=reset_key)

    def step(state: State, step_key: PRNGKeyArray) -> tuple[State, tuple[State, jax.Array, TimeStep]]:
        action_key, env_key = jax.random.split(step_key)
        action = _random_action(env, action_key)
        after = env.step(world, state, action, key=env_key)
        return after.state, (state, action, after)

    _, (states, actions, steps) = jax.lax.scan(step, state, jax.random.split(steps_key, MAX_STEPS))
    return level, world, states, actions, steps


def _check_level(env: Environment, level: Level) -> None:
    env.validate(level)
    again = env.level_from_json(env.level_to_json(level))
    _require(_same(again, level), "a level does not survive level_to_json and level_from_json")


def _check_determinism(play: Callable[..., Any], key: PRNGKeyArray, steps: TimeStep) -> None:
    _require(_same(play(key, False)[4], steps), "the same keys give another episode: something besides them is random")


def _check_step(env: Environment, state: State, after: TimeStep, steps: TimeStep) -> None:
    same_kind = eqx.tree_equal(*(jax.tree.map(jnp.zeros_like, s) for s in (after.state, state)), typematch=True)
    _require(bool(same_kind), "step changes the structure, shapes or types of the state")
    _require(bool(np.isfinite(after.reward)), f"the reward is {after.reward}, not a finite number")
    declared, seen = env.observation_space.shape, jnp.shape(after.observation)
    _require(seen == declared, f"an observation has shape {seen}, and observation_space says {declared}")
    for name in ("terminated", "truncated"):
        flag = getattr(after, name)
        _require(flag.dtype == bool and flag.shape == (), f"{name} is not a single truth value")
    both = np.asarray(steps.terminated & steps.truncated)
    _require(not both.any(), "law 3: a step is both terminated and truncated, which are different things")


def _grounded_pairs(
    env: GroundedEnvironment,
    level: Level,
    world: World,
    state: State,
    twin: State,
    action: jax.Array,
    key: PRNGKeyArray,
) -> dict[str, tuple[PyTree, PyTree]]:
    """Laws 1 and 2: what is broken if the two of a pair differ.

    **Arguments:**

    - `twin`: the state that the same actions and keys led to under another θ′.
    """
    posterior, evidence = env.posterior, env.evidence(state)
    substituted = env.substitute(state, posterior.sample(posterior.init(), evidence, key=key))
    # Any θ′ will do for the swap: `substitute` keeps what was revealed, so that only the unrevealed differs.
    swapped = env.substitute(state, env.sample_aleatoric(level.layout, key=jax.random.fold_in(key, 1)))

    seen = [(env.evidence(of), env.observe(world, of)) for of in (state, twin)]
    alike = eqx.tree_equal(*seen)

    def fictitious(state: State) -> PyTree:
        after = env.step(world, state, action, key=key)
        step = RealStep(world, state, action, after, level.aleatoric, posterior.init(), key)
        primed = Fictitious(2).transition(env, step, key=key)
        return primed.observation, primed.reward, primed.terminated, primed.aleatoric

    return {
        "law 1: substituting a posterior draw changes the current observation": (
            env.observe(world, state),
            env.observe(world, substituted),
        ),
        "law 1: substituting a posterior draw changes what was revealed": (evidence, env.evidence(substituted)),
        "law 2: the fictitious transition depends on the real, unrevealed θ′, so it leaks": (
            fictitious(state),
            fictitious(swapped),
        ),
        "law 2: episodes that differ in unrevealed θ′ alone have different fictitious transitions, so it leaks": (
            fictitious(state),
            jax.tree.map(lambda a, b: jnp.where(alike, a, b), fictitious(twin), fictitious(state)),
        ),
    }


def _same(a: PyTree, b: PyTree) -> bool:
    """Whether two pytrees agree bit for bit."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y), equal_nan=x.dtype.kind == "f") for x, y in pairs)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ContractError(message)
