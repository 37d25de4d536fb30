"""`check_environment`: what keeps the contract passes, and each way of breaking it is told by name."""

import itertools
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from samplr.envs.api import Environment, GroundedEnvironment, Level, TimeStep
from samplr.envs.icy_road import IcyRoad
from samplr.envs.spaces import Box, Discrete
from samplr.errors import LevelError
from samplr.posteriors import BernoulliEvidence, Posterior
from samplr.testing import _FAR, ContractError, check_environment

DOORS = 12
LIMIT = 20


# A small grounded world that keeps every law.


class FairCoins(Posterior):
    """θ′ is independent fair bits: what was revealed stands, the rest is tossed again."""

    def sample(self, belief: None, evidence: BernoulliEvidence, *, key: PRNGKeyArray) -> Bool[Array, " n"]:
        tossed = jax.random.bernoulli(key, 0.5, evidence.revealed.shape)
        return jnp.where(evidence.revealed, evidence.values, tossed)


class DoorsState(eqx.Module):
    position: Int[Array, ""]
    opened: Bool[Array, " doors"]
    prizes: Bool[Array, " doors"]


class Doors(GroundedEnvironment):
    """Doors in a row, each with a prize behind it or none: the agent opens one, and sees, or passes it by."""

    observation_is_sufficient = True

    @property
    def observation_space(self) -> Box:
        return Box((3 * DOORS + 1,), 0.0, 1.0)

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    @property
    def posterior(self) -> Posterior:
        return FairCoins()

    def sample_layout(self, *, key: PRNGKeyArray) -> None:
        return None

    def sample_aleatoric(self, layout: None, *, key: PRNGKeyArray) -> Bool[Array, " doors"]:
        return jax.random.bernoulli(key, 0.5, (DOORS,))

    def reset(
        self, world: None, aleatoric: Bool[Array, " doors"], *, key: PRNGKeyArray
    ) -> tuple[DoorsState, Float[Array, " features"]]:
        state = DoorsState(jnp.int32(0), jnp.zeros(DOORS, bool), aleatoric)
        return state, self.observe(world, state)

    def step(self, world: None, state: DoorsState, action: Int[Array, ""], *, key: PRNGKeyArray) -> TimeStep:
        opens = (action == 1) & (state.position < DOORS)
        prize = jnp.where(state.prizes[state.position], 1.0, -1.0)
        opened = state.opened.at[state.position].max(opens)
        after = DoorsState(state.position + 1, opened, state.prizes)
        return TimeStep(
            state=after,
            observation=self.observe(world, after),
            reward=jnp.where(opens, prize, 0.0),
            terminated=after.position >= DOORS,
            truncated=jnp.array(False),
        )

    def observe(self, world: None, state: DoorsState) -> Float[Array, " features"]:
        seen = jnp.concatenate([state.opened, state.prizes & self.visible(state)])
        return jnp.concatenate([jax.nn.one_hot(state.position, DOORS + 1), seen.astype(float)])

    def visible(self, state: DoorsState) -> Bool[Array, " doors"]:
        """Where the agent sees whether there is a prize."""
        return state.opened

    def evidence(self, state: DoorsState) -> BernoulliEvidence:
        return BernoulliEvidence(state.opened, state.prizes & state.opened)

    def substitute(self, state: DoorsState, aleatoric: Bool[Array, " doors"]) -> DoorsState:
        return DoorsState(state.position, state.opened, jnp.where(state.opened, state.prizes, aleatoric))


def next_door(state: DoorsState) -> Bool[Array, " doors"]:
    """The door the agent stands before, which it has not opened."""
    return jnp.arange(DOORS) == state.position


# Small worlds that are not grounded: they have a layout, a build, and both kinds of end.


