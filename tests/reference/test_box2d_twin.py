"""The real car's twin: a copy of its state drives on as the car does, and on other ice as the laws ask."""

import dataclasses
import multiprocessing
import os
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
import pytest

import samplr
from samplr import trees
from samplr.envs.black_ice.host import BlackIceBox2D, BlackIceSimulator
from samplr.envs.black_ice.rendering import Camera, facing
from samplr.envs.black_ice.world import BlackIce
from samplr.host.crew import Order, Start
from samplr.host.pool import SimulatorPool
from samplr.host.testing import check_simulator

NEVER_IDLE = dataclasses.replace(BlackIceBox2D().rules, idle_limit=0)
ENV = BlackIceBox2D(rules=NEVER_IDLE)


def level(number: int, rate: float | None = None) -> samplr.Level:
    drawn = jax.device_get(ENV.sample_level(key=jax.random.key(number)))
    if rate is None:
        return drawn
    bits = np.random.default_rng(number).random(drawn.aleatoric.bits.shape) < rate
    return dataclasses.replace(drawn, aleatoric=dataclasses.replace(drawn.aleatoric, bits=bits))


def swerving(time: int) -> np.ndarray:
    """From one limit of the steering to the other, where the motors wind up."""
    return np.array([np.sign(np.sin(time / 3.0)), 0.3, 0.0], np.float32)


def simulator(on: samplr.Level, env: BlackIceBox2D = ENV, *, pixels: bool = False) -> BlackIceSimulator:
    made = env.simulator()
    made.render_mode = "state_pixels" if pixels else None
    made.reset(seed=0, options={"level": on})
    return made


def car(simulator: BlackIceSimulator) -> list[Any]:
    return [(tuple(body.position), body.angle, tuple(body.linearVelocity)) for body in simulator._bodies]


@pytest.mark.parametrize("number", range(3))
def test_a_copy_drives_on_bit_for_bit(number: int) -> None:
    on = level(number, rate=0.3)
    real, twin = simulator(on), simulator(on)
    for time in range(5):
        twin.step(swerving(time + 7))  # it was elsewhere before
    for time in range(10):
        real.step(swerving(time))
    twin.set_state(real.get_state())
    for time in range(10, 60):
        assert (real.touched, real.revealed.sum()) == (twin.touched, twin.revealed.sum())
        steps = [each.step(swerving(time))[1:4] for each in (real, twin)]
        assert steps[0] == steps[1], time
        assert car(real) == car(twin), time
        if steps[0][1]:
            break
    assert time > 20
    np.testing.assert_array_equal(real.evidence().revealed, twin.evidence().revealed)


def test_a_copy_sees_the_same_pixels() -> None:
    env = BlackIceBox2D(rules=NEVER_IDLE, frame_stack=2, show_evidence=True, tiles_per_draw=3)
    on = jax.device_get(env.sample_level(key=jax.random.key(5)))
    real, twin = simulator(on, env, pixels=True), simulator(on, env, pixels=True)
    for time in range(8):
        twin.set_state(real.get_state())
        seen = [each.step(swerving(time))[0] for each in (real, twin)]
        for name in ("view", "evidence"):
            np.testing.assert_array_equal(seen[0][name], seen[1][name])
    assert seen[0]["view"].shape == (96, 96, 6)
    assert seen[0]["evidence"].sum() > 0


def test_other_ice_ahead_changes_what_follows_and_not_what_was_revealed() -> None:
    """Law 1, and law 2: the fictitious step does not depend on the real ice ahead."""
    on, ice, dry = level(2, rate=0.0), level(3, rate=1.0).aleatoric, level(3, rate=0.0).aleatoric
    real, twin = simulator(on), simulator(on)
    for _ in range(6):
        real.step(np.array([0.0, 0.5, 0.0], np.float32))
    evidence, state, ends = real.evidence(), real.get_state(), []
    assert 0 < evidence.revealed.sum() < 100
    assert not evidence.values.any()
    for hidden, drawn in ((dry, dry), (ice, dry), (dry, ice), (ice, ice)):
        twin.set_state(state)
        twin.substitute(hidden)
        twin.substitute(drawn)
        for mine, its in zip(jax.tree.leaves(evidence), jax.tree.leaves(twin.evidence()), strict=True):
            np.testing.assert_array_equal(mine, its)
        for _ in range(4):
            twin.step(np.array([0.5, 0.0, 0.9], np.float32))
        ends.append(car(twin))
    assert ends[0] == ends[1]
    assert ends[2] == ends[3]
    assert ends[0] != ends[2]
    real.set_state(state)
    assert not real.ice.any(), "the state itself is left as it was"


