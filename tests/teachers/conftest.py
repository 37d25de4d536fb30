"""Two compiled training programs that differ in the teacher alone, for all tests of this folder: they cost seconds."""

from dataclasses import dataclass

import jax
import pytest

from samplr.config import default_config
from samplr.envs.icy_road import IcyRoad
from samplr.training import Training, TrainState

SEGMENTS, STEPS = 4, 2
"""A rollout is shorter than an episode, so that none finishes in it."""


@dataclass(frozen=True)
class Trained:
    """A program, and a fresh state for each test that asks for one (`advance` consumes what it is given)."""

    training: Training
    initial: TrainState

    def fresh(self) -> TrainState:
        return jax.tree.map(lambda leaf: leaf.copy(), self.initial)


def program(method: str) -> Training:
    config = default_config(
        IcyRoad(segments=SEGMENTS),
        method,
        workers=2,
        rollout=STEPS,
        replay__capacity=4,
        replay__rate=0.5,
        replay__score="max_mc",
        student__hidden=(),
        student__epochs=1,
        student__minibatches=1,
        student__normalise_returns=True,
    )
    return Training(config)


@pytest.fixture(scope="session")
def robust_plr() -> Trained:
    training = program("robust_plr")
    return Trained(training, training.init())


@pytest.fixture(scope="session")
def plr(robust_plr: Trained) -> Trained:
    """Both begin with the same buffer and the same student."""
    return Trained(program("plr"), robust_plr.initial)