class Drift(Environment):
    """A walker in an unseen wind, from 0 to a goal that differs from level to level."""

    @property
    def observation_space(self) -> Box:
        return Box((2,))

    @property
    def action_space(self) -> Discrete | Box:
        return Discrete(3)

    def push(self, action: Array) -> Float[Array, ""]:
        """What an action does: back, nothing, forth."""
        return action - 1.0

    def sample_layout(self, *, key: PRNGKeyArray) -> dict[str, Array]:
        return {"goal": jax.random.uniform(key, minval=1.0, maxval=3.0)}

    def sample_aleatoric(self, layout: dict[str, Array], *, key: PRNGKeyArray) -> Float[Array, ""]:
        return jax.random.normal(key)

    def build(self, layout: dict[str, Array]) -> Float[Array, ""]:
        return layout["goal"]

    def reset(
        self, world: Float[Array, ""], aleatoric: Float[Array, ""], *, key: PRNGKeyArray
    ) -> tuple[dict[str, Array], Float[Array, "2"]]:
        state = {"position": jnp.zeros(()), "wind": aleatoric, "time": jnp.int32(0)}
        return state, jnp.stack([state["position"], world])

    def step(self, world: Float[Array, ""], state: dict[str, Array], action: Array, *, key: PRNGKeyArray) -> TimeStep:
        moved = state["position"] + self.push(action) + 0.3 * state["wind"] + 0.1 * jax.random.normal(key)
        after = {"position": moved, "wind": state["wind"], "time": state["time"] + 1}
        arrived = moved >= world
        return TimeStep(
            state=after,
            observation=jnp.stack([moved, world]),
            reward=jnp.where(arrived, 10.0, -1.0),
            terminated=arrived,
            truncated=~arrived & (after["time"] >= LIMIT),
        )


class Glide(Drift):
    """The same walker with a continuous action."""

    @property
    def action_space(self) -> Box:
        return Box((1,), -1.0, 1.0)

    def push(self, action: Float[Array, "1"]) -> Float[Array, ""]:
        return action[0]


@pytest.mark.parametrize(
    "env",
    [IcyRoad(), IcyRoad(show_counts=False), Doors(), Drift(), Glide()],
    ids=["icy_road", "icy_road_without_counts", "grounded", "ungrounded", "continuous"],
)
def test_an_environment_that_keeps_the_contract_passes(env: Environment) -> None:
    check_environment(env)


# Law 1: substituting a posterior draw changes nothing that the agent knows.


class GlassDoors(Doors):
    """Shows what is behind a door before it is opened, and still calls it unrevealed."""

    def visible(self, state: DoorsState) -> Bool[Array, " doors"]:
        return state.opened | next_door(state)


class Forgetful(Doors):
    """Swaps all prizes, also those behind open doors, and takes them from a posterior that ignores the evidence."""

    @property
    def posterior(self) -> Posterior:
        class Prior(Posterior):
            def sample(self, belief: None, evidence: BernoulliEvidence, *, key: PRNGKeyArray) -> Bool[Array, " n"]:
                return jax.random.bernoulli(key, 0.5, evidence.revealed.shape)

        return Prior()

    def substitute(self, state: DoorsState, aleatoric: Bool[Array, " doors"]) -> DoorsState:
        return DoorsState(state.position, state.opened, aleatoric)


class ForgetfulInTheDark(Forgetful):
    """Forgets as well, but shows the position alone, so that only the evidence tells."""

    def observe(self, world: None, state: DoorsState) -> Float[Array, " features"]:
        return jnp.zeros(3 * DOORS + 1).at[state.position].set(1.0)


@pytest.mark.parametrize("env", [GlassDoors(), Forgetful()], ids=["observe", "substitute"])
def test_law_1_a_substitution_that_changes_the_observation_is_told(env: Environment) -> None:
    with pytest.raises(ContractError, match="law 1: substituting a posterior draw changes the current observation"):
        check_environment(env)


def test_law_1_a_substitution_that_changes_the_evidence_is_told() -> None:
    with pytest.raises(ContractError, match="law 1: substituting a posterior draw changes what was revealed"):
        check_environment(ForgetfulInTheDark())


# Law 2: nothing unrevealed leaks into the fictitious transition.


class PeekingEvidence(Doors):
    """Counts the door ahead as revealed before it is opened."""

    def evidence(self, state: DoorsState) -> BernoulliEvidence:
        revealed = state.opened | next_door(state)
        return BernoulliEvidence(revealed, state.prizes & revealed)


class PeekingEvidenceKept(PeekingEvidence):
    """The same, with a `substitute` that asks `evidence` what to keep, as icy road's does."""

    def substitute(self, state: DoorsState, aleatoric: Bool[Array, " doors"]) -> DoorsState:
        kept = self.evidence(state).revealed
        return DoorsState(state.position, state.opened, jnp.where(kept, state.prizes, aleatoric))


