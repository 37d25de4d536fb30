"""Icy road as a simulator on the host, in NumPy: the same world as the one in JAX, step for step."""

import os
import signal
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np

from samplr.envs.gymnasium import GroundedGymnasiumEnvironment
from samplr.envs.icy_road.world import FAST, IcyRoad
from samplr.posteriors import BernoulliEvidence, BernoulliField


class IcyRoadSimulator(gymnasium.Env):
    """What `IcyRoad` computes, for one car. The state is the position; the ice is swapped in the twin."""

    def __init__(self, segments: int, show_counts: bool) -> None:
        self.segments, self.show_counts = segments, show_counts
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (segments + 4 + 2 * show_counts,))
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        assert options is not None
        self.position, self.ice = 0, options["level"].aleatoric.bits.copy()
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        icy = self.ice[self.position]
        reward = (-8.0 if icy else 2.0) if action == FAST else 1.0
        self.position += 1
        metrics = {"icy_share": self.ice[: self.position].sum() / self.position}
        return self._observe(), reward, self.position >= self.segments, False, {"metrics": metrics}

    def evidence(self) -> BernoulliEvidence:
        revealed = np.arange(self.segments) < self.position
        return BernoulliEvidence(revealed, self.ice & revealed)

    def substitute(self, aleatoric: BernoulliField) -> None:
        self.ice[self.position :] = aleatoric.bits[self.position :]

    def get_state(self) -> tuple[int, np.ndarray]:
        return self.position, self.ice.copy()

    def set_state(self, state: tuple[int, np.ndarray]) -> None:
        self.position, self.ice = state[0], state[1].copy()

    def _observe(self) -> np.ndarray:
        observation = np.zeros(self.observation_space.shape, np.float32)
        observation[self.position] = 1
        last = 0 if self.position == 0 else 1 + int(self.ice[self.position - 1])
        observation[self.segments + 1 + last] = 1
        if self.show_counts:
            icy = self.ice[: self.position].sum()
            observation[-2:] = np.array([self.position - icy, icy]) / self.segments
        return observation


class HostIcyRoad(GroundedGymnasiumEnvironment, IcyRoad):
    """Icy road, driven on the host."""

    def simulator(self) -> IcyRoadSimulator:
        return IcyRoadSimulator(self.segments, self.show_counts)


class FaultySimulator(IcyRoadSimulator):
    """An icy road on which something goes wrong, as `fault` says."""

    def __init__(self, segments: int, show_counts: bool, fault: str, flag: str) -> None:
        super().__init__(segments, show_counts)
        self.fault, self.flag = fault, flag

    def reset(self, **keywords: Any) -> tuple[np.ndarray, dict]:
        if self.fault == "level":
            raise ValueError("the road is\ntoo short")
        return super().reset(**keywords)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, reward, *rest = super().step(action)
        if self.fault == "observation":
            observation = observation[1:]
        if self.fault == "reward":
            reward = float("nan")
        if self.fault == "random":
            reward += float(np.random.default_rng().random())
        if self.fault == "crash":
            raise RuntimeError("the engine broke")
        if self.fault in ("killed", "hung") and os.path.exists(self.flag):
            os.unlink(self.flag)
            if self.fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3600)
        return observation, reward, *rest

    def substitute(self, aleatoric: BernoulliField) -> None:
        if self.fault == "stubborn":
            return
        super().substitute(aleatoric)
        if self.fault == "overwrites":
            self.ice[:] = aleatoric.bits

    def get_state(self) -> tuple[int, np.ndarray]:
        if self.fault == "state":
            raise TypeError("cannot copy a handle")
        return (self.position, self.ice) if self.fault == "shares" else super().get_state()

    def set_state(self, state: tuple[int, np.ndarray]) -> None:
        if self.fault == "shares":
            self.position, self.ice = state
        elif self.fault != "forgets":
            super().set_state(state)


class FaultyIcyRoad(HostIcyRoad):
    """A host icy road with a fault; `killed` and `hung` strike once, when the file `flag` is there."""

    fault: str = ""
    flag: str = ""

    def simulator(self) -> FaultySimulator:
        return FaultySimulator(self.segments, self.show_counts, self.fault, self.flag)


class NoCopySimulator(gymnasium.Env):
    """An icy road whose state cannot be copied."""

    def __init__(self) -> None:
        self._road = IcyRoadSimulator(12, True)
        self.observation_space, self.action_space = self._road.observation_space, self._road.action_space

    def reset(self, **keywords: Any) -> tuple[np.ndarray, dict]:
        return self._road.reset(**keywords)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self._road.step(action)


class NoCopyIcyRoad(HostIcyRoad):
    """The world has a posterior, and its simulator no way to use it."""

    defaults: ClassVar = IcyRoad.defaults

    def simulator(self) -> NoCopySimulator:
        return NoCopySimulator()
