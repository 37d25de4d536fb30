"""A module of a user's own worlds, as a text and as something that can be imported."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

WORLDS = '''
"""A user's own worlds."""

import equinox as eqx
import jax
import jax.numpy as jnp

from samplr import Environment, GroundedEnvironment, TimeStep
from samplr.envs.spaces import Box, Discrete
from samplr.posteriors import Posterior


class Coin(Posterior):
    """Tosses the coin again unless it was seen."""

    def sample(self, belief, evidence, *, key):
        seen, heads = evidence
        return jnp.where(seen, heads, jax.random.bernoulli(key))


class Guess(GroundedEnvironment):
    """Guess on which side a hidden coin lies, several times in a row."""

    rounds: int = 3
    """How often to guess."""

    observation_space = Box((2,))
    action_space = Discrete(2)
    posterior = Coin()
    observation_is_sufficient = True

    def sample_layout(self, *, key):
        return None

    def sample_aleatoric(self, layout, *, key):
        return jax.random.bernoulli(key)

    def reset(self, world, aleatoric, *, key):
        state = (jnp.int32(0), aleatoric)
        return state, self.observe(world, state)

    def step(self, world, state, action, *, key):
        time, heads = state
        after = (time + 1, heads)
        reward = jnp.where((action == 1) == heads, 1.0, 0.0)
        return TimeStep(after, self.observe(world, after), reward, time + 1 >= self.rounds, jnp.array(False))

    def observe(self, world, state):
        return jnp.stack(self.evidence(state)).astype(float)

    def evidence(self, state):
        time, heads = state
        return time > 0, heads & (time > 0)

    def substitute(self, state, aleatoric):
        time, heads = state
        return time, jnp.where(time > 0, heads, aleatoric)

    def summaries(self, aleatoric):
        return {"heads": aleatoric.astype(float)}


class Ungrounded(Environment):
    """The same game without a posterior."""

    observation_space = Box((2,))
    action_space = Discrete(2)
    sample_layout, sample_aleatoric = Guess.sample_layout, Guess.sample_aleatoric
    reset, step = Guess.reset, Guess.step


class Unfinished(Environment):
    """Lacks nearly everything."""


class Demanding(Guess):
    """Has a setting without a default."""

    stake: float = eqx.field(kw_only=True)
'''


@contextlib.contextmanager
def importable_worlds(folder: Path) -> Iterator[str]:
    """The name of a module with the user's own worlds, which can be imported in here."""
    (folder / "my_worlds.py").write_text(WORLDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield "my_worlds"
    sys.modules.pop("my_worlds", None)
