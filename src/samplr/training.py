"""The training loop: pure, compiled once, many updates per call, vmapped over runs.

One update is one phase of the teacher: propose levels, collect a rollout, observe the outcome, and learn where the
phase says so. All runs of a batch take the same phase at the same time, because the schedule depends on the update
index alone.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from samplr import trees
from samplr.compiling import jit
from samplr.config import Config, validate
from samplr.envs.api import Environment, GroundedEnvironment, Level
from samplr.grounding import Fictitious, Grounding, Naive, Ungrounded, refuse_sum, require_grounded
from samplr.posteriors.beliefs import Beliefs, EstimatedPrior, LearnedBeliefs, sampled_from_ground_truth
from samplr.posteriors.learned import Bins
from samplr.rollout import Rollout, collect
from samplr.shift import ShiftCounts, ShiftMonitor
from samplr.student.advantages import discounted_returns
from samplr.student.networks import ActorCritic, build_network
from samplr.student.normalisation import ReturnScale
from samplr.student.ppo import PPO
from samplr.teachers.api import Outcome, Phase, Teacher
from samplr.teachers.buffer import Prioritisation
from samplr.teachers.dr import DomainRandomisation
from samplr.teachers.fixed import FixedCurriculum
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
    beliefs: PyTree = None
    """What the run has learned about θ′, where its posterior is not the environment's own."""


class TrainState(eqx.Module):
    """A batch of runs (leaves lead with the run) and the update they have reached together."""

    runs: RunState
    update: Int[Array, ""]


