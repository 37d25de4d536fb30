"""Simulators on the host: the environment contract for worlds that are not written in JAX.

Such a world has two parts.

1. The **simulator**, a `gymnasium.Env`. Its `reset(seed=..., options={"level": level})` begins an episode on a given
   `Level`, whose `layout` and `aleatoric` are pytrees of NumPy arrays. Named figures of the episode so far may be in
   `info["metrics"]`, the same names after every step. To be grounded it also has the verbs of `GroundedSimulator`.
2. The **environment**, a `GymnasiumEnvironment`, in JAX: what teachers, buffers and posteriors need. It draws levels,
   summarises θ′, and makes simulators.

Levels, scores, posteriors and PPO are the same compiled programs as for a world in JAX. Only the steps are taken on the
host, in worker processes: see `samplr.host`. `samplr.host.testing.check_simulator` checks the laws.
"""

import abc
import functools
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from samplr.envs.api import (
    Aleatoric,
    Environment,
    Evidence,
    GroundedEnvironment,
    Layout,
    Observation,
    State,
    TimeStep,
    World,
)
from samplr.envs.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from samplr.errors import SamplrError


class GroundedSimulator(Protocol):
    """The verbs of a simulator that can be grounded; it is a `gymnasium.Env` besides.

    Fictitious steps are taken in a twin: a second simulator, reset to the same level with the same seed. Before every
    step the twin is given the real simulator's state and the luck of its `np_random`, and then another θ′.
    """

    def evidence(self) -> Evidence:
        """What the history has revealed of θ′: a pytree of NumPy arrays, as the posterior takes it."""

    def substitute(self, aleatoric: Aleatoric) -> None:
        """Swap in θ′, keeping everything that was revealed."""

    def get_state(self) -> Any:
        """A copy of θ′ and of all that changes in an episode; what else the reset fixes need not be in it."""

    def set_state(self, state: Any) -> None:
        """Go on from such a state, and leave the state itself as it is."""


GROUNDED_VERBS = ("evidence", "substitute", "get_state", "set_state")


class GymnasiumEnvironment(Environment):
    """A world whose steps are taken by a simulator on the host. It can be trained with `none` and `naive`.

    Besides `simulator`, a subclass has `sample_layout` and `sample_aleatoric`, and may have `summaries`, `suites` and
    whatever else an `Environment` may have. Spaces are the simulator's own.
    """

    @abc.abstractmethod
    def simulator(self) -> Any:
        """Make a simulator, a `gymnasium.Env`. This is called in the worker processes."""

    @property
    def observation_space(self) -> Box | dict[str, Box]:
        """The simulator's, in our terms."""
        return facts_of(self).observation_space

    @property
    def action_space(self) -> ActionSpace:
        """The simulator's, in our terms."""
        return facts_of(self).action_space

    def observation_shapes(self) -> PyTree:
        """The shapes and types of an observation, as the simulator's space has them."""
        return facts_of(self).observation_shapes

    def build(self, layout: Layout) -> World:
        """Nothing is expanded in JAX."""
        return layout

    def reset(self, world: World, aleatoric: Aleatoric, *, key: PRNGKeyArray) -> tuple[State, Observation]:
        """Not in JAX."""
        raise self._not_in_jax()

    def step(self, world: World, state: State, action: Array, *, key: PRNGKeyArray) -> TimeStep:
        """Not in JAX."""
        raise self._not_in_jax()

    def _not_in_jax(self) -> SamplrError:
        return SamplrError(
            f"{type(self).__name__} is simulated on the host: it can be trained, evaluated and put through "
            "samplr.host.testing.check_simulator, but not filmed"
        )


class GroundedGymnasiumEnvironment(GymnasiumEnvironment, GroundedEnvironment):
    """A world on the host that can be grounded: its simulator has the verbs of `GroundedSimulator`.

    Besides what a `GymnasiumEnvironment` needs, a subclass has `posterior` and `observation_is_sufficient`.
    """

    def evidence(self, state: State) -> Evidence:
        """All that JAX knows of the simulator's state is the evidence."""
        return state

    def observe(self, world: World, state: State) -> Observation:
        """Not in JAX."""
        raise self._not_in_jax()

    def substitute(self, state: State, aleatoric: Aleatoric) -> State:
        """Not in JAX."""
        raise self._not_in_jax()


@dataclass(frozen=True)
class Facts:
    """What has to be known of a simulator before it is used."""

    name: str
    observation_space: Box | dict[str, Box]
    observation_shapes: PyTree
    action_space: ActionSpace
    missing: tuple[str, ...]
    """The verbs of `GroundedSimulator` that it does not have."""


@functools.lru_cache(maxsize=16)
def facts_of(env: GymnasiumEnvironment) -> Facts:
    """Make a simulator to learn its facts."""
    simulator = env.simulator()
    try:
        seen, done = simulator.observation_space, simulator.action_space
        parts = {name: _part(space) for name, space in seen.items()} if hasattr(seen, "items") else _part(seen)
        return Facts(
            name=type(simulator.unwrapped).__name__,
            observation_space=jax.tree.map(lambda part: part[0], parts, is_leaf=_is_part),
            observation_shapes=jax.tree.map(lambda part: part[1], parts, is_leaf=_is_part),
            action_space=_action_space(done),
            missing=tuple(verb for verb in GROUNDED_VERBS if not simulator.has_wrapper_attr(verb)),
        )
    finally:
        simulator.close()


def require_grounded_verbs(env: GymnasiumEnvironment) -> None:
    """Refuse a simulator that cannot take fictitious steps."""
    facts = facts_of(env)
    if facts.missing:
        raise SamplrError(
            f"{facts.name} has no {', '.join(facts.missing)}, so it cannot be trained with grounding 'fictitious': "
            "choose 'none' or 'naive', or give it what samplr.envs.gymnasium.GroundedSimulator asks for"
        )


def _is_part(value: Any) -> bool:
    return isinstance(value, tuple)


def _part(space: Any) -> tuple[Box, jax.ShapeDtypeStruct]:
    """A part of an observation: the space in our terms, and its shape and type in JAX."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Box):
        raise SamplrError(f"an observation space must be a Box or a Dict of Boxes, and this has {space}")
    box = Box(space.shape, float(np.min(space.low)), float(np.max(space.high)))
    return box, jax.ShapeDtypeStruct(space.shape, jax.dtypes.canonicalize_dtype(space.dtype))


def _action_space(space: Any) -> ActionSpace:
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete) and space.start == 0:
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not space.start.any():
        return MultiDiscrete(tuple(space.nvec.tolist()))
    if isinstance(space, spaces.Box) and space.is_bounded():
        if len(space.shape) == 1:
            return Box(space.shape, tuple(space.low.tolist()), tuple(space.high.tolist()))
        if np.ptp(space.low) == np.ptp(space.high) == 0:
            return Box(space.shape, float(space.low.flat[0]), float(space.high.flat[0]))
    raise SamplrError(
        f"an action space must be Discrete or MultiDiscrete counting from 0, or a bounded Box, and this is {space}"
    )