class HalfSubstitute(Doors):
    """Forgets to swap the door ahead, though nobody has opened it."""

    def substitute(self, state: DoorsState, aleatoric: Bool[Array, " doors"]) -> DoorsState:
        kept = state.opened | next_door(state)
        return DoorsState(state.position, state.opened, jnp.where(kept, state.prizes, aleatoric))


class CachedState(eqx.Module):
    doors: DoorsState
    rich: Bool[Array, ""]


class StaleCache(Doors):
    """Works out at the reset whether prizes abound, and pays for that at the first door; `substitute` leaves it so."""

    def reset(
        self, world: None, aleatoric: Bool[Array, " doors"], *, key: PRNGKeyArray
    ) -> tuple[CachedState, Float[Array, " features"]]:
        doors, observation = Doors().reset(world, aleatoric, key=key)
        return CachedState(doors, jnp.sum(aleatoric) > DOORS // 2), observation

    def step(self, world: None, state: CachedState, action: Int[Array, ""], *, key: PRNGKeyArray) -> TimeStep:
        after = Doors().step(world, state.doors, action, key=key)
        cached = CachedState(after.state, state.rich)
        reward = after.reward + 10.0 * ((state.doors.position == 0) & state.rich)
        return TimeStep(cached, after.observation, reward, after.terminated, after.truncated)

    def observe(self, world: None, state: CachedState) -> Float[Array, " features"]:
        return Doors().observe(world, state.doors)

    def evidence(self, state: CachedState) -> BernoulliEvidence:
        return Doors().evidence(state.doors)

    def substitute(self, state: CachedState, aleatoric: Bool[Array, " doors"]) -> CachedState:
        return CachedState(Doors().substitute(state.doors, aleatoric), state.rich)


@pytest.mark.parametrize(
    "env",
    [PeekingEvidence(), PeekingEvidenceKept(), HalfSubstitute(), StaleCache()],
    ids=["evidence", "evidence_and_substitute", "substitute", "cache"],
)
def test_law_2_a_leak_of_what_is_unrevealed_is_told(env: Environment) -> None:
    with pytest.raises(ContractError, match=r"law 2: .* unrevealed θ′.*, so it leaks"):
        check_environment(env)


# Law 3: terminated and truncated are different things.


class EndsTwice(Drift):
    """Out of time with the arrival."""

    def step(self, world: Any, state: Any, action: Any, *, key: PRNGKeyArray) -> TimeStep:
        after = super().step(world, state, action, key=key)
        return TimeStep(after.state, after.observation, after.reward, after.terminated, after.terminated)


class TimedDoors(Doors):
    """Has a time limit that no episode lives to see."""

    def step(self, world: Any, state: Any, action: Any, *, key: PRNGKeyArray) -> TimeStep:
        after = super().step(world, state, action, key=key)
        out_of_time = after.state.position >= 2 * DOORS
        return TimeStep(after.state, after.observation, after.reward, after.terminated, out_of_time)


def test_law_3_a_step_both_terminated_and_truncated_is_told() -> None:
    with pytest.raises(ContractError, match="law 3: a step is both terminated and truncated"):
        check_environment(EndsTwice())


def test_law_3_is_about_episodes_not_about_what_would_follow_their_end() -> None:
    check_environment(TimedDoors())


# The other checks.


class GrowingState(Drift):
    """Begins to count in integers, and goes on in floats."""

    def step(self, world: Any, state: Any, action: Any, *, key: PRNGKeyArray) -> TimeStep:
        after = super().step(world, state, action, key=key)
        state = {**after.state, "time": after.state["time"] + 0.0}
        return TimeStep(state, after.observation, after.reward, after.terminated, after.truncated)


def test_a_state_whose_type_changes_is_told() -> None:
    with pytest.raises(ContractError, match="step changes the structure, shapes or types of the state"):
        check_environment(GrowingState())


class UndefinedReward(Doors):
    """Divides nothing by nothing before one of its doors."""

    door: int = 0

    def step(self, world: Any, state: Any, action: Any, *, key: PRNGKeyArray) -> TimeStep:
        after = super().step(world, state, action, key=key)
        reward = jnp.where(state.position == self.door, jnp.nan, after.reward)
        return TimeStep(after.state, after.observation, reward, after.terminated, after.truncated)


@pytest.mark.parametrize("door", [3, DOORS - 1])
def test_a_reward_that_is_not_a_number_is_told(door: int) -> None:
    with pytest.raises(ContractError, match="the reward is nan, not a finite number"):
        check_environment(UndefinedReward(door))


class NumberedFlags(Drift):
    """Says 0 and 1 where it should say false and true."""

    def step(self, world: Any, state: Any, action: Any, *, key: PRNGKeyArray) -> TimeStep:
        after = super().step(world, state, action, key=key)
        return TimeStep(
            after.state, after.observation, after.reward, after.terminated, after.truncated.astype(jnp.int32)
        )


def test_a_flag_that_is_no_truth_value_is_told() -> None:
    with pytest.raises(ContractError, match="truncated is not a single truth value"):
        check_environment(NumberedFlags())


class Undeclared(Drift):
    """Shows more than it declares."""

    @property
    def observation_space(self) -> Box:
        return Box((1,))


def test_an_observation_of_another_shape_than_declared_is_told() -> None:
    with pytest.raises(ContractError, match=r"an observation has shape \(2,\), and observation_space says \(1,\)"):
        check_environment(Undeclared())


class RoundedLevels(Drift):
    """Writes levels with two digits only."""

    def level_to_json(self, level: Level) -> dict[str, Any]:
        return {name: round(value, 2) for name, value in super().level_to_json(level).items()}


class NakedLevels(Drift):
    """Reads a level as something else than a level."""

    def level_from_json(self, data: Mapping[str, Any]) -> Any:
        return super().level_from_json(data).layout


@pytest.mark.parametrize("env", [RoundedLevels(), NakedLevels()], ids=["values", "structure"])
def test_levels_that_do_not_survive_json_are_told(env: Environment) -> None:
    with pytest.raises(ContractError, match="a level does not survive level_to_json and level_from_json"):
        check_environment(env)


class Picky(Drift):
    """Refuses half of the levels that it draws itself."""

    def validate(self, level: Level) -> None:
        if float(level.aleatoric) < 0:
            raise LevelError("the wind blows the wrong way")


def test_an_environment_that_refuses_its_own_levels_is_told() -> None:
    with pytest.raises(LevelError, match="the wind blows the wrong way"):
        check_environment(Picky())


class HiddenDice(Drift):
    """Throws NumPy's dice instead of those that come with the key."""

    def step(self, world: Any, state: Any, action: Any, *, key: PRNGKeyArray) -> TimeStep:
        after = super().step(world, state, action, key=key)
        reward = after.reward + np.random.default_rng().normal()
        return TimeStep(after.state, after.observation, reward, after.terminated, after.truncated)


class HiddenCounter(Drift):
    """Rewards by how often it was called, which it counts outside of JAX."""

    counter: Any = eqx.field(static=True, default_factory=itertools.count)

    def step(self, world: Any, state: Any, action: Any, *, key: PRNGKeyArray) -> TimeStep:
        after = super().step(world, state, action, key=key)
        calls = jax.pure_callback(
            lambda _: np.float32(next(self.counter)), jax.ShapeDtypeStruct((), jnp.float32), after.reward
        )
        return TimeStep(after.state, after.observation, after.reward + calls, after.terminated, after.truncated)


@pytest.mark.parametrize("env", [HiddenDice(), HiddenCounter()], ids=["when_traced", "when_run"])
def test_randomness_that_does_not_come_from_the_key_is_told(env: Environment) -> None:
    with pytest.raises(ContractError, match="the same keys give another episode"):
        check_environment(env)


def test_what_is_swapped_in_is_none_of_an_episodes_own_draws() -> None:
    """Swapped for itself, θ′ could not leak."""
    key = jax.random.key(3)
    own = jax.random.key_data(jax.random.split(key, 256))
    assert (own[1] == jax.random.key_data(jax.random.fold_in(key, 1))).all()
    assert not (own == jax.random.key_data(jax.random.fold_in(key, _FAR))).all(axis=1).any()
