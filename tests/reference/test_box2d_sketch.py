"""The sketch of the real car: the numbers that gymnasium's car is told by are those of ours on the same drive."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.envs.black_ice import SketchedBlackIce
from samplr.envs.black_ice.host import SketchedBlackIceBox2D
from samplr.envs.black_ice.sketch import NUMBERS
from samplr.host.testing import check_simulator

KEY = jax.random.key(0)
STEPS = 25


@pytest.mark.parametrize("camera", ["hull", "motion"])
def test_the_real_car_is_told_as_ours(camera: str) -> None:
    ours = SketchedBlackIce(camera=camera, frame_stack=2, show_evidence=True)
    real = SketchedBlackIceBox2D(camera=camera, frame_stack=2, show_evidence=True).simulator()
    level = jit(lambda key: ours.sample_level(key=key), runs_once=True)(jax.random.key(3))
    world = jit(ours.build, runs_once=True)(level.layout)
    step = jit(lambda state, action: ours.step(world, state, action, key=KEY), runs_once=True)
    state, here = ours.reset(world, level.aleatoric, key=KEY)
    there, _ = real.reset(seed=0, options={"level": jax.device_get(level)})
    fastest = 0.0
    for time in range(STEPS):
        assert there["view"].shape == here["view"].shape == (2 * NUMBERS,)
        np.testing.assert_allclose(there["view"], here["view"], atol=5e-3, err_msg=f"after {time} steps")
        np.testing.assert_array_equal(there["evidence"], here["evidence"])
        fastest = max(fastest, float(here["view"][NUMBERS]))
        action = np.array([0.2 * np.sin(time / 2), 0.4, 0.0], np.float32)
        after = step(state, jnp.asarray(action))
        state, here = after.state, after.observation
        there, reward, *_ = real.step(action)
        assert reward == pytest.approx(float(after.reward), abs=1e-3)
    assert fastest > 0.5, "nobody drove"


def test_the_real_car_keeps_the_laws() -> None:
    check_simulator(SketchedBlackIceBox2D(alpha=1.0, beta=1.0, show_evidence=True), episodes=1)
