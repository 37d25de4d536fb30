"""Worlds so small that what a student should learn in them is plain."""

import abc
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, UInt8

from samplr.envs.api import Encoder, Environment, TimeStep
from samplr.envs.spaces import ActionSpace, Box, Discrete, MultiDiscrete


class CueState(eqx.Module):
    cue: Int[Array, ""]
    step: Int[Array, ""]


class CueWorld(Environment):
    """θ′ is a cue, one of two, equally likely; what it is good for is up to the subclass."""

    @property
    def observation_space(self) -> Box:
        return Box((2,), 0.0, 1.0)

    def sample_layout(self, *, key: PRNGKeyArray) -> None:
        return None

    def sample_aleatoric(self, layout: None, *, key: PRNGKeyArray) -> Int[Array, ""]:
        return jax.random.randint(key, (), 0, 2)

    def reset(self, world: None, aleatoric: Array, *, key: PRNGKeyArray) -> tuple[CueState, Array]:
        return CueState(aleatoric, jnp.int32(0)), jax.nn.one_hot(aleatoric, 2)

    @abc.abstractmethod
    def reward(self, state: CueState, action: Array) -> Array:
        """What an action brings."""

    @property
    def length(self) -> int:
        """Steps of an episode."""
        return 1

    def step(self, world: None, state: CueState, action: Array, *, key: PRNGKeyArray) -> TimeStep:
        after = CueState(state.cue, state.step + 1)
        return TimeStep(
            state=after,
            observation=jnp.zeros(2),  # the cue is seen at the start and never again
            reward=self.reward(state, action),
            terminated=after.step >= self.length,
            truncated=jnp.array(False),
        )

    def render(self, world: None, state: CueState) -> UInt8[np.ndarray, "height width 3"]:
        raise NotImplementedError


class ChoiceBandit(CueWorld):
    """Of three arms the one with the number of the cue pays 1."""

    @property
    def action_space(self) -> ActionSpace:
        return Discrete(3)

    def reward(self, state: CueState, action: Array) -> Array:
        return (action == state.cue).astype(jnp.float32)


class LockBandit(CueWorld):
    """Two dials, of two and of four digits: the lock opens at (cue, 3 − cue), and each right digit pays 1/2."""

    @property
    def action_space(self) -> ActionSpace:
        return MultiDiscrete((2, 4))

    def reward(self, state: CueState, action: Array) -> Array:
        return jnp.mean(action == jnp.stack([state.cue, 3 - state.cue]), dtype=jnp.float32)


class AimBandit(CueWorld):
    """Hit a point that depends on the cue, in a box with bounds of its own for each dimension.

    A hit pays 1; what is lost is the squared distance, each dimension measured in widths of the box.
    """

    @property
    def action_space(self) -> ActionSpace:
        return Box((2,), (-1.0, 0.0), (1.0, 4.0))

    def target(self, cue: Array) -> Array:
        return jnp.where(cue == 0, jnp.array([-0.5, 3.0]), jnp.array([0.5, 1.0]))

    def reward(self, state: CueState, action: Array) -> Array:
        return 1 - jnp.sum(((action - self.target(state.cue)) / jnp.array([2.0, 4.0])) ** 2)


class Recall(CueWorld):
    """Two steps: the cue is shown at the first, and asked for at the second, when there is nothing to be seen."""

    @property
    def action_space(self) -> ActionSpace:
        return Discrete(2)

    @property
    def length(self) -> int:
        return 2

    def reward(self, state: CueState, action: Array) -> Array:
        return jnp.where(state.step == 1, (action == state.cue).astype(jnp.float32), 0.0)

    def encoders(self) -> Mapping[str, Callable[..., Encoder]]:
        """An encoder of its own, for the tests of networks."""
        return {"twice": lambda hidden, key: lambda observation: 2 * observation}
