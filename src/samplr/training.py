"""The training loop: pure, compiled once, many updates per call, vmapped over runs.

One update is one phase of the teacher: propose levels, collect a rollout, observe the outcome, and learn where the phase
says so. All runs of a batch take the same phase at the same time, because the schedule depends on the update index alone.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from samplr.config import Config, validate
from samplr.envs.api import Environment, GroundedEnvironment
from samplr.grounding import Fictitious, Grounding, Naive, Ungrounded
from samplr.rollout import Rollout, collect
from samplr.shift import ShiftCounts, ShiftMonitor
from samplr.student.advantages import discounted_returns
from samplr.student.networks import ActorCritic, build_network
from samplr.student.normalisation import ReturnScale
from samplr.student.ppo import PPO
from samplr.teachers.api import Outcome, Phase, Teacher
from samplr.teachers.buffer import Prioritisation
from samplr.teachers.dr import DomainRandomisation
from samplr.teachers.plr import PrioritisedLevelReplay, new_rollouts_before_replay
from samplr.teachers.scores import score_named


class Hyperparameters(eqx.Module):
    """The teacher and the learning algorithm, whose leaves may differ from run to run."""

    teacher: Teacher
    ppo: PPO


class RunState(eqx.Module):
    """All that one run carries from update to update."""

    network: ActorCritic
    opt_state: optax.OptState
    teacher: PyTree
    scale: ReturnScale
    key: PRNGKeyArray


class TrainState(eqx.Module):
    """A batch of runs (leaves lead with the run) and the update they have reached together."""

    runs: RunState
    update: Int[Array, ""]


class Mean(eqx.Module):
    """A mean in the making."""

    total: Float[Array, "..."]
    count: Float[Array, "..."]

    @classmethod
    def of(cls, values: Array, where: Array | None = None) -> "Mean":
        """The mean of an array, or of a part of it."""
        where = jnp.ones_like(values, bool) if where is None else where
        return cls(jnp.sum(jnp.where(where, values, 0.0)), jnp.sum(where, dtype=jnp.float32))


class Log(eqx.Module):
    """What some updates had to tell; leaves lead with the run."""

    metrics: dict[str, Mean]
    shift: ShiftCounts


class Training:
    """The compiled program of one configuration.

    **Arguments:**

    - `config`: the configuration; its `seeds` runs are trained side by side.
    - `hyperparameters`: to give every run its own, stacked along a leading axis; by default all have the config's.
    """

    def __init__(self, config: Config, hyperparameters: Hyperparameters | None = None) -> None:
        validate(config)
        self.config = config
        self.env: Environment = config.env
        self.grounding = build_grounding(config)
        self.grounding.posterior(self.env)  # refuses an environment that cannot be grounded
        self.monitor = ShiftMonitor.of(self.env)
        self.hyperparameters = hyperparameters or repeat(build_hyperparameters(config), config.seeds)
        self._advance = jax.jit(self._advance_uncompiled, donate_argnums=1)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The teacher's phases."""
        return self.hyperparameters.teacher.phases

    def init(self) -> TrainState:
        """The state before the first update: each run depends on its own seed alone."""

        def one(hyperparameters: Hyperparameters, key: PRNGKeyArray) -> RunState:
            return self._init_run(hyperparameters, key)

        seeds = self.config.first_seed + jnp.arange(self.config.seeds)
        runs = jax.jit(jax.vmap(one))(self.hyperparameters, jax.vmap(jax.random.key)(seeds))
        return TrainState(runs, jnp.int32(0))

    def advance(self, state: TrainState, updates: int) -> tuple[TrainState, Log]:
        """Do some updates. `state` is consumed. The program is compiled once, whatever the number of updates."""
        return self._advance(self.hyperparameters, state, jnp.int32(updates))

    def compile(self, state: TrainState) -> None:
        """Compile now rather than at the first `advance`, so that compile time can be told apart."""
        self._advance = self._advance.lower(self.hyperparameters, state, jnp.int32(0)).compile()

    def phase_counts(self, updates: int) -> np.ndarray:
        """How many of the first `updates` updates belong to each phase."""
        indices = jax.jit(jax.vmap(self.hyperparameters.teacher.schedule))(jnp.arange(updates))
        return np.bincount(np.asarray(indices), minlength=len(self.phases))

    def total_updates(self) -> int:
        """How many updates the configuration's budget of steps or gradient updates asks for."""
        if self.config.gradient_updates is None:
            return math.ceil(self.config.steps / (self.config.workers * self.config.rollout))
        learns = np.array([phase.learn for phase in self.phases])
        horizon = self.config.gradient_updates
        while True:
            phases = jax.jit(jax.vmap(self.hyperparameters.teacher.schedule))(jnp.arange(horizon))
            learned = np.cumsum(learns[np.asarray(phases)])
            if learned[-1] >= self.config.gradient_updates:
                return int(np.searchsorted(learned, self.config.gradient_updates)) + 1
            horizon *= 2

    def _init_run(self, hyperparameters: Hyperparameters, key: PRNGKeyArray) -> RunState:
        network_key, run_key = jax.random.split(key)
        student = self.config.student
        network = build_network(self.env, student.encoder, student.hidden, student.memory, key=network_key)
        return RunState(
            network=network,
            opt_state=hyperparameters.ppo.init(network),
            teacher=hyperparameters.teacher.init(self.env),
            scale=ReturnScale.empty(),
            key=run_key,
        )

    def _advance_uncompiled(
        self, hyperparameters: Hyperparameters, state: TrainState, updates: Int[Array, ""]
    ) -> tuple[TrainState, Log]:
        branches = [functools.partial(self._update_runs, phase) for phase in self.phases]

        def update(_: Array, carry: tuple[TrainState, Log]) -> tuple[TrainState, Log]:
            state, log = carry
            phase = hyperparameters.teacher.schedule(state.update)
            runs, log = jax.lax.switch(phase, branches, hyperparameters, state, log)
            return TrainState(runs, state.update + 1), log

        return jax.lax.fori_loop(0, updates, update, (state, self._empty_log(hyperparameters, state)))

    def _update_runs(
        self, phase: Phase, hyperparameters: Hyperparameters, state: TrainState, log: Log
    ) -> tuple[RunState, Log]:
        """One update of every run."""
        one = functools.partial(self._update_run, phase)
        runs, news = jax.vmap(one, in_axes=(0, 0, None))(hyperparameters, state.runs, state.update)
        told = {name: jax.tree.map(jnp.add, log.metrics[name], mean) for name, mean in news.metrics.items()}
        return runs, Log(log.metrics | told, jax.tree.map(jnp.add, log.shift, news.shift))

    def _update_run(
        self, phase: Phase, hyperparameters: Hyperparameters, run: RunState, update: Int[Array, ""]
    ) -> tuple[RunState, Log]:
        """One update of one run."""
        teacher, ppo = hyperparameters.teacher, hyperparameters.ppo
        level_key, rollout_key, learn_key = jax.random.split(jax.random.fold_in(run.key, update), 3)
        levels = teacher.propose(phase, run.teacher, self.env, self.config.workers, key=level_key)
        rollout = collect(
            self.env, self.grounding, run.network, levels, self.config.rollout, key=rollout_key
        )
        scale = run.scale.update(_returns_so_far(rollout, ppo.discount))
        advantages = ppo.advantages(rollout, scale)
        outcome = Outcome(
            levels=levels,
            advantages=advantages,
            values=rollout.value,
            best_return=_best_return(rollout),
            return_scale=scale.deviation if ppo.normalise_returns else jnp.ones(()),
            network=run.network,
        )
        teacher_state = teacher.observe(phase, run.teacher, self.env, outcome)
        metrics = _episode_metrics(rollout) | {"advantage": Mean.of(jnp.abs(advantages))}
        metrics = {f"{phase.name}/{name}": mean for name, mean in metrics.items()}
        metrics |= {name: Mean.of(value) for name, value in teacher.metrics(teacher_state).items()}
        network, opt_state, shift = run.network, run.opt_state, self.monitor.empty()
        if phase.learn:
            network, opt_state, losses = ppo.update(network, opt_state, rollout, advantages, key=learn_key)
            metrics |= {f"student/{name}": Mean.of(value) for name, value in vars(losses).items()}
            shift = self.monitor.count(
                shift, rollout.real_summaries, rollout.start, rollout.met_summaries
            )
        return RunState(network, opt_state, teacher_state, scale, run.key), Log(metrics, shift)

    def _empty_log(self, hyperparameters: Hyperparameters, state: TrainState) -> Log:
        """Zeros for every name that any phase tells."""

        def told(phase: Phase) -> Log:
            one = functools.partial(self._update_run, phase)
            return jax.vmap(one, in_axes=(0, 0, None))(hyperparameters, state.runs, state.update)[1]

        shapes = [jax.eval_shape(functools.partial(told, phase)) for phase in self.phases]
        metrics = {name: mean for log in shapes for name, mean in log.metrics.items()}
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), Log(metrics, shapes[0].shift))


