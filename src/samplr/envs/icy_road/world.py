"""Icy road: drive slow or fast over segments that may hide ice, in a world small enough to be solved exactly.

At each of N segments the agent drives slow (+1) or fast (+2, but −8 on ice); crossing a segment reveals whether it was
icy. Ice is drawn independently for each segment at a rate q ~ Beta(1, 15) that the agent never sees.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt8

from samplr.envs.api import GroundedEnvironment, Level, LevelScore, Suite, TimeStep
from samplr.envs.spaces import Box, Discrete
from samplr.errors import LevelError, SamplrError
from samplr.posteriors import Belief, BernoulliEvidence, BernoulliField, BetaBernoulli

SLOW, FAST = 0, 1
NOTHING_YET, DRY, ICY = 0, 1, 2
EVALUATED_RATES = (0.0, 0.2, 0.4, 0.6, 0.8)


class IcyRoadState(eqx.Module):
    """Where the car is, the ice of the whole road, and so (up to the car) what was revealed."""

    position: Int[Array, ""]
    ice: BernoulliField


class IcyRoadPosterior(BetaBernoulli):
    """The conjugate posterior, which on this road can also be summed exactly: only the next segment matters."""

    def support(self, belief: Belief, evidence: BernoulliEvidence) -> tuple[BernoulliField, Float[Array, "2"]]:
        """All that is unrevealed dry, or all of it icy, weighted by the posterior predictive of the next segment."""
        icy = self.rate_given(evidence).mean
        both = jnp.array([[False], [True]])
        bits = jnp.where(evidence.revealed, evidence.values, both)
        return BernoulliField(jnp.full(2, icy), bits), jnp.stack([1 - icy, icy])


class IcyRoad(GroundedEnvironment):
    """The laboratory world. `samplr.envs.icy_road.solution` knows its Bayes-optimal policy."""

    segments: int = 12
    """Number of segments of the road."""
    alpha: float = 1.0
    """The ice rate is drawn from Beta(alpha, beta)."""
    beta: float = 15.0
    """The ice rate is drawn from Beta(alpha, beta)."""
    show_counts: bool = True
    """Whether the observation holds the counts of dry and icy segments so far; without them, memory is needed."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "workers": 64,
        "rollout": 12,
        "student.learning_rate": 3e-3,
        "student.gae_lambda": 0.5,
        "student.entropy_coefficient": 0.01,
        "student.normalise_returns": False,
        "replay.rate": 0.8,
        "replay.capacity": 256,
    }

    def __check_init__(self) -> None:
        if self.segments < 1:
            raise SamplrError(f"an icy road needs at least 1 of its segments, not {self.segments}")
        for name in ("alpha", "beta"):
            if not 0 < getattr(self, name) < math.inf:
                raise SamplrError(f"an icy road needs a positive {name}, not {getattr(self, name):g}")

    @property
    def observation_space(self) -> Box:
        """Position (one-hot), what the last segment was like (one-hot), and the counts as shares of the road."""
        return Box((self.segments + 1 + 3 + 2 * self.show_counts,), 0.0, 1.0)

    @property
    def action_space(self) -> Discrete:
        """Slow or fast."""
        return Discrete(2)

    @property
    def posterior(self) -> IcyRoadPosterior:
        """Beta–Bernoulli over the segments crossed."""
        return IcyRoadPosterior(self.alpha, self.beta)

    @property
    def observation_is_sufficient(self) -> bool:
        """The counts are all that the history tells about the rate."""
        return self.show_counts

    def sample_layout(self, *, key: PRNGKeyArray) -> None:
        """Every road looks the same: all that varies is the ice."""
        return None

    def sample_aleatoric(self, layout: None, *, key: PRNGKeyArray) -> BernoulliField:
        """Draw the rate, then the ice."""
        return self.posterior.sample_prior(self.segments, key=key)

    def reset(
        self, world: None, aleatoric: BernoulliField, *, key: PRNGKeyArray
    ) -> tuple[IcyRoadState, Float[Array, " features"]]:
        """Begin before the first segment."""
        state = IcyRoadState(jnp.int32(0), aleatoric)
        return state, self.observe(world, state)

    def step(self, world: None, state: IcyRoadState, action: Int[Array, ""], *, key: PRNGKeyArray) -> TimeStep:
        """Cross one segment."""
        icy = state.ice.bits[state.position]
        reward = jnp.where(action == FAST, jnp.where(icy, -8.0, 2.0), 1.0)
        after = IcyRoadState(state.position + 1, state.ice)
        crossed = self.evidence(after)
        return TimeStep(
            state=after,
            observation=self.observe(world, after),
            reward=reward,
            terminated=after.position >= self.segments,
            truncated=jnp.array(False),
            metrics={"icy_share": jnp.sum(crossed.values) / after.position},
        )

    def observe(self, world: None, state: IcyRoadState) -> Float[Array, " features"]:
        """What the agent sees."""
        icy_before = state.ice.bits[jnp.maximum(state.position - 1, 0)]
        last = jnp.where(state.position == 0, NOTHING_YET, jnp.where(icy_before, ICY, DRY))
        parts = [jax.nn.one_hot(state.position, self.segments + 1), jax.nn.one_hot(last, 3)]
        if self.show_counts:
            icy = jnp.sum(self.evidence(state).values)
            parts.append(jnp.stack([state.position - icy, icy]) / self.segments)
        return jnp.concatenate(parts)

    def evidence(self, state: IcyRoadState) -> BernoulliEvidence:
        """The segments behind the car."""
        revealed = jnp.arange(self.segments) < state.position
        return BernoulliEvidence(revealed, state.ice.bits & revealed)

    def substitute(self, state: IcyRoadState, aleatoric: BernoulliField) -> IcyRoadState:
        """Swap the ice ahead of the car."""
        revealed = self.evidence(state).revealed
        bits = jnp.where(revealed, state.ice.bits, aleatoric.bits)
        return IcyRoadState(state.position, BernoulliField(aleatoric.rate, bits))

    def hidden(self, aleatoric: BernoulliField) -> Float[Array, "1"]:
        """The rate of ice."""
        return aleatoric.rate[None]

    def complete(self, hidden: Float[Array, "1"], evidence: BernoulliEvidence, *, key: PRNGKeyArray) -> BernoulliField:
        """Ice at that rate on every segment not crossed yet."""
        return evidence.completed(hidden[0], key=key)

    def identity(self, level: Level) -> Bool[Array, " segments"]:
        """The ice alone: its rate only says where it came from."""
        return level.aleatoric.bits

    def summaries(self, aleatoric: BernoulliField) -> dict[str, Float[Array, ""]]:
        """The share of the road that is icy."""
        return {"ice": jnp.mean(aleatoric.bits, dtype=jnp.float32)}

    def level_at_rate(self, rate: float, *, key: PRNGKeyArray) -> Level:
        """A road whose ice is drawn at a given rate."""
        bits = jax.random.bernoulli(key, rate, (self.segments,))
        return Level(None, BernoulliField(jnp.float32(rate), bits))

    def suites(self) -> Mapping[str, Suite]:
        """The ground truth, and roads at fixed rates of ice."""

        def at(rate: float) -> Any:
            return lambda key: self.level_at_rate(rate, key=key)

        return {**super().suites(), "fixed_rates": {f"q={rate:g}": at(rate) for rate in EVALUATED_RATES}}

    def oracle_scores(self) -> Mapping[str, LevelScore]:
        """The exact regret of a level, against a driver told the ice and against the Bayes-optimal one."""
        from samplr.envs.icy_road import solution  # it needs this module

        return {
            "exact_regret": lambda network, level: solution.level_regret(
                self, solution.tabulate(self, network).fast, level.aleatoric.bits
            ),
            "grounded_regret": lambda network, level: solution.grounded_level_regret(
                self, solution.tabulate(self, network).fast, level.aleatoric.bits
            ),
        }

    def validate(self, level: Level) -> None:
        """Check shapes, and that the rate is a probability."""
        super().validate(level)
        if not 0 <= float(level.aleatoric.rate) <= 1:
            raise LevelError(f"the level's aleatoric.rate is {float(level.aleatoric.rate):g}, not in [0, 1]")

    def render(self, world: None, state: IcyRoadState) -> UInt8[np.ndarray, "height width 3"]:
        """The road from above: ice in blue (pale where it is still ahead, unseen), the car in red."""
        size = 24
        road = np.full((size, size * (self.segments + 1), 3), 90, np.uint8)
        position = int(state.position)
        for segment, icy in enumerate(np.asarray(state.ice.bits)):
            cell = road[2:-2, segment * size + 1 : (segment + 1) * size - 1]
            behind = segment < position
            cell[:] = ((70, 150, 220) if behind else (160, 200, 235)) if icy else ((150,) * 3 if behind else (120,) * 3)
        road[8:-8, position * size + 5 : position * size + size - 5] = (200, 40, 40)
        return road
