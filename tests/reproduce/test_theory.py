"""The exact exam: what it says of a student is what the solution of icy road says."""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from samplr.compiling import jit
from samplr.config import default_config
from samplr.envs.icy_road import IcyRoad, solution
from samplr.reproduce.theory import ExactExam
from samplr.student.networks import build_network

ROAD = IcyRoad(segments=4)


@pytest.fixture(scope="module")
def networks():
    def build(key):
        return build_network(ROAD, "mlp", (8,), 0, key=key)

    return jit(jax.vmap(build), runs_once=True)(jax.random.split(jax.random.key(0), 2))


@pytest.fixture(scope="module")
def rows(networks):
    ticks = []
    examine = ExactExam().prepare(default_config(ROAD, "samplr", student__hidden=(8,)), Path())
    found = examine(networks, lambda: ticks.append(1))
    assert len(ticks) == ExactExam().parts(None) == 1
    return found


def test_a_row_for_each_student(rows):
    assert [row["seed"] for row in rows] == [0, 1]
    assert rows[0]["utility"] != rows[1]["utility"]


def test_regrets_by_enumeration(networks, rows):
    levels = jnp.array(list(itertools.product([False, True], repeat=ROAD.segments)))

    def regrets(network):
        fast = solution.tabulate(ROAD, network).fast
        of_level = jax.vmap(lambda bits: solution.grounded_level_regret(ROAD, fast, bits))
        optimum = solution.utility(ROAD, solution.bayes_optimal(ROAD))[0]
        return solution.history_regret(ROAD, fast), of_level(levels), optimum

    for row, of_history, of_level, optimum in zip(rows, *jit(jax.vmap(regrets), runs_once=True)(networks), strict=True):
        assert row["worst_level_regret"] == pytest.approx(float(of_level.max()), rel=1e-5)
        assert row["worst_history_regret"] == pytest.approx(float(of_history.max()), rel=1e-5)
        assert row["regret"] == pytest.approx(float(optimum) - row["utility"], abs=1e-5)
        assert row["share"] == pytest.approx(row["utility"] / float(optimum), rel=1e-5)


def test_robust_optimality_asks_for_more(rows):
    for row in rows:
        assert row["regret"] <= row["worst_history_regret"]
        assert row["worst_level_regret"] <= row["worst_history_regret"]
