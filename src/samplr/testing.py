"""Put an environment, a user's own included, through the laws of the contract.

from samplr.testing import check_environment
check_environment(MyEnv())
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from samplr import trees
from samplr.compiling import jit
from samplr.envs.api import Environment, GroundedEnvironment, Level, State, TimeStep, World
from samplr.errors import SamplrError
from samplr.grounding import Fictitious, Moment
from samplr.posteriors import Posterior
from samplr.posteriors.beliefs import LearnedBeliefs, exact_posterior
from samplr.posteriors.learned import Bins
from samplr.student.distributions import policy_from, policy_outputs

MAX_STEPS = 64
LEVELS = 4
_FAR = 1 << 20
"""Folded into a key it is beyond what any split of that key gives: `fold_in(key, i)` is `split(key)[i]`."""
"""How many levels go through JSON, which is slow."""


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
    _check_shapes(env)
    play = jit(lambda key, other: _play(env, key, other), runs_once=True)
    laws = None
    if isinstance(env, GroundedEnvironment):
        laws = jit(functools.partial(_grounded_pairs, env, _some_posterior(env)), runs_once=True)
    # Traced anew, the same program must come out: dice thrown while tracing would have fallen otherwise.
    play_again = jit(lambda key, other: _play(env, key, other), runs_once=True)
    for number, episode_key in enumerate(jax.random.split(jax.random.key(seed), episodes)):
        episode, twin = play(episode_key, False), play(episode_key, True)
        if number < LEVELS:
            _check_level(env, episode.level)
        if number == 0:
            again = (play(episode_key, False), play_again(episode_key, False))
            same = all(_same(other.steps, episode.steps) for other in again)
            _require(same, "the same keys give another episode: something besides them is random")
        live = _live_steps(episode.steps)
        _check_steps(jax.tree.map(lambda leaf: np.asarray(leaf)[:live], episode.steps))  # noqa: B023
        if isinstance(env, GroundedEnvironment) and laws is not None:
            alike = _alike(env, episode, twin)
            for index in np.unique(np.linspace(0, live - 1, 6).astype(int)):
                at = [jax.tree.map(lambda leaf: leaf[index], x) for x in (episode.states, twin.states)]  # noqa: B023
                key = jax.random.fold_in(episode_key, _FAR + int(index))
                pairs = laws(episode.level, episode.world, *at, episode.actions[index], bool(alike[index]), key)
                for broken, (before, after) in pairs.items():
                    _require(_same(before, after), broken)


class Episode(eqx.Module):
    """An episode of random actions; states, actions and steps lead with time."""

    level: Level
    world: World
    states: State
    actions: jax.Array
    steps: TimeStep


def _random_action(env: Environment, key: PRNGKeyArray) -> jax.Array:
    space = env.action_space
    outputs = jnp.zeros(policy_outputs(space))
    return space.decode(policy_from(outputs, space).sample(key=key))


def _play(env: Environment, key: PRNGKeyArray, other: bool | jax.Array) -> Episode:
    """A level, and an episode of random actions on it; what follows its end is to be ignored.

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
    return Episode(level, world, states, actions, steps)


def _check_level(env: Environment, level: Level) -> None:
    env.validate(level)
    again = env.level_from_json(env.level_to_json(level))
    _require(_same(again, level), "a level does not survive level_to_json and level_from_json")


def _check_shapes(env: Environment) -> None:
    """What can be told without playing."""

    def one_step(key: PRNGKeyArray) -> tuple[State, TimeStep]:
        level = env.sample_level(key=key)
        world = env.build(level.layout)
        state, _ = env.reset(world, level.aleatoric, key=key)
        return state, env.step(world, state, _random_action(env, key), key=key)

    state, after = jax.eval_shape(one_step, jax.random.key(0))
    kinds = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)] for tree in (state, after.state)]
    same = kinds[0] == kinds[1] and str(jax.tree.structure(state)) == str(jax.tree.structure(after.state))
    _require(same, "step changes the structure, shapes or types of the state")
    declared = jax.tree.map(lambda box: box.shape, env.observation_space)
    seen = jax.tree.map(lambda leaf: leaf.shape, after.observation)
    _require(seen == declared, f"an observation has shape {seen}, and observation_space says {declared}")
    for name in ("terminated", "truncated"):
        flag = getattr(after, name)
        _require(flag.dtype == bool and flag.shape == (), f"{name} is not a single truth value")


