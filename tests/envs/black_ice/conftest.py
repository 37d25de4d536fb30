"""A few levels with much ice, and their worlds: they take seconds to compile."""

import jax
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.envs.api import Level
from samplr.envs.black_ice import BlackIce
from samplr.envs.black_ice.tracks import TILES
from samplr.posteriors import BernoulliField

# Drawn coarsely, which saves time.
ENV = BlackIce(frame_stack=3, show_evidence=True, cell=2.0, smoothing=1)
KEY = jax.random.key(0)  # the drive itself has no luck: any key will do
DRIVES = 6
ICE_RATE = 0.25


def one(tree, index=0):
    return jax.tree.map(lambda leaf: leaf[index], tree)


@pytest.fixture(scope="session")
def suites():
    return ENV.suites()


@pytest.fixture(scope="session")
def ground_truth(suites):
    """A thousand levels of the ground truth, as its suite draws them."""
    sample = jit(jax.vmap(suites["ground_truth"]["ground_truth"]), runs_once=True)
    return jax.device_get(sample(jax.random.split(jax.random.key(1), 1000)))


@pytest.fixture(scope="session")
def levels(ground_truth):
    """A few of its tracks with much more ice than it has, as a curriculum might propose."""
    bits = np.random.default_rng(5).random((DRIVES, TILES)) < ICE_RATE
    ice = BernoulliField(np.full(DRIVES, ICE_RATE, np.float32), bits)
    return Level(one(ground_truth.layout, slice(DRIVES)), ice, ground_truth.origin[:DRIVES])


@pytest.fixture(scope="session")
def begin():
    """World, first state and first observation of each level."""

    def build_and_reset(level):
        world = ENV.build(level.layout)
        return world, *ENV.reset(world, level.aleatoric, key=KEY)

    compiled = jit(jax.vmap(build_and_reset), runs_once=True)
    return lambda levels: jax.device_get(compiled(levels))


@pytest.fixture(scope="session")
def begun(levels, begin):
    return begin(levels)


@pytest.fixture(scope="session")
def worlds(begun):
    return begun[0]