def test_what_is_revealed_is_what_our_own_world_reveals() -> None:
    """On a straight and slow drive, where both worlds keep together."""
    world = BlackIce(rules=NEVER_IDLE, cell=2.0, smoothing=1)
    on = level(4, rate=0.2)
    real, action = simulator(on), np.array([0.0, 0.2, 0.0], np.float32)
    track = jax.jit(world.build)(on.layout)
    state, _ = world.reset(track, on.aleatoric, key=jax.random.key(0))
    step = jax.jit(world.step)
    for _ in range(6):
        real.step(action)
        state = step(track, state, action, key=jax.random.key(0)).state
    mine, its = np.asarray(world.evidence(state).revealed), real.evidence().revealed
    assert its.sum() > 3
    assert (mine != its).sum() <= 1


@pytest.mark.parametrize("camera", get_args(Camera))
def test_the_driver_sees_the_same_in_both_worlds_from_the_first_view_on(camera: Camera) -> None:
    """gymnasium's camera zooms in during the first second; a student trained here would start blindly."""
    world, on = BlackIce(camera=camera, rules=NEVER_IDLE), level(4, rate=0.3)
    real, printed = BlackIceSimulator(world), np.zeros((96, 96), bool)
    its, _ = real.reset(options={"level": on})
    track, step = jax.jit(world.build)(on.layout), jax.jit(world.step)
    state, mine = world.reset(track, on.aleatoric, key=jax.random.key(0))
    printed[86:93, :12] = True  # the printed return, which ours has not
    slid = 0.0
    for time in range(12):
        apart = np.abs(np.asarray(mine, int) - its)[~printed]
        assert apart.mean() < 0.6
        assert (apart.max(axis=-1) <= 32).mean() > 0.985
        aside = facing(state.drive.car, "motion") - state.drive.car.angle[0]
        slid = max(slid, float(1 - np.cos(aside)))  # whatever turns lie between the two angles
        action = np.array([0.8 if time > 3 else 0.0, 0.6, 0.0], np.float32)
        its = real.step(action)[0]
        after = step(track, state, action, key=jax.random.key(0))
        state, mine = after.state, after.observation
    assert slid > 0.1, "or the cameras would see the same"


def smoke(env: BlackIceBox2D = ENV, **changes: Any) -> samplr.Config:
    sizes = {"workers": 2, "rollout": 3, "replay__capacity": 2, "replay__fill": 1.0, "replay__rate": 1.0}
    student = {"encoder": "mlp", "hidden": (8,), "head": 0, "epochs": 1, "minibatches": 1}
    named = {f"student__{name}": value for name, value in student.items()}
    return samplr.default_config(env, "samplr", **sizes, **named, steps=18, **changes)


def test_samplr_trains_on_the_real_car() -> None:
    run = samplr.train(smoke(BlackIceBox2D(show_evidence=True), processes=0))
    assert [row["gradient_updates"] for row in run.metrics] == [0, 1, 2]
    assert np.isfinite(run.metrics[-1]["student/policy"]).all()
    assert run.metrics[-1]["shift/ice/met_mean"] != run.metrics[-1]["shift/ice/real_mean"], "from the posterior"


@pytest.mark.slow
def test_samplr_trains_on_the_real_car_in_two_processes(tmp_path: Path) -> None:
    """Two seeds, in a run folder, and evaluated afterwards."""
    samplr.train(smoke(BlackIceBox2D(show_evidence=True), processes=2, seeds=2), tmp_path / "run")
    assert multiprocessing.active_children() == []
    again = samplr.load(tmp_path / "run")
    short = dataclasses.replace(again.env, rules=dataclasses.replace(again.env.rules, frame_limit=16))
    found = samplr.evaluate(short, again.networks, again.env.suites()["ground_truth"], episodes=2, processes=1)
    figures = found["ground_truth"].figures
    assert figures["length"].tolist() == [[2, 2], [2, 2]]
    assert set(figures) == {"return", "length", "visited", "visited_icy", "icy_share", "lap"}


def test_the_real_car_keeps_the_laws() -> None:
    check_simulator(BlackIceBox2D(alpha=1.0, beta=1.0), episodes=1)


def resident_kilobytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@pytest.mark.slow
def test_memory_is_flat_over_200_resets() -> None:
    """Of the worker processes. A leaked track were 60 MB, a leaked picture 6 MB; gymnasium itself loses 0.5."""
    simulators, levels = 2, [jax.device_get(ENV.sample_level(key=jax.random.key(number))) for number in range(8)]
    pool = SimulatorPool(ENV, simulators, twins=True, processes=2, patience=60.0)
    action, resident = np.zeros((simulators, 3), np.float32), {}
    try:
        for turn in range(131):  # in each, a process resets a simulator and its twin
            chosen = trees.stack(*[levels[(turn + i) % 8] for i in range(simulators)])
            start = Start(jax.device_get(chosen), np.full(simulators, turn, np.uint32))
            pool.begin(start)
            pool.turn(Order(action, jax.tree.map(lambda leaf: leaf[:, None], start.level.aleatoric), start))
            resident[turn] = np.array([resident_kilobytes(process.pid) for process in pool._vector.processes])
    finally:
        pool.close()
    assert (resident[130] - resident[30] < 4000).all(), resident