def _live_steps(steps: TimeStep) -> int:
    """How many steps an episode has until its end, or until we stop looking."""
    done = np.asarray(steps.done)
    return int(np.argmax(done)) + 1 if done.any() else MAX_STEPS


def _check_steps(steps: TimeStep) -> None:
    finite = np.isfinite(steps.reward)
    bad = np.asarray(steps.reward)[~finite]
    _require(bool(finite.all()), f"the reward is {bad[0] if len(bad) else 0}, not a finite number")
    both = np.asarray(steps.terminated & steps.truncated)
    _require(not both.any(), "law 3: a step is both terminated and truncated, which are different things")


def _alike(env: GroundedEnvironment, episode: Episode, twin: Episode) -> np.ndarray:
    """At each step, whether the agent could have told two episodes apart by then: by all it saw and earned."""
    first = [env.observe(episode.world, jax.tree.map(lambda leaf: leaf[0], x.states)) for x in (episode, twin)]
    seen = [(x.steps.observation, x.steps.reward, x.steps.terminated, x.steps.truncated) for x in (episode, twin)]
    leaves = zip(jax.tree.leaves(seen[0]), jax.tree.leaves(seen[1]), strict=True)
    equal = [(np.asarray(a) == np.asarray(b)).reshape(MAX_STEPS, -1).all(axis=1) for a, b in leaves]
    return np.logical_and.accumulate(np.concatenate([[_same(*first)], np.all(equal, axis=0)]))


def _some_posterior(env: GroundedEnvironment) -> Posterior:
    """The environment's, or, where it has none, the belief that a learned one begins with."""
    exact = exact_posterior(env)
    if exact is not None:
        return exact
    beliefs = LearnedBeliefs(env, Bins.of(env, 8, draws=256), "mlp", (), memory=8, learning_rate=1e-3, epochs=1)
    return beliefs.posterior(beliefs.init(key=jax.random.key(0)))


def _grounded_pairs(
    env: GroundedEnvironment,
    posterior: Posterior,
    level: Level,
    world: World,
    state: State,
    twin: State,
    action: jax.Array,
    alike: bool | jax.Array,
    key: PRNGKeyArray,
) -> dict[str, tuple[PyTree, PyTree]]:
    """Laws 1 and 2: what is broken if the two of a pair differ.

    **Arguments:**

    - `twin`: the state that the same actions and keys led to under another θ′.
    - `alike`: whether the agent cannot have noticed.
    """
    evidence, belief = env.evidence(state), posterior.init(env.observe(world, state))
    substituted = env.substitute(state, posterior.sample(belief, evidence, key=key))
    # Any θ′ will do for the swap: `substitute` keeps what was revealed, so that only the unrevealed differs.
    swapped = env.substitute(state, env.sample_aleatoric(level.layout, key=jax.random.fold_in(key, _FAR)))

    def fictitious(state: State) -> PyTree:
        moment = Moment(world, state, action, level.aleatoric, belief, key)
        _, primed = Fictitious(2, posterior).step(env, moment, key=key)
        return primed.observation, primed.reward, primed.terminated, primed.aleatoric

    # One after the other through the same code: compiled thrice, it may round differently each time.
    all_three = jax.lax.map(fictitious, trees.stack(state, swapped, twin))
    of_state, of_swapped, of_twin = (jax.tree.map(lambda leaf, i=i: leaf[i], all_three) for i in range(3))
    return {
        "law 1: substituting a posterior draw changes the current observation": (
            env.observe(world, state),
            env.observe(world, substituted),
        ),
        "law 1: substituting a posterior draw changes what was revealed": (evidence, env.evidence(substituted)),
        "law 2: the fictitious transition depends on the real, unrevealed θ′, so it leaks": (
            of_state,
            of_swapped,
        ),
        "law 2: episodes that differ in unrevealed θ′ alone have different fictitious transitions, so it leaks": (
            of_state,
            trees.where(jnp.asarray(alike), of_twin, of_state),
        ),
    }


def _same(a: PyTree, b: PyTree) -> bool:
    """Whether two pytrees agree bit for bit."""
    if str(jax.tree.structure(a)) != str(jax.tree.structure(b)):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y), equal_nan=x.dtype.kind == "f") for x, y in pairs)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ContractError(message)
