"""What runs in a worker process: some simulators, each with its twin, and the steps they take."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
from jaxtyping import PyTree, UInt32

from samplr.envs.api import Aleatoric, Evidence, Level, Observation, TimeStep
from samplr.envs.gymnasium import GymnasiumEnvironment, facts_of
from samplr.errors import LevelError, SamplrError, in_one_line


class Start(NamedTuple):
    """Episodes to begin; leaves lead with the simulator."""

    level: Level
    seed: UInt32[np.ndarray, " n"]


class Order(NamedTuple):
    """A step to take; leaves lead with the simulator."""

    action: PyTree
    versions: Aleatoric | None
    """The θ′ of the fictitious steps, stacked along a second axis."""
    restart: Start | None
    """What follows an episode that ends; without it, its simulator rests."""


class Begun(NamedTuple):
    """The beginning of an episode."""

    evidence: Evidence
    observation: Observation


class Outcome(NamedTuple):
    """What a step gave."""

    real: TimeStep
    """Its `state` is the evidence, which is all that JAX needs to know."""
    redrawn: TimeStep | None
    """The fictitious steps, along a leading axis."""
    begun: Begun
    """The next episode where this one ended; elsewhere it means nothing."""


class Crew(gymnasium.Env):
    """The simulators of one process, for a Gymnasium vector environment to call.

    Nothing goes through `reset` and `step`. What a simulator raises is given back as a value: an error that is raised
    in a worker process of Gymnasium's ends it, and one that cannot be sent never arrives.

    **Arguments:**

    - `share`: which of all simulators these are.
    - `twins`: whether fictitious steps will be asked for.
    """

    observation_space = action_space = gymnasium.spaces.Discrete(1)

    def __init__(self, env: GymnasiumEnvironment, share: slice, *, twins: bool) -> None:
        self._env, self._share, self._twins = env, share, twins

    @functools.cached_property
    def _pairs(self) -> list["Pair"]:
        # Made when first needed: Gymnasium makes a crew in the parent process too, only to look at it.
        return [Pair(self._env, twin=self._twins) for _ in range(self._share.start, self._share.stop)]

    def begin(self, start: Start) -> Begun | SamplrError:
        """Begin an episode in every simulator."""
        return self._each(Pair.begin, start)

    def turn(self, order: Order) -> Outcome | SamplrError:
        """Take a step in every simulator."""
        return self._each(Pair.turn, order)

    def close(self) -> None:
        """Close the simulators, if there are any."""
        for pair in vars(self).get("_pairs", ()):
            pair.close()

    def _each(self, method: Callable[..., Any], batch: Any) -> Any:
        """Call a method of every pair with its part of a batch, and stack what it gives."""
        mine = jax.tree.map(lambda leaf: leaf[self._share], batch)
        try:
            parts = [
                method(pair, jax.tree.map(lambda leaf, i=index: leaf[i], mine))
                for index, pair in enumerate(self._pairs)
            ]
            return _stacked(parts)
        except SamplrError as error:
            return error
        except Exception as error:
            return SamplrError(f"a simulator of {type(self._env).__name__} failed: {in_one_line(error)}")


class Pair:
    """A simulator and its twin, in which fictitious steps are taken."""

    def __init__(self, env: GymnasiumEnvironment, *, twin: bool) -> None:
        self._facts = facts_of(env)
        try:
            self._real = env.simulator()
            self._twin = env.simulator() if twin else None
        except SamplrError:
            raise
        except Exception as error:
            raise SamplrError(f"{self._facts.name} cannot make a simulator: {in_one_line(error)}") from error
        self._last: TimeStep | None = None

    def begin(self, start: Start) -> Begun:
        """Reset both to a level."""
        options, seed = {"level": start.level}, int(start.seed)
        try:
            observation, _ = self._real.reset(seed=seed, options=options)
            if self._twin is not None:
                self._twin.reset(seed=seed, options=options)
        except Exception as error:
            raise LevelError(f"{self._facts.name} refuses a level: {in_one_line(error)}") from error
        self._last = None
        return Begun(self._evidence(), self._checked(observation))

    def turn(self, order: Order) -> Outcome:
        """Take one step: the fictitious ones first, from the state that the real one starts from."""
        if self._last is not None and self._last.done:
            return Outcome(self._last, None, Begun(self._last.state, self._last.observation))
        action = order.action if np.ndim(order.action) else order.action.item()
        redrawn = None if self._twin is None else self._redrawn(action, order.versions)
        real = self._last = self._stepped(self._real, action)
        begun = Begun(real.state, real.observation)
        if order.restart is not None and real.done:
            begun = self.begin(order.restart)
        return Outcome(real, redrawn, begun)

    def close(self) -> None:
        """Close both."""
        for simulator in (self._real, self._twin):
            if simulator is not None:
                simulator.close()

    def _redrawn(self, action: Any, versions: Aleatoric) -> TimeStep:
        """The same action with the same luck, under each of some θ′."""
        assert self._twin is not None
        luck = self._real.unwrapped.np_random.bit_generator.state
        evidence, steps = self._evidence(), []
        for index in range(jax.tree.leaves(versions)[0].shape[0]):
            self._copy_to_twin()
            _ask(self._twin, "substitute", jax.tree.map(lambda leaf, i=index: leaf[i], versions))
            if not _same(evidence, _ask(self._twin, "evidence")):
                raise SamplrError(
                    f"{self._facts.name} does not keep what was revealed: after get_state, set_state and substitute "
                    "the evidence is another"
                )
            self._twin.unwrapped.np_random.bit_generator.state = luck
            steps.append(self._stepped(self._twin, action))
        return _stacked(steps)

    def _copy_to_twin(self) -> None:
        try:
            _ask(self._twin, "set_state", _ask(self._real, "get_state"))
        except Exception as error:
            raise SamplrError(
                f"the state of {self._facts.name} cannot be copied: {in_one_line(error)}; mend get_state or "
                "set_state, or choose grounding 'none' or 'naive'"
            ) from error

    def _stepped(self, simulator: Any, action: Any) -> TimeStep:
        observation, reward, terminated, truncated, info = simulator.step(action)
        if not np.isfinite(reward):
            raise SamplrError(f"{self._facts.name} gave the reward {reward}, which is not a finite number")
        return TimeStep(
            state=self._evidence(),
            observation=self._checked(observation),
            reward=np.float32(reward),  # type: ignore[arg-type]
            terminated=np.bool_(terminated),  # type: ignore[arg-type]
            truncated=np.bool_(truncated and not terminated),  # type: ignore[arg-type]
            metrics={name: np.float32(value) for name, value in info.get("metrics", {}).items()},  # type: ignore[misc]
        )

    def _evidence(self) -> Evidence:
        """The real simulator's; the twin's is never used."""
        return None if self._twin is None else _ask(self._real, "evidence")

    def _checked(self, observation: Any) -> Observation:
        """An observation of our own, of the declared shape and type."""
        want = self._facts.observation_shapes
        mine = dict(observation) if isinstance(want, dict) else np.asarray(observation)
        got, wanted = (jax.tree.map(np.shape, seen) for seen in (mine, want))
        if got != wanted:
            raise SamplrError(
                f"{self._facts.name} gave an observation of shape {got}, and its observation_space says {wanted}"
            )
        return jax.tree.map(lambda seen, like: np.array(seen, like.dtype), mine, want)


def _ask(simulator: Any, verb: str, *arguments: Any) -> Any:
    """Call a method of a simulator, which may be wrapped."""
    return simulator.get_wrapper_attr(verb)(*arguments)


def _stacked(parts: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *parts)


def _same(a: PyTree, b: PyTree) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))