class Mean(eqx.Module):
    """A mean in the making."""

    total: Float[Array, "..."]
    count: Float[Array, "..."]

    @classmethod
    def of(cls, values: Array, weight: Array | None = None) -> "Mean":
        """The mean of an array, or a weighted one; what has no weight may be anything."""
        weight = jnp.ones_like(values, jnp.float32) if weight is None else weight
        return cls(jnp.sum(jnp.where(weight > 0, weight * values, 0.0)), jnp.sum(weight))

    def only_if(self, condition: Bool[Array, ""]) -> "Mean":
        """This mean, or one of nothing."""
        return Mean(jnp.where(condition, self.total, 0.0), jnp.where(condition, self.count, 0.0))


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
        # Refuse what cannot be trained now, before anything is written.
        self.beliefs = build_beliefs(config)
        if not isinstance(self.beliefs, LearnedBeliefs):
            refuse_sum(self.grounding.posterior(self.env), config.fictitious.samples)
        student_shapes(config)
        self.monitor = ShiftMonitor.of(self.env)
        self._devices = over_devices(config.seeds)
        hyperparameters = hyperparameters or trees.repeat(build_hyperparameters(config), config.seeds)
        self.hyperparameters = jax.device_put(hyperparameters, self._devices)
        self._advance = jit(self._advance_uncompiled, pictures=self.env.shows_pictures, donate_argnums=1)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The teacher's phases."""
        return self.hyperparameters.teacher.phases

    def init(self) -> TrainState:
        """The state before the first update: each run depends on its own seed alone."""
        return TrainState(jit(self._init_runs, runs_once=True)(self.hyperparameters), jnp.int32(0))

    def shapes(self) -> TrainState:
        """What a state looks like, without making one."""
        return TrainState(jax.eval_shape(self._init_runs, self.hyperparameters), jax.eval_shape(jnp.int32, 0))

    def _init_runs(self, hyperparameters: Hyperparameters) -> RunState:
        seeds = self.config.first_seed + jnp.arange(self.config.seeds)
        runs: RunState = jax.vmap(self._init_run)(hyperparameters, jax.vmap(jax.random.key)(seeds))
        return runs

    def advance(self, state: TrainState, updates: int) -> tuple[TrainState, Log]:
        """Do some updates. `state` is consumed. The program is compiled once, whatever the number of updates."""
        return self._advance(self.hyperparameters, self._placed(state), jnp.int32(updates))

    def compile(self, state: TrainState) -> None:
        """Compile now rather than at the first `advance`, so that compile time can be told apart."""
        self._advance = self._advance.lower(self.hyperparameters, self._placed(state), jnp.int32(0)).compile()

    def _placed(self, state: TrainState) -> TrainState:
        """The state with each run on its device: nothing moves if it is there already."""
        return TrainState(jax.device_put(state.runs, self._devices), state.update)

    def close(self) -> None:
        """Give back what training holds besides memory: in this program, nothing."""

    def empty_shift(self) -> ShiftCounts:
        """What no update at all has met, for every run."""
        zeros = jax.tree.map(jnp.zeros_like, self.monitor.reference)
        return trees.repeat(ShiftCounts(zeros, zeros), self.config.seeds)

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one run in one update."""
        return self.config.workers * self.config.rollout

    def gradient_updates(self, updates: int) -> Int[np.ndarray, " updates"]:
        """How many rollouts the student has learned from after each of the first `updates` updates."""
        return np.cumsum(self.hyperparameters.teacher.learns(updates))

    def total_updates(self) -> int:
        """How many updates the configuration's budget of steps or gradient updates asks for."""
        wanted = self.config.gradient_updates
        if wanted is None:
            return self.config.updates
        horizon = wanted
        while (learned := self.gradient_updates(horizon))[-1] < wanted:
            horizon *= 2
        return int(np.searchsorted(learned, wanted)) + 1

    def _init_run(self, hyperparameters: Hyperparameters, key: PRNGKeyArray) -> RunState:
        network_key, run_key = jax.random.split(key)
        network = build_student(self.config, key=network_key)
        return RunState(
            network=network,
            opt_state=hyperparameters.ppo.init(network),
            teacher=hyperparameters.teacher.init(self.env),
            scale=ReturnScale.empty(),
            key=run_key,
            # A third, so that a run without beliefs of its own begins as it always did: 0 and 1 are those above.
            beliefs=None if self.beliefs is None else self.beliefs.init(key=jax.random.fold_in(key, 2)),
        )

    def grounding_of(self, beliefs: PyTree) -> Grounding:
        """The grounding of a run with these beliefs."""
        if self.beliefs is None:
            return self.grounding
        asked = self.config.fictitious
        return Fictitious(asked.samples, self.beliefs.posterior(beliefs), asked.scores)

    def _advance_uncompiled(
        self, hyperparameters: Hyperparameters, state: TrainState, updates: Int[Array, ""]
    ) -> tuple[TrainState, Log]:
        def update(_: Array, carry: tuple[TrainState, Log]) -> tuple[TrainState, Log]:
            state, log = carry
            runs, news = self._update_runs(hyperparameters, state)
            return TrainState(runs, state.update + 1), jax.tree.map(jnp.add, log, news)

        shapes = jax.eval_shape(self._update_runs, hyperparameters, state)[1]
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.fori_loop(0, updates, update, (state, nothing))

    def _update_runs(self, hyperparameters: Hyperparameters, state: TrainState) -> tuple[RunState, Log]:
        """One update of every run. Only what differs between phases is branched on, so that the rest compiles once."""
        phase = hyperparameters.teacher.schedule(state.update)
        keys = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, state.update), 3))(state.runs.key)
        proposals = [jax.vmap(functools.partial(self._propose, each)) for each in self.phases]
        levels = jax.lax.switch(phase, proposals, hyperparameters, state.runs, keys[:, 0])
        runs, played = jax.vmap(self._play)(hyperparameters, state.runs, levels, keys[:, 1])
        learns = jnp.array([p.learn for p in self.phases])[phase]
        runs, news = jax.lax.cond(
            learns, jax.vmap(self._learn), jax.vmap(self._skip), hyperparameters, runs, played, keys[:, 2]
        )
        beliefs, found = self._update_beliefs(runs.beliefs, levels, played.rollout)
        return dataclasses.replace(runs, beliefs=beliefs), self._told(phase, played, news, found)

    def _update_beliefs(self, beliefs: PyTree, levels: Level, rollout: Rollout) -> tuple[PyTree, dict[str, Mean]]:
        """Let the beliefs of a batch of runs learn, if any of their levels is a sample of the ground truth."""
        if self.beliefs is None:
            return beliefs, {}
        learn = self.beliefs.learn

        def believe(beliefs: PyTree, levels: Level, rollout: Rollout) -> tuple[PyTree, dict[str, Mean]]:
            beliefs, found = learn(beliefs, levels, rollout)
            return beliefs, {name: Mean.of(value) for name, value in found.items()}

        def keep(beliefs: PyTree, levels: Level, rollout: Rollout) -> tuple[PyTree, dict[str, Mean]]:
            shapes = jax.eval_shape(believe, beliefs, levels, rollout)[1]
            return beliefs, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        any_sampled = jnp.any(sampled_from_ground_truth(levels))
        return jax.lax.cond(any_sampled, jax.vmap(believe), jax.vmap(keep), beliefs, levels, rollout)

    def _told(self, phase: Int[Array, ""], played: "Played", news: Log, found: dict[str, Mean]) -> Log:
        """What an update has to tell: how its episodes went, by phase, and the news of learning and of beliefs."""
        by_phase = {
            f"{each.name}/{name}": mean.only_if(phase == index)
            for index, each in enumerate(self.phases)
            for name, mean in played.metrics.items()
        }
        return Log(news.metrics | by_phase | found, news.shift)

    def _propose(self, phase: Phase, hyperparameters: Hyperparameters, run: RunState, key: PRNGKeyArray) -> Level:
        return hyperparameters.teacher.propose(phase, run.teacher, self.env, self.config.workers, key=key)

    def _play(
        self, hyperparameters: Hyperparameters, run: RunState, levels: Level, key: PRNGKeyArray
    ) -> tuple[RunState, "Played"]:
        """Collect a rollout on the levels, and judge it."""
        grounding = self.grounding_of(run.beliefs)
        rollout = collect(self.env, grounding, run.network, levels, self.config.rollout, key=key)
        return self._judge(hyperparameters, run, levels, rollout)

    def _judge(
        self, hyperparameters: Hyperparameters, run: RunState, levels: Level, rollout: Rollout
    ) -> tuple[RunState, "Played"]:
        """Find the advantages of a rollout, and let the teacher see how it went."""
        teacher, ppo = hyperparameters.teacher, hyperparameters.ppo
        scale = run.scale.update(_returns_so_far(rollout, ppo.discount))
        advantages = ppo.advantages(rollout, scale)
        return_scale = scale.deviation if ppo.normalise_returns else jnp.ones(())
        scored = advantages if rollout.real_value is None else ppo.advantages(rollout.as_scored(), scale)
        outcome = Outcome(
            levels=levels,
            advantages=scored,
            values=rollout.value,
            best_return=_best_return(rollout, return_scale),
            return_scale=return_scale,
            network=run.network,
        )
        teacher_state = teacher.observe(run.teacher, self.env, outcome)
        metrics = _episode_metrics(rollout) | {"advantage": Mean.of(jnp.abs(advantages))}
        judged = dataclasses.replace(run, teacher=teacher_state, scale=scale)
        return judged, Played(rollout, advantages, metrics)

    def _learn(
        self, hyperparameters: Hyperparameters, run: RunState, played: "Played", key: PRNGKeyArray
    ) -> tuple[RunState, Log]:
        """Let the student learn from a rollout, and the monitor see what it met."""
        network, opt_state, losses = hyperparameters.ppo.update(
            run.network, run.opt_state, played.rollout, played.advantages, key=key
        )
        rollout = played.rollout
        shift = self.monitor.count(rollout.real_summaries, rollout.met_summaries)
        told = hyperparameters.teacher.metrics(run.teacher)
        metrics = {name: Mean.of(value) for name, value in told.items()}
        metrics |= {f"student/{name}": Mean.of(value) for name, value in vars(losses).items()}
        return dataclasses.replace(run, network=network, opt_state=opt_state), Log(metrics, shift)

    def _skip(
        self, hyperparameters: Hyperparameters, run: RunState, played: "Played", key: PRNGKeyArray
    ) -> tuple[RunState, Log]:
        """Learn nothing, and have nothing to tell."""
        shapes = jax.eval_shape(self._learn, hyperparameters, run, played, key)[1]
        return run, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def over_devices(runs: int) -> NamedSharding | None:
    """Where the runs of a batch are: spread evenly over as many devices as divide them; None where that is one.

    Runs have nothing to do with each other, so neither do the devices.
    """
    devices = jax.local_devices()
    count = max(n for n in range(1, len(devices) + 1) if runs % n == 0)
    if count == 1:
        return None
    return NamedSharding(Mesh(np.array(devices[:count]), ("runs",)), PartitionSpec("runs"))


