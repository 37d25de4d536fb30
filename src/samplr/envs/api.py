"""The environment contract: the few pure, unbatched methods a world must have, and the words they use.

An environment is a frozen `eqx.Module`. Its fields are its settings; a level, a world, a state are pytrees of its
own choosing. Resets are the loop's business: `step` never resets. Three laws are checked by
`samplr.testing.check_environment`:

1. substituting a posterior draw leaves the current observation unchanged;
2. changing the real, unrevealed θ′ leaves the fictitious transition bit for bit the same;
3. terminated and truncated are different things.
"""

import abc
import enum
import reprlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, UInt8

from samplr.envs.spaces import ActionSpace, Box
from samplr.errors import LevelError, SamplrError
from samplr.posteriors import Posterior

# An environment's own pytrees; the names say which of them is meant.
Layout: TypeAlias = Any
Aleatoric: TypeAlias = Any
World: TypeAlias = Any
State: TypeAlias = Any
Observation: TypeAlias = Any
Evidence: TypeAlias = Any


class Origin(enum.IntEnum):
    """Where a level came from."""

    PRIOR = 0
    REPLAY = 1
    EDIT = 2
    ADVERSARY = 3


class Level(eqx.Module):
    """One setting θ of the free parameters."""

    layout: Layout
    aleatoric: Aleatoric
    origin: Int[Array, ""] = eqx.field(default_factory=lambda: jnp.int32(Origin.PRIOR))


class TimeStep(eqx.Module):
    """What one step gives: the observation is the true next one, also at the end of an episode."""

    state: State
    observation: Observation
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]
    metrics: dict[str, Float[Array, ""]] = eqx.field(default_factory=dict)
    """Named figures of the episode so far; the loop reads them where an episode ends."""

    @property
    def done(self) -> Bool[Array, ""]:
        """Whether the episode ended, for either reason."""
        return self.terminated | self.truncated


LevelSampler = Callable[[PRNGKeyArray], Level]
Suite = Mapping[str, LevelSampler]
"""An evaluation suite: for each named condition, how its levels are drawn."""

Encoder = Callable[[Any], Float[Array, " features"]]
"""The part of a network that maps an observation to features."""

LevelScore = Callable[[Any, Level], Float[Array, ""]]
"""An oracle's score of one level under a network (see `Environment.oracle_scores`)."""


