"""One seed of one algorithm gives the same levels, scores, advantages and replay decisions on both backends.

Icy road exists in JAX and, in `gym_icy_road`, as a Gymnasium simulator in NumPy. Both runs of a pair go their own way
from the same seed; whatever differed would show in all that follows.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplr.training
from gym_icy_road import HostIcyRoad
from samplr.compiling import jit
from samplr.config import default_config
from samplr.envs.icy_road import IcyRoad
from samplr.evaluation import evaluate, suite_named
from samplr.host.training import HostTraining
from samplr.shift import ShiftMonitor
from samplr.training import Training

UPDATES = 6
SIZES = {
    "workers": 4,
    "rollout": 15,  # an episode lasts 12 steps, so that every rollout has a restart in it
    "replay__capacity": 8,
    "replay__rate": 0.7,
    "student__hidden": (8,),
    "student__epochs": 1,
    "student__minibatches": 1,
}


@pytest.fixture(scope="module", autouse=True)
def _one_monitor_for_each_world():
    """The monitor samples the ground truth when it is made."""

    class Remembered(ShiftMonitor):
        of = functools.cache(ShiftMonitor.of)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samplr.training, "ShiftMonitor", Remembered)
        yield


def pair(teacher: str, grounding: str, road: dict | None = None, **changes) -> tuple[HostTraining, Training]:
    road = road or {}
    methods = {"teacher": teacher, "grounding": grounding, "processes": 0}
    host = HostTraining(default_config(HostIcyRoad(**road), **SIZES, **methods, **changes))
    return host, Training(default_config(IcyRoad(**road), **SIZES, **methods, **changes))


def history(training: Training, updates: int = UPDATES) -> list[dict]:
    """What every update of one run came to: `Training`'s own parts, one after the other."""
    hyperparameters, run = jax.tree.map(lambda leaf: leaf[0], (training.hyperparameters, training.init().runs))
    once = functools.partial(jit, runs_once=True)
    propose = [once(functools.partial(training._propose, phase)) for phase in training.phases]
    judge, play, learn = once(training._judge), once(training._play), once(training._learn)
    told = []
    for update in range(updates):
        phase = int(hyperparameters.teacher.schedule(jnp.int32(update)))
        keys = jax.random.split(jax.random.fold_in(run.key, update), 3)
        levels = propose[phase](hyperparameters, run, keys[0])
        if isinstance(training, HostTraining):
            rollout = training.collector.collect(run.network, levels, key=keys[1])
            run, played = judge(hyperparameters, run, levels, rollout)
        else:
            run, played = play(hyperparameters, run, levels, keys[1])
        if training.phases[phase].learn:
            run, _ = learn(hyperparameters, run, played, keys[2])
        told.append({"phase": phase, "levels": levels, "played": played, "teacher": run.teacher, "scale": run.scale})
    training.close()
    return told


def assert_same(host: list[dict], compiled: list[dict]) -> None:
    for update, (a, b) in enumerate(zip(host, compiled, strict=True)):
        leaves = zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True)
        for (path, mine), theirs in leaves:
            where = f"update {update}: {jax.tree_util.keystr(path)}"
            mine, theirs = np.asarray(mine), np.asarray(theirs)
            assert mine.shape == theirs.shape, where
            assert mine.dtype == theirs.dtype, where
            if mine.dtype.kind == "f":
                np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5, err_msg=where)
            else:
                np.testing.assert_array_equal(mine, theirs, err_msg=where)


@pytest.mark.parametrize("grounding", ["none", "naive", "fictitious"])
@pytest.mark.parametrize("teacher", ["dr", "plr", "robust_plr"])
def test_all_that_happens_is_the_same(teacher: str, grounding: str) -> None:
    host, compiled = map(history, pair(teacher, grounding))
    assert_same(host, compiled)
    phases = {update["phase"] for update in host}
    assert phases == ({0} if teacher == "dr" else {0, 1}), "both phases were to be seen"


@pytest.mark.parametrize(
    "changes",
    [
        {"fictitious__samples": 3, "fictitious__trace": "matched"},
        {"fictitious__samples": "exact"},
        {"student__memory": 4, "road": {"show_counts": False}},
    ],
    ids=["three samples, matched trace", "exact", "memory"],
)
def test_every_kind_of_fictitious_step_is_the_same(changes: dict) -> None:
    host, compiled = map(history, pair("robust_plr", "fictitious", **changes))
    assert_same(host, compiled)


def test_a_batch_of_runs_is_the_same() -> None:
    """Through `advance`: three runs, their states and their logs."""
    results = []
    for training in pair("robust_plr", "fictitious", seeds=3):
        state, log = training.advance(training.init(), UPDATES)
        training.close()
        teacher = state.runs.teacher
        results.append([{"network": state.runs.network, "buffer": teacher, "update": state.update, "log": log}])
    assert_same(*results)


def test_an_evaluation_is_the_same() -> None:
    """With more episodes than simulators side by side, and two runs."""
    host, compiled = pair("dr", "naive", seeds=2)
    networks = compiled.init().runs.network
    results = []
    for training in (host, compiled):
        suite = suite_named(training.env, "fixed_rates")
        found = evaluate(training.env, networks, suite, episodes=20, processes=0)
        results.append([{name: condition.figures for name, condition in found.items()}])
    assert_same(*results)