def build_grounding(config: Config) -> Grounding:
    """The grounding that a configuration names."""
    match config.grounding:
        case "none":
            return Ungrounded()
        case "naive":
            return Naive()
        case "fictitious":
            return Fictitious(config.fictitious.samples)


def build_hyperparameters(config: Config) -> Hyperparameters:
    """The teacher and the learning algorithm that a configuration names."""
    s = config.student
    ppo = PPO(
        learning_rate=jnp.float32(s.learning_rate),
        discount=jnp.float32(s.discount),
        gae_lambda=jnp.float32(s.gae_lambda),
        clip=jnp.float32(s.clip),
        value_coefficient=jnp.float32(s.value_coefficient),
        entropy_coefficient=jnp.float32(s.entropy_coefficient),
        max_gradient_norm=jnp.float32(s.max_gradient_norm),
        adam_epsilon=jnp.float32(s.adam_epsilon),
        epochs=s.epochs,
        minibatches=s.minibatches,
        clip_values=s.clip_values,
        normalise_returns=s.normalise_returns,
        normalise_advantages=s.normalise_advantages,
        matched_trace=config.fictitious.trace == "matched",
    )
    return Hyperparameters(build_teacher(config), ppo)


def build_teacher(config: Config) -> Teacher:
    """The teacher that a configuration names."""
    if config.teacher == "dr":
        return DomainRandomisation()
    replay = config.replay
    return PrioritisedLevelReplay(
        temperature=jnp.float32(replay.temperature),
        staleness=jnp.float32(replay.staleness),
        replay_rate=replay.rate,
        capacity=replay.capacity,
        new_rollouts_first=new_rollouts_before_replay(replay.fill, replay.capacity, config.workers),
        prioritisation=Prioritisation(replay.prioritisation),
        score=score_named(replay.score, config.env),
        robust=config.teacher == "robust_plr",
    )


