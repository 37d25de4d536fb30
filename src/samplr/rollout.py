"""Where the axes meet: levels in, a rollout with real and primed quantities out.

A rollout begins with a reset of every worker on the level it was given; an episode that ends inside it restarts on the
same level, with the θ′ that the grounding says. `collect` is for worlds in JAX, all of it one compiled program;
`samplr.host.rollout` is for simulators on the host, and made of the same parts.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from samplr import trees
from samplr.envs.api import Aleatoric, Environment, Level, Observation, State, TimeStep, World
from samplr.grounding import Grounding, Moment, PrimedStep
from samplr.posteriors import Belief
from samplr.student.distributions import Policy
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
    hidden: Float[Array, "t n k"] | None = None
    """The hidden numbers of the running episode's θ′, where the critic is told them."""
    real_value: Float[Array, "t n"] | None = None
    """V of what really followed, where levels are scored by that."""

    @property
    def end(self) -> Bool[Array, "t n"]:
        """Whether the real episode ended with this step."""
        return self.terminated | self.truncated

    def as_scored(self) -> "Rollout":
        """The rollout by which its levels are scored: what the student learns from, or all of it as it really was."""
        if self.real_value is None:
            return self
        reward, terminated, value = (leaf[..., None] for leaf in (self.reward, self.terminated, self.real_value))
        return dataclasses.replace(
            self,
            primed_reward=reward,
            primed_terminated=terminated,
            primed_value=value,
            primed_weight=jnp.ones_like(reward),
            matched=jnp.ones_like(self.matched),
        )


class Episode(eqx.Module):
    """One running episode, before the student has looked at the observation."""

    state: State
    observation: PyTree
    memory: Memory
    belief: Belief
    aleatoric: Aleatoric
    start: Bool[Array, ""]
    episode_return: Float[Array, ""]


class Worker(eqx.Module):
    """An episode, and what the student makes of its observation."""

    episode: Episode
    policy: Policy
    value: Float[Array, ""]
    memory: Memory
    """What the next observation continues from."""


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
        episode = begin(env, grounding, network, level, world, key=worker_key)
        return looked(env, network, episode)

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
) -> Episode:
    """Reset one worker on its level."""
    aleatoric_key, reset_key = jax.random.split(key)
    aleatoric = grounding.aleatoric(env, level, key=aleatoric_key)
    state, observation = env.reset(world, aleatoric, key=reset_key)
    return begun(env, grounding, network, aleatoric, state, observation)


def begun(
    env: Environment,
    grounding: Grounding,
    network: ActorCritic,
    aleatoric: Aleatoric,
    state: State,
    observation: Observation,
) -> Episode:
    """An episode of which nothing but the first observation was seen."""
    posterior = grounding.posterior(env)
    return Episode(
        state=state,
        observation=observation,
        memory=network.initial_memory(),
        belief=None if posterior is None else posterior.init(observation),
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
    keys, episode = StepKeys.of(key), worker.episode
    raw = worker.policy.sample(key=keys.action)
    action = network.action_space.decode(raw)
    moment = Moment(world, episode.state, action, episode.aleatoric, episode.belief, keys.step)
    real, primed = grounding.step(env, moment, key=keys.posterior)
    restarted = begin(env, grounding, network, level, world, key=keys.restart)
    return record(env, grounding, network, worker, raw, real, primed, restarted)


def looked(env: Environment, network: ActorCritic, episode: Episode) -> Worker:
    """A worker that has looked at an episode's first observation."""
    return Worker(episode, *network(episode.observation, episode.memory, told(env, network, episode.aleatoric)))


def told(env: Environment, network: ActorCritic, aleatoric: Aleatoric) -> Float[Array, " k"] | None:
    """What the critic is told about θ′."""
    return env.hidden(aleatoric) if network.informed else None


class StepKeys(eqx.Module):
    """The luck of one step of one worker: who acts, the world, the redrawn θ′, and the next episode."""

    action: PRNGKeyArray
    step: PRNGKeyArray
    posterior: PRNGKeyArray
    restart: PRNGKeyArray

    @classmethod
    def of(cls, key: PRNGKeyArray) -> "StepKeys":
        """Split a step's key."""
        return cls(*jax.random.split(key, 4))


def record(
    env: Environment,
    grounding: Grounding,
    network: ActorCritic,
    worker: Worker,
    raw: Array,
    real: TimeStep,
    primed: PrimedStep,
    restarted: Episode,
) -> tuple[Worker, Rollout]:
    """What one worker has to write down once the simulator has stepped, and how it goes on.

    **Arguments:**

    - `worker`: the worker before the step.
    - `raw`: the action as the policy sampled it.
    - `restarted`: the next episode, for where this one ended.
    """
    episode, posterior = worker.episode, grounding.posterior(env)
    total = episode.episode_return + real.reward
    belief, action = episode.belief, network.action_space.decode(raw)
    if posterior is not None:
        belief = posterior.update(belief, real.observation, action, real.done)
    memory, hidden = network.remember(worker.memory, action), told(env, network, episode.aleatoric)
    going_on = Episode(real.state, real.observation, memory, belief, episode.aleatoric, jnp.array(False), total)
    after = trees.where(real.done, restarted, going_on)
    # The next observation goes first and the versions last, so that all are one batch for the network.
    versions, scored = primed.reward.shape[0], grounding.scored_by_real_steps()
    seen = (primed.observation, *trees.repeat((memory, hidden), versions))
    if scored:
        seen = trees.prepend((real.observation, memory, hidden), seen)
    first = (after.observation, after.memory, told(env, network, after.aleatoric))
    policy, value, memory = jax.vmap(network)(*trees.prepend(first, seen))
    row = Rollout(
        observation=episode.observation,
        action=raw,
        log_prob=worker.policy.log_prob(raw),
        value=worker.value,
        start=episode.start,
        reward=real.reward,
        terminated=real.terminated,
        truncated=real.truncated,
        primed_reward=primed.reward,
        primed_terminated=primed.terminated,
        primed_value=value[-versions:],
        primed_weight=primed.weight,
        matched=primed.matched,
        episode_return=total,
        metrics=real.metrics,
        real_summaries=env.summaries(episode.aleatoric),
        met_summaries=env.summaries(primed.aleatoric),
        hidden=hidden,
        real_value=value[1] if scored else None,
    )
    policy, memory = jax.tree.map(lambda leaf: leaf[0], (policy, memory))
    return Worker(after, policy, value[0], memory), row
