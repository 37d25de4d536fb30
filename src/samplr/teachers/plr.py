"""Prioritised level replay (PLR), and its robust form PLR⊥, which takes no gradient on new levels."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from samplr.envs.api import Environment, Level, Origin
from samplr.teachers.api import Outcome, Phase, Teacher
from samplr.teachers.buffer import Candidates, LevelBuffer, Prioritisation, draw, merge, replay_weights
from samplr.teachers.dr import sample_levels
from samplr.teachers.scores import Score

NEW, REPLAY = 0, 1


class PrioritisedLevelReplay(Teacher):
    """Two phases: new levels from the ground truth, and levels replayed from the buffer.

    The coin that chooses between them is a function of the update index alone, and replay is allowed once enough new
    levels have been presented to fill a given share of the buffer.
    """

    temperature: Float[Array, ""]
    staleness: Float[Array, ""]
    replay_rate: float = eqx.field(static=True)
    capacity: int = eqx.field(static=True)
    new_rollouts_first: int = eqx.field(static=True)
    prioritisation: Prioritisation = eqx.field(static=True)
    score: Score = eqx.field(static=True)
    robust: bool = eqx.field(static=True)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """New levels (learned from unless robust), and replayed ones."""
        return (Phase("new", learn=not self.robust), Phase("replay", learn=True))

    def schedule(self, update: Int[Array, ""]) -> Int[Array, ""]:
        """Replay with probability p, after the first rollouts."""
        coin = jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), update), self.replay_rate)
        return jnp.where((update >= self.new_rollouts_first) & coin, REPLAY, NEW)

    def init(self, env: Environment) -> LevelBuffer:
        """An empty buffer."""
        example = jax.eval_shape(lambda key: env.sample_level(key=key), jax.random.key(0))
        return LevelBuffer.empty(example, self.capacity)

    def propose(self, phase: Phase, state: LevelBuffer, env: Environment, workers: int, *, key: PRNGKeyArray) -> Level:
        """Fresh levels, or levels from the buffer."""
        if phase.name == "new":
            return sample_levels(env, workers, key=key)
        weights = replay_weights(state, self.prioritisation, self.temperature, self.staleness)
        slots = draw(state, weights, workers, key=key)
        replayed: Level = jax.tree.map(lambda leaf: leaf[slots], state.levels)
        return eqx.tree_at(lambda level: level.origin, replayed, jnp.full(workers, Origin.REPLAY, jnp.int32))

    def observe(self, state: LevelBuffer, env: Environment, outcome: Outcome) -> LevelBuffer:
        """Score the levels and merge them into the buffer: a replayed level finds itself there."""
        candidates = Candidates.match(state, outcome.levels, jax.vmap(env.identity)(outcome.levels))
        best_return = candidates.best_return(state, outcome.best_return)
        score = self.score(outcome, best_return)
        return merge(state, candidates, score, best_return, self.prioritisation, self.temperature, self.staleness)

    def metrics(self, state: LevelBuffer) -> dict[str, Float[Array, ""]]:
        """How full the buffer is, and what its levels are worth."""
        filled = jnp.sum(state.filled)
        return {
            "buffer/filled": filled / self.capacity,
            "buffer/score": jnp.sum(state.score * state.filled) / jnp.maximum(filled, 1),
        }


def new_rollouts_before_replay(fill: float, capacity: int, workers: int) -> int:
    """⌈fill·K/N⌉, and at least one: there is nothing to replay before."""
    # Rounded first: 0.07 · 100 is 7.000000000000001.
    return max(1, math.ceil(round(fill * capacity / workers, 9)))