def repeat(tree: PyTree, count: int) -> PyTree:
    """The same for every run: arrays gain a leading axis."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), tree)


def memory_warning(config: Config) -> str | None:
    """A line for a student that `fictitious` cannot ground, because it conditions on too little of its history."""
    env = config.env
    if config.grounding != "fictitious" or config.student.memory:
        return None
    if isinstance(env, GroundedEnvironment) and env.observation_is_sufficient:
        return None
    return (
        "this student has no memory and its observation does not hold the evidence, so 'fictitious' grounds only an "
        "average over the curriculum's histories: give it memory (--student.memory 64) or an environment that shows "
        "the evidence"
    )


def _returns_so_far(rollout: Rollout, discount: Array) -> Float[Array, "t n"]:
    of_worker: Callable[..., Array] = functools.partial(discounted_returns, discount=discount)
    return jax.vmap(of_worker, in_axes=1, out_axes=1)(rollout.reward, rollout.end)


def _best_return(rollout: Rollout) -> Float[Array, " n"]:
    """The highest return of the finished episodes; where none finished, what the value function expects of the last."""
    finished = jnp.max(jnp.where(rollout.end, rollout.episode_return, -jnp.inf), axis=0)
    expected = rollout.episode_return[-1] + rollout.primed_value[-1, :, 0]
    return jnp.where(jnp.isfinite(finished), finished, expected)


def _episode_metrics(rollout: Rollout) -> dict[str, Mean]:
    """Means over the episodes that ended in a rollout."""
    named: dict[str, Any] = {"return": rollout.episode_return, **rollout.metrics}
    return {name: Mean.of(values, rollout.end) for name, values in named.items()}
