"""The host collector: the same rollout as `samplr.rollout.collect`, with steps that simulators on the host take.

Between two steps one compiled program writes down the last and decides on the next: the action, the θ′ of the
fictitious steps, and the level that follows an episode's end. Its parts and its keys are those of the compiled
collector, so that with a simulator that computes the same numbers the rollout is the same.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree, UInt32

from samplr.compiling import jit
from samplr.envs.api import Level
from samplr.envs.gymnasium import GymnasiumEnvironment
from samplr.grounding import Grounding, Versions, as_it_happened, as_redrawn
from samplr.host.crew import Begun, Order, Outcome, Start
from samplr.host.pool import SimulatorPool
from samplr.rollout import Rollout, StepKeys, Worker, begun, looked, record
from samplr.student.networks import ActorCritic


class Opening(eqx.Module):
    """How an episode will begin."""

    level: Level
    """With the θ′ that the grounding says."""
    seed: UInt32[Array, ""]
    """The luck of its simulator."""


class Choice(eqx.Module):
    """What one worker does next."""

    raw: Array
    """The action as the policy sampled it."""
    action: Array
    versions: Versions | None
    restart: Opening


class HostCollector:
    """Lets students act on levels in a pool of simulators.

    **Arguments:**

    - `grounding_of`: the grounding of a run with given beliefs.
    - `twins`: whether it asks for fictitious steps.
    - `workers`: how many levels a rollout has.
    - `steps`: how many steps each worker takes.
    - `processes`, `patience`: as for `SimulatorPool`.
    """

    def __init__(
        self,
        env: GymnasiumEnvironment,
        grounding_of: Callable[[PyTree], Grounding],
        *,
        twins: bool,
        workers: int,
        steps: int,
        processes: int,
        patience: float,
    ) -> None:
        self.env, self.grounding_of, self.workers, self.steps = env, grounding_of, workers, steps
        self.pool = SimulatorPool(env, workers, twins=twins, processes=processes, patience=patience)
        self._openings = jit(jax.vmap(self._opening, in_axes=(None, 0, 0)))
        self._first = jit(jax.vmap(self._first_choice, in_axes=(None, None, 0, 0, 0, 0)))
        self._next = jit(jax.vmap(self._next_choice, in_axes=(None, None, 0, 0, 0, 0, 0)))

    def collect(self, network: ActorCritic, levels: Level, beliefs: PyTree = None, *, key: PRNGKeyArray) -> Rollout:
        """Let a student act on a batch of levels, one for each worker."""
        begin_key, steps_key = jax.random.split(key)
        keys = [jax.random.split(step_key, self.workers) for step_key in jax.random.split(steps_key, self.steps)]
        openings = self._openings(beliefs, levels, jax.random.split(begin_key, self.workers))
        begun = self.pool.begin(_start(openings))
        worker, choice = self._first(network, beliefs, levels, openings, begun, keys[0])
        rows = []
        # The choice after the last step is not acted on: the next rollout begins with a reset.
        for next_keys in [*keys[1:], keys[-1]]:
            outcome = self.pool.turn(_order(choice))
            worker, choice, row = self._next(network, beliefs, levels, worker, choice, outcome, next_keys)
            rows.append(row)
        return jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(rows))

    def close(self) -> None:
        """End the simulators' processes."""
        self.pool.close()

    def _opening(self, beliefs: PyTree, level: Level, key: PRNGKeyArray) -> Opening:
        aleatoric_key, reset_key = jax.random.split(key)
        aleatoric = self.grounding_of(beliefs).aleatoric(self.env, level, key=aleatoric_key)
        return Opening(Level(level.layout, aleatoric, level.origin), jax.random.bits(reset_key))

    def _first_choice(
        self,
        network: ActorCritic,
        beliefs: PyTree,
        level: Level,
        opening: Opening,
        begin: Begun,
        key: PRNGKeyArray,
    ) -> tuple[Worker, Choice]:
        """Look at the first observation, and choose."""
        episode = begun(self.env, self.grounding_of(beliefs), network, opening.level.aleatoric, *begin)
        worker = looked(self.env, network, episode)
        return worker, self._choose(network, beliefs, level, worker, key)

    def _next_choice(
        self,
        network: ActorCritic,
        beliefs: PyTree,
        level: Level,
        worker: Worker,
        choice: Choice,
        outcome: Outcome,
        key: PRNGKeyArray,
    ) -> tuple[Worker, Choice, Rollout]:
        """Write down what the choice led to, and choose again."""
        real, redrawn, begin = outcome
        grounding = self.grounding_of(beliefs)
        if choice.versions is None or redrawn is None:
            primed = as_it_happened(real, worker.episode.aleatoric)
        else:
            primed = as_redrawn(real, redrawn, choice.versions)
        restarted = begun(self.env, grounding, network, choice.restart.level.aleatoric, *begin)
        worker, row = record(self.env, grounding, network, worker, choice.raw, real, primed, restarted)
        return worker, self._choose(network, beliefs, level, worker, key), row

    def _choose(self, network: ActorCritic, beliefs: PyTree, level: Level, worker: Worker, key: PRNGKeyArray) -> Choice:
        keys, episode = StepKeys.of(key), worker.episode
        raw = worker.policy.sample(key=keys.action)
        versions = self.grounding_of(beliefs).versions(self.env, episode.belief, episode.state, key=keys.posterior)
        restart = self._opening(beliefs, level, keys.restart)
        return Choice(raw, network.action_space.decode(raw), versions, restart)


def _start(openings: Opening) -> Start:
    return Start(*jax.device_get((openings.level, openings.seed)))


def _order(choice: Choice) -> Order:
    versions = None if choice.versions is None else choice.versions.aleatoric
    action, versions = jax.device_get((choice.action, versions))
    return Order(action, versions, _start(choice.restart))
