"""Where the axes meet: levels in, a rollout with real and primed quantities out.

A rollout begins with a reset of every worker on the level it was given; an episode that ends inside it restarts on the
same level, with the θ′ that the grounding says.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from samplr.envs.api import Aleatoric, Environment, Level, State, World
from samplr.grounding import Grounding, RealStep
from samplr.posteriors import Belief
from samplr.student.networks import ActorCritic, Memory


class Rollout(eqx.Module):
    """What happened on `n` workers in `t` steps; leaves lead with time, then worker."""

    observation: PyTree
    action: Array
    """As the policy sampled it (`raw`), not as the environment took it."""
    log_prob: Float[Array, "t n"]
    value: Float[Array, "t n"]
    start: Bool[Array, "t n"]
    """Whether an episode begins with this step."""
    reward: Float[Array, "t n"]
    terminated: Bool[Array, "t n"]
    truncated: Bool[Array, "t n"]
    primed_reward: Float[Array, "t n m"]
    primed_terminated: Bool[Array, "t n m"]
    primed_value: Float[Array, "t n m"]
    """V(o′ₜ₊₁), continued from the real memory after oₜ."""
    primed_weight: Float[Array, "t n m"]
    matched: Float[Array, "t n"]
    episode_return: Float[Array, "t n"]
    """The undiscounted real return so far."""
    metrics: dict[str, Float[Array, "t n"]]
    real_summaries: dict[str, Float[Array, "t n"]]
    """Of the θ′ of the running episode."""
    met_summaries: dict[str, Float[Array, "t n"]]
    """Of the θ′ the student learned from."""

    @property
    def end(self) -> Bool[Array, "t n"]:
        """Whether the real episode ended with this step."""
        return self.terminated | self.truncated


class Worker(eqx.Module):
    """One running episode."""

    state: State
    observation: PyTree
    memory: Memory
    belief: Belief
    aleatoric: Aleatoric
    start: Bool[Array, ""]
    episode_return: Float[Array, ""]


def collect(
    env: Environment,
    grounding: Grounding,
    network: ActorCritic,
    levels: Level,
    steps: int,
    *,
    key: PRNGKeyArray,
) -> Rollout:
    """Let a student act on a batch of levels.

    **Arguments:**

    - `levels`: one level for each worker, stacked.
    - `steps`: how many steps each worker takes.

    **Returns:** the rollout.
    """
    workers = jax.tree.leaves(levels)[0].shape[0]
    worlds = jax.vmap(env.build, axis_size=workers)(levels.layout)

    def begin_one(level: Level, world: World, worker_key: PRNGKeyArray) -> Worker:
        return begin(env, grounding, network, level, world, key=worker_key)

    def advance_one(level: Level, world: World, worker: Worker, worker_key: PRNGKeyArray) -> tuple[Worker, Rollout]:
        return advance(env, grounding, network, level, world, worker, key=worker_key)

    def step(running: Worker, step_key: PRNGKeyArray) -> tuple[Worker, Rollout]:
        return jax.vmap(advance_one)(levels, worlds, running, jax.random.split(step_key, workers))

    begin_key, steps_key = jax.random.split(key)
    running = jax.vmap(begin_one)(levels, worlds, jax.random.split(begin_key, workers))
    _, rollout = jax.lax.scan(step, running, jax.random.split(steps_key, steps))
    return rollout


def begin(
    env: Environment,
    grounding: Grounding,
    network: ActorCritic,
    level: Level,
    world: World,
    *,
    key: PRNGKeyArray,
) -> Worker:
    """Reset one worker on its level."""
    aleatoric_key, reset_key = jax.random.split(key)
    aleatoric = grounding.aleatoric(env, level, key=aleatoric_key)
    state, observation = env.reset(world, aleatoric, key=reset_key)
    posterior = grounding.posterior(env)
    return Worker(
        state=state,
        observation=observation,
        memory=network.initial_memory(),
        belief=None if posterior is None else posterior.init(),
        aleatoric=aleatoric,
        start=jnp.array(True),
        episode_return=jnp.zeros(()),
    )


def advance(
    env: Environment,
    grounding: Grounding,
    network: ActorCritic,
    level: Level,
    world: World,
    worker: Worker,
    *,
    key: PRNGKeyArray,
) -> tuple[Worker, Rollout]:
    """One step of one worker: the action comes from the real history, the real simulator goes on from the real state.

    **Returns:** the worker after the step, reset where the episode ended, and the step's row of the rollout.
    """
    action_key, step_key, posterior_key, restart_key = jax.random.split(key, 4)
    policy, value, memory = network(worker.observation, worker.memory)
    raw = policy.sample(key=action_key)
    action = network.action_space.decode(raw)
    real = env.step(world, worker.state, action, key=step_key)
    step = RealStep(world, worker.state, action, real, worker.aleatoric, worker.belief, step_key)
    primed = grounding.transition(env, step, key=posterior_key)
    episode_return = worker.episode_return + real.reward
    row = Rollout(
        observation=worker.observation,
        action=raw,
        log_prob=policy.log_prob(raw),
        value=value,
        start=worker.start,
        reward=real.reward,
        terminated=real.terminated,
        truncated=real.truncated,
        primed_reward=primed.reward,
        primed_terminated=primed.terminated,
        primed_value=jax.vmap(lambda o: network(o, memory)[1])(primed.observation),
        primed_weight=primed.weight,
        matched=primed.matched,
        episode_return=episode_return,
        metrics=real.metrics,
        real_summaries=env.summaries(worker.aleatoric),
        met_summaries=env.summaries(primed.aleatoric),
    )
    posterior = grounding.posterior(env)
    belief = worker.belief
    if posterior is not None:
        belief = posterior.update(belief, real.observation, action, real.done)
    going_on = Worker(real.state, real.observation, memory, belief, worker.aleatoric, jnp.array(False), episode_return)
    restarted = begin(env, grounding, network, level, world, key=restart_key)
    return _where(real.done, restarted, going_on), row


def _where(condition: Bool[Array, ""], a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)
