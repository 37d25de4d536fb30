"""The training loop where steps are taken on the host: the same compiled pieces, one update of one run at a time."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from samplr import trees
from samplr.compiling import jit
from samplr.config import Config
from samplr.envs.gymnasium import GymnasiumEnvironment, require_grounded_verbs
from samplr.grounding import Fictitious
from samplr.host.rollout import HostCollector
from samplr.training import Hyperparameters, Log, RunState, Training, TrainState


class HostTraining(Training):
    """The program of one configuration whose environment is a `GymnasiumEnvironment`.

    Its runs take turns: they share one pool of simulators, and every rollout begins with a reset. `close` ends the
    processes of the pool.
    """

    def __init__(self, config: Config, hyperparameters: Hyperparameters | None = None) -> None:
        super().__init__(config, hyperparameters)
        assert isinstance(self.env, GymnasiumEnvironment)
        twins = isinstance(self.grounding, Fictitious)
        if twins:
            require_grounded_verbs(self.env)
        self.collector = HostCollector(
            self.env,
            self.grounding_of,
            twins=twins,
            workers=config.workers,
            steps=config.rollout,
            processes=config.processes,
            patience=config.patience_seconds,
        )
        self._proposals = [jit(functools.partial(self._propose, phase)) for phase in self.phases]
        self._judging, self._learning, self._skipping = jit(self._judge), jit(self._learn), jit(self._skip)
        self._believing, self._telling = jit(self._update_beliefs), jit(self._told)

    def advance(self, state: TrainState, updates: int) -> tuple[TrainState, Log]:
        """Do some updates, at least one."""
        logs = []
        for _ in range(updates):
            runs, log = zip(*map(functools.partial(self._update_run, state), range(self.config.seeds)), strict=True)
            logs.append(trees.stack(*log))
            state = TrainState(trees.stack(*runs), state.update + 1)
        return state, jax.tree.map(lambda *leaves: sum(leaves), *logs)

    def compile(self, state: TrainState) -> None:
        """Nothing to do ahead: the pieces are compiled when first used."""

    def close(self) -> None:
        """End the simulators' processes."""
        self.collector.close()

    def _update_run(self, state: TrainState, index: int) -> tuple[RunState, Log]:
        """One update of one run: as `_update_runs`, with the phase known."""
        hyperparameters, run = jax.tree.map(lambda leaf: leaf[index], (self.hyperparameters, state.runs))
        phase = int(hyperparameters.teacher.schedule(state.update))
        keys = jax.random.split(jax.random.fold_in(run.key, state.update), 3)
        levels = self._proposals[phase](hyperparameters, run, keys[0])
        rollout = self.collector.collect(run.network, levels, run.beliefs, key=keys[1])
        run, played = self._judging(hyperparameters, run, levels, rollout)
        finish = self._learning if self.phases[phase].learn else self._skipping
        run, news = finish(hyperparameters, run, played, keys[2])
        # Beliefs learn a batch of runs at a time: here a batch of one.
        batch = jax.tree.map(lambda leaf: leaf[None], (run.beliefs, levels, rollout))
        beliefs, found = jax.tree.map(lambda leaf: leaf[0], self._believing(*batch))
        return dataclasses.replace(run, beliefs=beliefs), self._telling(jnp.int32(phase), played, news, found)