class Played(eqx.Module):
    """A rollout on proposed levels, with its grounded advantages."""

    rollout: Rollout
    advantages: Float[Array, "t n"]
    metrics: dict[str, Mean]


def build_grounding(config: Config) -> Grounding:
    """The grounding that a configuration names."""
    match config.grounding:
        case "none":
            return Ungrounded()
        case "naive":
            return Naive()
        case "fictitious":
            return Fictitious(config.fictitious.samples, scores=config.fictitious.scores)


def build_beliefs(config: Config) -> Beliefs | None:
    """Where the posterior comes from that a configuration names; None for the environment's own."""
    if config.grounding != "fictitious" or (config.fictitious.posterior, config.fictitious.prior) == ("exact", "known"):
        return None
    env, belief, student = require_grounded(config.env), config.belief, config.student
    if config.fictitious.prior == "estimated":
        estimated = EstimatedPrior(env)
        estimated.init(key=jax.random.key(0))  # refuses a prior that cannot be estimated
        return estimated
    bins = Bins.of(env, belief.bins)
    return LearnedBeliefs(
        env, bins, student.encoder, student.hidden, belief.memory, belief.learning_rate, belief.epochs
    )


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


def build_student(config: Config, *, key: PRNGKeyArray) -> ActorCritic:
    """A student before its training."""
    student = config.student
    return build_network(
        config.env,
        student.encoder,
        student.hidden,
        student.memory,
        student.head,
        student.sees_actions,
        student.informed_critic,
        student.policy_gain,
        key=key,
    )