class Environment(eqx.Module):
    """A world in which students can be trained. Subclass it, or `GroundedEnvironment` for the full benefit."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Training defaults of this world: dotted names of configuration fields and their values."""

    backends: ClassVar[Mapping[str, str]] = {}
    """The real simulators that this world imitates: name, and import path of the same world simulated there."""

    pictures_per_second: ClassVar[float] = 4.0
    """How fast a film of this world is shown."""

    @property
    @abc.abstractmethod
    def observation_space(self) -> Box | Mapping[str, Box]:
        """The shape of an observation, or of each of its named parts."""

    @property
    @abc.abstractmethod
    def action_space(self) -> ActionSpace:
        """What the agent can do."""

    @abc.abstractmethod
    def sample_layout(self, *, key: PRNGKeyArray) -> Layout:
        """Draw a layout from the ground truth P̄."""

    @abc.abstractmethod
    def sample_aleatoric(self, layout: Layout, *, key: PRNGKeyArray) -> Aleatoric:
        """Draw θ′ ~ P̄(Θ′|layout)."""

    def build(self, layout: Layout) -> World:
        """Expand a layout to what simulation needs; called once per rollout, outside the loop over steps."""
        return layout

    @abc.abstractmethod
    def reset(self, world: World, aleatoric: Aleatoric, *, key: PRNGKeyArray) -> tuple[State, Observation]:
        """Begin an episode."""

    @abc.abstractmethod
    def step(self, world: World, state: State, action: Array, *, key: PRNGKeyArray) -> TimeStep:
        """Take one step; never resets."""

    def for_evaluation(self) -> "Environment":
        """This world under the rules that students are evaluated by, where those differ from training."""
        return self

    def sample_level(self, *, key: PRNGKeyArray) -> Level:
        """Draw a whole level from the ground truth."""
        layout_key, aleatoric_key = jax.random.split(key)
        layout = self.sample_layout(key=layout_key)
        return Level(layout, self.sample_aleatoric(layout, key=aleatoric_key))

    def observation_shapes(self) -> PyTree:
        """The shapes and types of an observation."""

        def first_observation(key: PRNGKeyArray) -> Observation:
            level = self.sample_level(key=key)
            return self.reset(self.build(level.layout), level.aleatoric, key=key)[1]

        return jax.eval_shape(first_observation, jax.random.key(0))

    @property
    def shows_pictures(self) -> bool:
        """Whether an observation has a part of height, width and channels."""
        return any(leaf.ndim >= 3 for leaf in jax.tree.leaves(self.observation_shapes()))

    def identity(self, level: Level) -> PyTree:
        """The part of θ that simulation depends on: two levels that agree in it are the same level."""
        return (level.layout, level.aleatoric)

    def summaries(self, aleatoric: Aleatoric) -> dict[str, Float[Array, ""]]:
        """Named scalars of θ′ which the shift monitor compares with the ground truth."""
        return {}

    def hidden(self, aleatoric: Aleatoric) -> Float[Array, " k"]:
        """The few numbers of θ′ that a learned belief is about or a critic is told, such as the rate of ice."""
        raise SamplrError(f"{type(self).__name__} does not name the numbers of θ′ that are hidden: give it `hidden`")

    def suites(self) -> Mapping[str, Suite]:
        """The evaluation suites of this world by name."""
        return {"ground_truth": {"ground_truth": lambda key: self.sample_level(key=key)}}

    def oracle_scores(self) -> Mapping[str, LevelScore]:
        """Scores only this world can give, because it knows its own solution."""
        return {}

    def encoders(self) -> Mapping[str, Callable[..., Encoder]]:
        """Networks made for this world: called with `hidden` and `key`, they map an observation to features."""
        return {}

    def render(self, world: World, state: State) -> UInt8[np.ndarray, "height width 3"]:
        """A picture for people; what the agent cannot see may be shown."""
        raise SamplrError(f"{type(self).__name__} draws no pictures: give it `render`")

    def render_level(self, world: World, state: State) -> UInt8[np.ndarray, "height width 3"]:
        """A picture of a whole level at its start, for worlds whose `render` shows only what is near the agent."""
        return self.render(world, state)

    def states_between(self, world: World, state: State, action: Array, *, key: PRNGKeyArray) -> State:
        """What a film shows of a step: states along a leading axis; here only the one it leads to."""
        return jax.tree.map(lambda leaf: leaf[None], self.step(world, state, action, key=key).state)

    def level_shapes(self) -> tuple[Level, ...]:
        """The shapes of every kind of level; most worlds have one kind."""
        return (jax.eval_shape(lambda key: self.sample_level(key=key), jax.random.key(0)),)

    def _shapes_with(self, names: Collection[str]) -> Level:
        """The shapes of the kind of level that has these parts."""
        kinds = self.level_shapes()
        for shapes in kinds:
            if _leaves_by_name(shapes).keys() == set(names):
                return shapes
        known = " or ".join(str(list(_leaves_by_name(shapes))) for shapes in kinds)
        raise LevelError(f"a level of {type(self).__name__} has the parts {known}, not {list(names)}")

    def validate(self, level: Level) -> None:
        """Raise `LevelError` where a level does not fit; this checks shapes, a world may check more."""
        got = _leaves_by_name(level)
        for name, leaf in _leaves_by_name(self._shapes_with(got)).items():
            if np.shape(got[name]) != leaf.shape:
                raise LevelError(f"the level's {name} has shape {np.shape(got[name])}, expected {leaf.shape}")

    def level_to_json(self, level: Level) -> dict[str, Any]:
        """A level as JSON: its leaves by dotted name."""
        return {name: np.asarray(leaf).tolist() for name, leaf in _leaves_by_name(level).items()}

    def level_from_json(self, data: Mapping[str, Any]) -> Level:
        """Read what `level_to_json` wrote, by hand or by program; raises `LevelError` where it does not fit."""
        values = {"origin": int(Origin.PRIOR), **data}
        template = self._shapes_with(values)
        want = _leaves_by_name(template)
        try:
            arrays = [_as_numbers(values[name], leaf.dtype) for name, leaf in want.items()]
        except (TypeError, ValueError, OverflowError) as error:
            raise LevelError(f"a level of {type(self).__name__} holds numbers only: {error}") from error
        level: Level = jax.tree.unflatten(jax.tree.structure(template), arrays)
        self.validate(level)
        return level


class GroundedEnvironment(Environment):
    """A world that knows what a history reveals of θ′, and can swap the rest: what `fictitious` needs."""

    @property
    def posterior(self) -> Posterior:
        """P̄(θ′|τ) as this world implies it; a world that leaves it out needs a learned one."""
        raise SamplrError(
            f"{type(self).__name__} has no exact posterior: choose --fictitious.posterior learned, or grounding 'naive'"
        )

    @property
    @abc.abstractmethod
    def observation_is_sufficient(self) -> bool:
        """Whether one observation holds all that the history tells about θ′, so that memory is not needed."""

    @abc.abstractmethod
    def observe(self, world: World, state: State) -> Observation:
        """What the agent sees in a state."""

    @abc.abstractmethod
    def evidence(self, state: State) -> Evidence:
        """What the history has revealed of θ′ (not merely what was touched)."""

    @abc.abstractmethod
    def substitute(self, state: State, aleatoric: Aleatoric) -> State:
        """Swap in θ′, keeping everything that was revealed.

        Parts of the state that are handed on as they are, and what a step computes of them alone, are computed once
        for the real step and all fictitious ones.
        """

    def complete(self, hidden: Float[Array, " k"], evidence: Evidence, *, key: PRNGKeyArray) -> Aleatoric:
        """A θ′ with these hidden numbers that agrees with what was revealed: the rest is drawn from P̄ given both."""
        raise SamplrError(f"{type(self).__name__} cannot fill in what a belief leaves open: give it `complete`")


def _leaves_by_name(tree: PyTree) -> dict[str, Any]:
    """The leaves of a pytree under dotted names, as `aleatoric.rate`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _as_numbers(value: Any, dtype: Any) -> Array:
    """An array of what JSON gave; text is not taken for numbers or truth values."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{value!r} is none")
    converted = array.astype(dtype)
    if not np.issubdtype(converted.dtype, np.floating) and not np.array_equal(converted, array):
        raise TypeError(f"{reprlib.repr(value)} cannot be taken for {converted.dtype}")
    return jnp.asarray(converted)
