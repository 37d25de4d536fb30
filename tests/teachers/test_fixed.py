"""A curriculum that presents a suite, or one of its conditions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from samplr.config import Config, default_config
from samplr.envs.api import Origin
from samplr.envs.icy_road import IcyRoad, solution
from samplr.envs.icy_road.world import EVALUATED_RATES
from samplr.errors import SamplrError, UnknownNameError
from samplr.run import train
from samplr.teachers.fixed import FixedCurriculum
from samplr.training import build_teacher

ROAD = IcyRoad()


def configured(**changes: Any) -> Config:
    return default_config(ROAD, "dr", **{"teacher": "fixed", "presents": "fixed_rates/q=0.6", **changes})


def test_levels_are_those_of_the_condition_and_not_taken_for_the_ground_truth() -> None:
    teacher = build_teacher(configured())
    assert isinstance(teacher, FixedCurriculum)
    levels = teacher.propose(teacher.phases[0], None, ROAD, 500, key=jax.random.key(0))
    share = np.asarray(levels.aleatoric.bits).mean()
    assert share == pytest.approx(0.6, abs=4 * (0.6 * 0.4 / levels.aleatoric.bits.size) ** 0.5)
    assert set(np.asarray(levels.origin).tolist()) == {Origin.ADVERSARY}
    assert levels.origin.shape == (500,)


def test_a_suite_is_presented_with_all_its_conditions_equally_often() -> None:
    count = 2000
    levels = build_teacher(configured(presents="fixed_rates")).propose(None, None, ROAD, count, key=jax.random.key(1))
    rates, times = np.unique(np.asarray(levels.aleatoric.rate), return_counts=True)
    assert rates.tolist() == np.float32(EVALUATED_RATES).tolist()
    assert chisquare(times).pvalue > 1e-4
    for rate in rates:
        share = np.asarray(levels.aleatoric.bits)[np.asarray(levels.aleatoric.rate) == rate].mean()
        assert share == pytest.approx(rate, abs=0.04)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"presents": "nowhere/q=0.6"}, "nowhere"),
        ({"presents": "fixed_rates/"}, "condition of suite 'fixed_rates'"),
        ({"presents": "fixed_rates/q=0.61"}, "q=0.61"),
    ],
)
def test_a_condition_that_is_not_there_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnknownNameError, match=says):
        configured(**changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"presents": ""}, "--teacher fixed needs --presents SUITE"),
        ({"teacher": "dr"}, "--presents is for --teacher fixed"),
        ({"grounding": "fictitious", "fictitious__posterior": "learned"}, "no levels of the ground truth"),
        ({"grounding": "fictitious", "fictitious__prior": "estimated"}, "no levels of the ground truth"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SamplrError, match=says):
        configured(**changes)


@pytest.mark.slow
def test_a_shift_of_ones_own_misleads_the_ungrounded_student_alone() -> None:
    """On roads that are mostly icy, one learns to crawl; grounded, one learns that ice is rare all the same."""

    def utility(grounding: str) -> float:
        run = train(configured(grounding=grounding, fictitious__samples="exact", steps=100_000), progress=False)
        return float(solution.utility(ROAD, solution.tabulate(ROAD, run.policy.network).fast)[0])

    wise = solution.bayes_optimal(ROAD)
    best, always_slow = (float(solution.utility(ROAD, fast)[0]) for fast in (wise, jnp.zeros_like(wise)))
    with pytest.warns(match="the curriculum shifted"):
        ungrounded = utility("none")
    assert ungrounded == pytest.approx(always_slow, rel=0.02)
    assert utility("fictitious") > ungrounded + 0.3 * (best - always_slow)
