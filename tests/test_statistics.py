"""Statistics over seeds: by hand where hands suffice, against SciPy, and by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats

from samplr import statistics
from samplr.statistics import (
    Spread,
    cohens_d,
    cvar,
    detectable_difference,
    interquartile_mean,
    interquartile_mean_interval,
    power,
    probability_of_improvement,
    probability_of_improvement_interval,
    repeatability,
    welch,
)

A, B = [1.0, 2.0, 3.0], [2.0, 4.0, 6.0, 8.0]

some_scores = npst.arrays(np.float64, st.integers(2, 12), elements=st.floats(-100, 100, width=32))
matrices = npst.arrays(
    np.float64, st.tuples(st.integers(2, 6), st.integers(1, 4)), elements=st.floats(-100, 100, width=32)
)


class TestWelch:
    def test_by_hand(self):
        # Means 2 and 5; variances 1 and 20/3; s² = 1/3 + 5/3 = 2; ν = 4 / ((1/9)/2 + (25/9)/3) = 4 / (53/54).
        compared = welch(A, B)
        assert compared.difference.value == pytest.approx(-3)
        assert Spread.of(np.array(A), np.array(B)).standard_error == pytest.approx(math.sqrt(2))
        assert Spread.of(np.array(A), np.array(B)).freedom == pytest.approx(216 / 53)
        assert compared.p_value == pytest.approx(2 * stats.t.sf(3 / math.sqrt(2), 216 / 53))
        # Pooled variance (2·1 + 3·20/3) / 5 = 22/5.
        assert compared.effect_size == pytest.approx(-3 / math.sqrt(22 / 5))

    @pytest.mark.parametrize("alternative", ["two-sided", "less", "greater"])
    def test_as_scipy_has_it(self, alternative):
        theirs = stats.ttest_ind(A, B, equal_var=False, alternative=alternative)
        assert welch(A, B, alternative).p_value == pytest.approx(theirs.pvalue)

    def test_the_interval_is_scipys_two_sided_one_whatever_the_alternative(self):
        theirs = stats.ttest_ind(A, B, equal_var=False).confidence_interval()
        for alternative in ("two-sided", "less", "greater"):
            ours = welch(A, B, alternative).difference
            assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))

    @given(some_scores, some_scores)
    def test_exchanging_the_samples_turns_the_signs(self, a, b):
        one, other = welch(a, b, "less"), welch(b, a, "greater")
        assert one.difference.value == pytest.approx(-other.difference.value)
        assert one.effect_size == pytest.approx(-other.effect_size)
        assert one.p_value == pytest.approx(other.p_value)
        assert one.power == pytest.approx(other.power)
        assert one.detectable == pytest.approx(other.detectable)

    def test_scores_that_do_not_vary(self):
        same, other = welch([1.0, 1.0], [1.0, 1.0]), welch([2.0, 2.0], [1.0, 1.0], "greater")
        assert (same.p_value, same.effect_size) == (1.0, 0.0)
        assert (other.p_value, other.effect_size, other.power, other.detectable) == (0.0, math.inf, 1.0, 0.0)
        assert welch([2.0, 2.0], [1.0, 1.0], "less").power == 0.0

    def test_scores_that_hardly_vary(self):
        hardly = [1.0, 1.0 + 1e-14]
        assert welch([2.0, 2.0], hardly, "greater").power == 1.0
        assert welch([2.0, 2.0], hardly, "less").power == 0.0
        assert welch([2.0, 2.0], hardly).power == 1.0
        assert welch([1.0, 1.0], [1e-45, 0.0], "less").power == 0.0

    def test_the_interval_covers_the_true_difference(self):
        # 1,000 experiments: 95 % ± 3 standard deviations of a binomial is 92.9 % to 97.1 %.
        rng, covered = np.random.default_rng(0), 0
        for _ in range(1000):
            found = welch(rng.normal(1, 1, 10), rng.normal(0, 3, 10)).difference
            covered += found.low <= 1 <= found.high
        assert 929 <= covered <= 971


class TestPower:
    def test_without_a_difference_it_is_the_significance(self):
        for alternative in ("two-sided", "less", "greater"):
            assert power(0.0, Spread(1.0, 18.0), alternative) == pytest.approx(0.05)

    def test_a_textbook_value(self):
        # Cohen (1988): two groups of 64, d = 0.5, two-sided 5 %: power 0.80; one-sided with 50 each: 0.80.
        assert power(0.5, Spread(math.sqrt(2 / 64), 126.0)) == pytest.approx(0.80, abs=0.005)
        assert power(0.5, Spread(math.sqrt(2 / 50), 98.0), "greater") == pytest.approx(0.80, abs=0.005)

    def test_as_often_as_the_test_finds_it(self):
        rng, spread = np.random.default_rng(1), Spread(math.sqrt(2 / 10), 18.0)
        found = [
            stats.ttest_ind(rng.normal(1.2, 1, 10), rng.normal(0, 1, 10), equal_var=False).pvalue < 0.05
            for _ in range(1000)
        ]
        # Three standard deviations of 1,000 coin tosses are 0.047 at most.
        assert np.mean(found) == pytest.approx(power(1.2, spread), abs=0.047)

    @pytest.mark.parametrize("alternative", ["two-sided", "less", "greater"])
    def test_the_detectable_difference_is_found_in_80_percent(self, alternative):
        spread = Spread(2.5, 11.3)
        detectable = detectable_difference(spread, alternative)
        assert detectable > 0
        assert power(-detectable if alternative == "less" else detectable, spread, alternative) == pytest.approx(0.8)

    @given(st.floats(0.1, 3), st.floats(0, 3))
    def test_a_larger_difference_is_easier_to_find(self, difference, more):
        spread = Spread(1.0, 9.0)
        assert power(difference + more, spread) >= power(difference, spread) - 1e-9


class TestCvar:
    def test_by_hand(self):
        values = [5.0, 1.0, 4.0, 2.0, 3.0]
        assert cvar(values, 0.2) == 1.0
        assert cvar(values, 0.4) == 1.5
        # Half of the second worst counts: (1 + 0.5 · 2) / 1.5.
        assert cvar(values, 0.3) == pytest.approx(4 / 3)
        assert cvar(values, 1.0) == 3.0

    def test_a_share_of_less_than_one_value_is_the_worst(self):
        assert cvar([3.0, 7.0, 5.0], 0.1) == 3.0

    @given(some_scores, st.floats(0.05, 1), st.floats(0.05, 1))
    def test_it_lies_between_the_worst_and_the_mean_and_grows_with_the_share(self, values, one, other):
        small, large = cvar(values, min(one, other)), cvar(values, max(one, other))
        assert values.min() - 1e-9 <= small <= large + 1e-9
        assert large <= values.mean() + 1e-9


class TestInterquartileMean:
    def test_by_hand(self):
        assert interquartile_mean([0.0, 1.0, 2.0, 100.0]) == 1.5
        assert interquartile_mean(np.arange(8.0).reshape(2, 4)) == 3.5

    @given(matrices)
    def test_the_interval_lies_within_the_scores(self, scores):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(statistics, "RESAMPLES", 20)
            found = interquartile_mean_interval(scores, shared_runs=True)
        assert scores.min() - 1e-9 <= found.low <= found.high <= scores.max() + 1e-9

    def test_the_interval_is_of_the_interquartile_mean(self):
        # One run in twenty is off: no quarter of a resample holds it often enough to reach the middle half.
        scores = np.array([*np.arange(19.0), 1e6])[:, None]
        assert interquartile_mean_interval(scores, shared_runs=True).high < 19

    def test_a_run_brings_all_its_scores_where_runs_are_shared(self):
        # Within a run all scores agree: 32 tasks tell no more than one.
        scores = np.repeat(np.arange(8.0)[:, None], 32, axis=1)
        of_one = interquartile_mean_interval(scores[:, :1], shared_runs=True)
        shared = interquartile_mean_interval(scores, shared_runs=True)
        apart = interquartile_mean_interval(scores, shared_runs=False)
        assert shared == of_one
        assert apart.value == shared.value == 3.5
        assert apart.high - apart.low < (shared.high - shared.low) / 3

    @pytest.mark.parametrize(
        ("of_run", "shared_runs", "least", "most"),
        [
            # Tasks with runs of their own: the plain stratified bootstrap covers. (A percentile bootstrap of 10 runs
            # falls somewhat short of 95 %.)
            (0.0, False, 0.88, 0.98),
            # One run drives all tasks: whole runs must be drawn …
            (1.0, True, 0.86, 0.98),
            # … for drawn apart they hide most of the uncertainty.
            (1.0, False, 0.0, 0.75),
        ],
    )
    def test_the_interval_covers_the_truth(self, monkeypatch, of_run, shared_runs, least, most):
        monkeypatch.setattr(statistics, "RESAMPLES", 200)
        rng, covered = np.random.default_rng(2), []
        for _ in range(300):
            scores = of_run * rng.normal(size=(10, 1)) + rng.normal(size=(10, 8))
            found = interquartile_mean_interval(scores, shared_runs=shared_runs)
            covered.append(found.low <= 0 <= found.high)
        assert least <= np.mean(covered) <= most


class TestProbabilityOfImprovement:
    def test_by_hand(self):
        # 2 > 1, 2 = 2 and 4 > 1, 4 > 2: 3.5 of 4.
        assert probability_of_improvement(np.array([[2.0], [4.0]]), np.array([[1.0], [2.0]])) == 3.5 / 4

    def test_it_is_averaged_over_tasks(self):
        a, b = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 0.0]])
        assert probability_of_improvement(a, b) == (1 + 0.25) / 2

    def test_both_samples_are_drawn_apart(self):
        # Were the same runs drawn of both, a method would never differ from itself.
        scores = np.arange(10.0)[:, None]
        found = probability_of_improvement_interval(scores, scores, shared_runs=True)
        assert found.low < 0.4 < found.value == 0.5 < 0.6 < found.high

    @given(some_scores, some_scores)
    def test_it_is_mann_and_whitneys_u(self, a, b):
        u = stats.mannwhitneyu(a, b, method="asymptotic").statistic
        assert probability_of_improvement(a[:, None], b[:, None]) == pytest.approx(u / (len(a) * len(b)))

    @given(matrices)
    def test_both_ways_add_up_to_one(self, scores):
        other = scores[::-1] + 1
        both = probability_of_improvement(scores, other) + probability_of_improvement(other, scores)
        assert both == pytest.approx(1)

    def test_the_interval_covers_the_truth(self, monkeypatch):
        monkeypatch.setattr(statistics, "RESAMPLES", 200)
        truth = stats.norm.cdf(0.5 / math.sqrt(2))
        rng, covered = np.random.default_rng(3), []
        for _ in range(300):
            found = probability_of_improvement_interval(
                rng.normal(0.5, 1, (12, 1)), rng.normal(0, 1, (12, 1)), shared_runs=True
            )
            covered.append(found.low <= truth <= found.high)
        assert 0.87 <= np.mean(covered) <= 0.98


def test_cohens_d_by_hand():
    assert cohens_d(np.array([0.0, 2.0]), np.array([1.0, 5.0])) == pytest.approx(-2 / math.sqrt(5))


class TestRepeatability:
    def test_by_hand(self):
        # Means 1 and 4, so that between = 2 · 4.5 = 9; variances 2 and 0.5, so that within = 1.25; 7.75 / 10.25.
        assert repeatability(np.array([[0.0, 3.5], [2.0, 4.5]])) == pytest.approx(7.75 / 10.25)

    def test_it_is_the_share_of_the_variance_between_things(self):
        rng = np.random.default_rng(0)
        scores = rng.normal(0, 2, 4000) + rng.normal(0, 1, (5, 4000))
        assert repeatability(scores) == pytest.approx(4 / 5, abs=0.02)

    def test_what_is_all_luck_has_none(self):
        assert abs(repeatability(np.random.default_rng(1).normal(size=(5, 4000)))) < 0.03