def student_shapes(config: Config) -> ActorCritic:
    """The students of a batch, as shapes stacked along a leading axis."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), config.seeds))
    shapes: ActorCritic = jax.eval_shape(jax.vmap(lambda key: build_student(config, key=key)), keys)
    return shapes


def build_teacher(config: Config) -> Teacher:
    """The teacher that a configuration names."""
    if config.teacher == "dr":
        return DomainRandomisation()
    if config.teacher == "fixed":
        return FixedCurriculum(config.presents)
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


def _best_return(rollout: Rollout, return_scale: Float[Array, ""]) -> Float[Array, " n"]:
    """The highest return of the finished episodes; where none finished, what the value function expects of the last."""
    finished = jnp.max(jnp.where(rollout.end, rollout.episode_return, -jnp.inf), axis=0)
    expected = rollout.episode_return[-1] + return_scale * rollout.primed_value[-1, :, 0]
    return jnp.where(jnp.isfinite(finished), finished, expected)


def _episode_metrics(rollout: Rollout) -> dict[str, Mean]:
    """The mean return over the levels of a rollout on which episodes ended, and the world's own figures over episodes.

    For the return a level counts once: one on which the car never gets away has many short episodes, and a mean over
    episodes would be about it above all. The world's figures count each time, since they may be parts of a whole: of
    all tiles visited, those with ice.
    """
    share = rollout.end / jnp.maximum(jnp.sum(rollout.end, axis=0), 1)
    figures: dict[str, Any] = rollout.metrics
    return {
        "return": Mean.of(rollout.episode_return, share),
        **{name: Mean.of(values, rollout.end) for name, values in figures.items()},
    }
