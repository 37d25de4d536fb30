"""What actions and observations look like: the few kinds of space the students understand."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


@dataclass(frozen=True)
class Discrete:
    """One choice among `n`, numbered from 0; an action is an integer scalar."""

    n: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of choices of each component: here there is one component."""
        return (self.n,)

    def decode(self, raw: Int[Array, "1"]) -> Int[Array, ""]:
        """Turn what the policy samples into what the environment takes."""
        return raw[0]


@dataclass(frozen=True)
class MultiDiscrete:
    """Several independent choices; an action is an integer vector."""

    sizes: tuple[int, ...]

    def decode(self, raw: Int[Array, " d"]) -> Int[Array, " d"]:
        """Turn what the policy samples into what the environment takes."""
        return raw


@dataclass(frozen=True)
class Box:
    """Real numbers between `low` and `high`, one pair of bounds for each dimension or one for all."""

    shape: tuple[int, ...]
    low: float | tuple[float, ...] = -math.inf
    high: float | tuple[float, ...] = math.inf

    @property
    def bounded(self) -> bool:
        """Whether every bound is finite, as actions need."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    def decode(self, raw: Float[Array, " d"]) -> Float[Array, "..."]:
        """Turn what the policy samples, in the unit cube, into what the environment takes."""
        low, high = jnp.asarray(self.low, jnp.float32), jnp.asarray(self.high, jnp.float32)
        return low + (high - low) * raw.reshape(self.shape)


ActionSpace = Discrete | MultiDiscrete | Box


def encoded_size(space: ActionSpace) -> int:
    """How many numbers `encoded` gives."""
    return math.prod(space.shape) if isinstance(space, Box) else sum(space.sizes)


def encoded(action: Array, space: ActionSpace) -> Float[Array, " size"]:
    """An action, as the environment takes it, as numbers for a network: choices as one-hot vectors."""
    if isinstance(space, Box):
        return jnp.ravel(action).astype(jnp.float32)
    choices = zip(jnp.atleast_1d(action), space.sizes, strict=True)
    return jnp.concatenate([jax.nn.one_hot(choice, size) for choice, size in choices])
