"""One seed of one algorithm gives the same levels, scores, advantages and replay decisions on both backends.

Icy road exists in JAX and, in `gym_icy_road`, as a Gymnasium simulator in NumPy. Both runs of a pair go their own way
from the same seed; whatever differed would show in all that follows.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplr.training
from gym_icy_road import HostIcyRoad
from samplr import evaluation
from samplr.compiling import jit
from samplr.config import default_config
from samplr.envs.api import Environment
from samplr.envs.icy_road import IcyRoad
from samplr.errors import SamplrWarning
from samplr.evaluation import evaluate, suite_named
from samplr.grounding import Fictitious, Grounding
from samplr.host.rollout import HostCollector
from samplr.host.training import HostTraining
from samplr.rollout import Rollout, collect
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


@functools.cache
def collector(env: Environment, grounding: Grounding) -> Callable[..., Rollout]:
    """What collects a rollout, compiled once for all teachers."""
    if isinstance(env, HostIcyRoad):
        twins = isinstance(grounding, Fictitious)
        sizes = {"workers": SIZES["workers"], "steps": SIZES["rollout"], "processes": 0, "patience": 60.0}
        return HostCollector(env, lambda beliefs: grounding, twins=twins, **sizes).collect
    return once(lambda network, levels, key: collect(env, grounding, network, levels, SIZES["rollout"], key=key))


once = functools.partial(jit, runs_once=True)
learn = once(lambda ppo, *arguments: ppo.update(*arguments[:-1], key=arguments[-1]))


def history(training: Training) -> list[dict]:
    """What every update of one run came to: `Training`'s own parts, one after the other."""
    hyperparameters, run = jax.tree.map(lambda leaf: leaf[0], (training.hyperparameters, training.init().runs))
    propose = [once(functools.partial(training._propose, phase)) for phase in training.phases]
    judge, told = once(training._judge), []
    for update in range(UPDATES):
        phase = int(hyperparameters.teacher.schedule(jnp.int32(update)))
        keys = jax.random.split(jax.random.fold_in(run.key, update), 3)
        levels = propose[phase](hyperparameters, run, keys[0])
        rollout = collector(training.env, training.grounding)(run.network, levels, key=keys[1])
        run, played = judge(hyperparameters, run, levels, rollout)
        if training.phases[phase].learn:
            learned = (run.network, run.opt_state, rollout, played.advantages)
            network, opt_state, _ = learn(hyperparameters.ppo, *learned, keys[2])
            run = dataclasses.replace(run, network=network, opt_state=opt_state)
        told.append({"phase": phase, "levels": levels, "played": played, "teacher": run.teacher, "scale": run.scale})
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


# Every teacher and every grounding, and with `make test-slow` every pair of them.
QUICK = [("dr", "naive"), ("plr", "none"), ("robust_plr", "fictitious")]
PAIRS = list(itertools.product(("dr", "plr", "robust_plr"), ("none", "naive", "fictitious")))


@pytest.mark.parametrize(
    ("teacher", "grounding"),
    [pytest.param(*pair, marks=[] if pair in QUICK else [pytest.mark.slow]) for pair in PAIRS],
)
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
        {"student__memory": 4, "student__sees_actions": True, "road": {"show_counts": False}},
    ],
    ids=["three samples, matched trace", "exact", "memory"],
)
def test_every_kind_of_fictitious_step_is_the_same(changes: dict) -> None:
    host, compiled = map(history, pair("robust_plr", "fictitious", **changes))
    assert_same(host, compiled)


def test_what_a_critic_is_told_is_the_same() -> None:
    host, compiled = map(history, pair("dr", "naive", student__informed_critic=True))
    assert host[0]["played"].rollout.hidden is not None
    assert_same(host, compiled)


@pytest.mark.slow
def test_a_batch_of_runs_is_the_same() -> None:
    """Through `advance`: three runs, their states and their logs."""
    results = []
    for training in pair("robust_plr", "fictitious", seeds=3):
        state, log = training.advance(training.init(), UPDATES)
        training.close()
        teacher = state.runs.teacher
        results.append([{"network": state.runs.network, "buffer": teacher, "update": state.update, "log": log}])
    assert_same(*results)


@pytest.mark.parametrize("longest", [evaluation.LONGEST_EPISODE, 5])
def test_an_evaluation_is_the_same(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more episodes than simulators side by side, and two runs of students that are moved by what they did."""
    monkeypatch.setattr(evaluation, "LONGEST_EPISODE", longest)
    cut_off = pytest.warns(SamplrWarning, match="cut off") if longest == 5 else contextlib.nullcontext()
    host, compiled = pair("dr", "naive", seeds=2, student__memory=4, student__sees_actions=True)
    networks = compiled.init().runs.network
    networks = eqx.tree_at(lambda net: net.actor.weight, networks, 1000 * networks.actor.weight)
    results = []
    for training in (host, compiled):
        suite = suite_named(training.env, "fixed_rates")
        with cut_off:
            found = evaluate(training.env, networks, suite, episodes=20, processes=0)
        results.append([{name: condition.figures for name, condition in found.items()}])
    assert_same(*results)
