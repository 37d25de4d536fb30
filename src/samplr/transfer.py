"""Transfer: students trained in one of our worlds play the same levels in the simulator that it imitates."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from samplr.envs import environment_class
from samplr.envs.api import Environment, Suite
from samplr.errors import SamplrError, UnknownNameError
from samplr.evaluation import Condition, evaluate
from samplr.statistics import CONFIDENCE, Interval
from samplr.student.networks import ActorCritic

RESAMPLES = 9999

ALL = "all"
"""The name under which the conditions of a suite are taken together."""


@dataclass(frozen=True)
class Transferred:
    """How every run did on the same levels in our world, and in the real simulator."""

    ours: Condition
    real: Condition

    def kept(self, figure: str) -> Interval:
        """The share of a figure's mean that is left in the real simulator, with the bootstrap over levels.

        It is NaN where there is nothing to keep, and so is the interval of a single level.
        """
        ours, real = self.ours.figures[figure].mean(axis=0), self.real.figures[figure].mean(axis=0)
        share = float(_share(ours, real))
        if len(ours) < 2 or math.isnan(share):
            return Interval(share, math.nan, math.nan)
        resampled = np.random.default_rng(0).integers(len(ours), size=(RESAMPLES, len(ours)))
        shares = _share(ours[resampled], real[resampled])
        # Where it is rare, a figure may be zero on all levels of a resample, which then has no share.
        low, high = np.nanquantile(shares, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return Interval(share, float(low), float(high))

    def to_json(self) -> dict[str, Any]:
        """Both estimates of each figure, and what is kept of it."""
        kept = {name: dataclasses.asdict(self.kept(name)) for name in self.ours.figures}
        return {
            "ours": self.ours.to_json(),
            "real": self.real.to_json(),
            "kept": {
                name: {part: None if math.isnan(x) else x for part, x in interval.items()}
                for name, interval in kept.items()
            },
        }


def transfer(
    env: Environment, backend: str, networks: ActorCritic, suite: Suite, **options: Any
) -> dict[str, Transferred]:
    """Let a batch of runs play a suite twice: in our world, and in the simulator that it imitates.

    **Arguments:**

    - `backend`: one of `env.backends`.
    - `networks`, `suite`, `options`: as for `evaluate`.

    **Returns:** both results of each condition, and of all of them together where there are several.
    """
    worlds = (env, on_backend(env, backend))
    ours, real = (evaluate(world, networks, suite, **options) for world in worlds)
    results = {name: Transferred(ours[name], real[name]) for name in suite}
    if len(results) > 1:
        results[ALL] = Transferred(_together(ours), _together(real))
    return results


def on_backend(env: Environment, name: str) -> Environment:
    """The same world, with the same settings, in a real simulator."""
    if not env.backends:
        raise SamplrError(f"{type(env).__name__} imitates no real simulator: leave out --backend")
    if name not in env.backends:
        raise UnknownNameError("backend", name, env.backends)
    settings = {field.name: getattr(env, field.name) for field in dataclasses.fields(env)}
    return environment_class(env.backends[name])(**settings)


def _together(conditions: Mapping[str, Condition]) -> Condition:
    names = next(iter(conditions.values())).figures
    return Condition(
        {name: np.concatenate([one.figures[name] for one in conditions.values()], axis=1) for name in names}
    )


def _share(ours: np.ndarray, real: np.ndarray) -> np.ndarray:
    before, after = np.mean(ours, axis=-1), np.mean(real, axis=-1)
    return np.where(before > 0, after / np.where(before > 0, before, 1.0), np.nan)
