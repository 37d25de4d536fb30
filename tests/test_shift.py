"""The shift monitor: it must see a shifted curriculum, and must not cry wolf over the ground truth."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import samplr.shift
from samplr.compiling import jit
from samplr.config import default_config
from samplr.envs.icy_road import IcyRoad
from samplr.shift import (
    BINS,
    REFERENCE_DRAWS,
    SIGNIFICANCE,
    Histogram,
    ShiftCounts,
    ShiftMonitor,
    divergence,
    shift_p_value,
)
from samplr.training import Training

ENV = IcyRoad()
SHAPE = (2, 100)  # of the rollouts below: steps, workers


class Grip(IcyRoad):
    """Icy road with a continuous summary of θ′ besides the discrete one, and one that never varies."""

    def summaries(self, aleatoric):
        return {**super().summaries(aleatoric), "rate": aleatoric.rate, "constant": jnp.float32(7)}


@pytest.fixture(scope="module")
def monitor() -> ShiftMonitor:
    return ShiftMonitor.of(Grip())


@pytest.fixture(scope="module")
def count(monitor):
    """`monitor.count` of a rollout, by default learned from as it was."""
    compiled = jit(lambda *args: monitor.count(*args), runs_once=True)

    def of(real, met=None) -> ShiftCounts:
        return compiled(real, real if met is None else met)

    return of


def summarised(rate, seed=0):
    """Summaries of roads with ice at a given rate, as a rollout would hold them."""
    bits = np.random.default_rng(seed).random((*SHAPE, ENV.segments)) < rate
    ice = bits.mean(axis=-1, dtype=np.float32)
    return {"ice": ice, "rate": np.full(SHAPE, rate, np.float32), "constant": np.full(SHAPE, 7, np.float32)}


def ground_truth(monitor: ShiftMonitor, beta: float = 15) -> np.ndarray:
    """The exact probability of each of the monitor's bins of ice: all shares beyond the last edge are one."""
    shares = stats.betabinom(12, 1, beta).pmf(np.arange(13))
    edges = len(monitor.edges["ice"])
    return np.append(shares[:edges], shares[edges:].sum())


def batch(counts: ShiftCounts) -> ShiftCounts:
    """A batch of one run."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], counts)


class TestBins:
    def test_a_discrete_summary_has_a_bin_for_each_value(self, monitor):
        # Shares k/12 that occur under P̄ are kept apart, by edges halfway between them.
        counts, edges = np.asarray(monitor.reference["ice"].counts), np.asarray(monitor.edges["ice"])
        assert edges == pytest.approx((np.arange(len(edges)) + 0.5) / 12)
        expected = REFERENCE_DRAWS * stats.betabinom(12, 1, 15).pmf(np.arange(13))
        assert counts[:4] == pytest.approx(expected[:4], rel=0.1)
        assert counts.sum() == REFERENCE_DRAWS

    def test_a_continuous_summary_has_bins_of_equal_probability(self, monitor):
        counts, edges = np.asarray(monitor.reference["rate"].counts), np.asarray(monitor.edges["rate"])
        assert len(edges) == BINS - 1
        assert counts == pytest.approx(np.full(BINS, REFERENCE_DRAWS / BINS), abs=2)
        assert edges == pytest.approx(stats.beta(1, 15).ppf(np.arange(1, BINS) / BINS), rel=0.1)

    def test_a_constant_summary_has_one_bin(self, monitor):
        assert np.asarray(monitor.reference["constant"].counts).tolist() == [REFERENCE_DRAWS]

    def test_values_fall_where_they_belong(self, count):
        def each(*values):
            return np.resize(np.array(values, np.float32), SHAPE)

        # The last share of ice is beyond all that P̄ showed.
        met = {"ice": each(0, 1 / 12, 1 / 12, 1), "rate": each(0, 0, 0, 1), "constant": each(7)}
        counted = count(met)
        in_bins = np.asarray(counted.met["ice"].counts)
        assert (in_bins[0], in_bins[1], in_bins[-1], in_bins.sum()) == (50, 100, 50, 200)
        assert (counted.met["rate"].counts[0], counted.met["rate"].counts[-1]) == (150, 50)

    def test_real_counts_levels_and_met_counts_steps(self, count):
        real = summarised(0.2)
        counted = count(real, summarised(0.6, seed=1))
        # However many episodes follow, 100 levels were handed out, with the θ′ of the first step.
        assert counted.real["ice"].counts.sum() == 100
        assert float(counted.real["ice"].total) == pytest.approx(real["ice"][0].sum(), rel=1e-5)
        assert counted.met["ice"].counts.sum() == 200


class TestDivergence:
    def test_zero_for_proportional_histograms(self):
        reference = np.array([5.0, 3.0, 0.0, 1.0])
        assert divergence(7 * reference, reference) == pytest.approx(0, abs=1e-12)

    def test_one_bit_for_disjoint_ones(self):
        assert divergence(np.array([0.0, 4.0]), np.array([9.0, 0.0])) == pytest.approx(1)

    def test_by_hand(self):
        # p = (1, 0), q = (½, ½), mean m = (¾, ¼): ½ log₂(4/3) + ½ (½ log₂(2/3) + ½ log₂ 2)
        expected = 0.5 * np.log2(4 / 3) + 0.5 * (0.5 * np.log2(2 / 3) + 0.5)
        assert divergence(np.array([3.0, 0.0]), np.array([1.0, 1.0])) == pytest.approx(expected)

    def test_nan_where_nothing_was_counted(self):
        assert np.isnan(divergence(np.zeros(3), np.ones(3)))
        assert np.isnan(Histogram(np.zeros((2, 3)), np.zeros(2)).mean).all()


class TestPValue:
    GROUND_TRUTH = stats.betabinom(12, 1, 15).pmf(np.arange(13))

    @pytest.mark.parametrize("draws", [2_000, 100_000])
    def test_uniform_under_the_null(self, draws):
        # Both histograms are drawn afresh. Rare bins make the test a little shy with few draws, never the contrary.
        rng = np.random.default_rng(draws)
        references = rng.multinomial(REFERENCE_DRAWS, self.GROUND_TRUTH, size=1000)
        counts = rng.multinomial(draws, self.GROUND_TRUTH, size=1000)
        p = np.array([shift_p_value(c, r) for c, r in zip(counts, references, strict=True)])
        assert (p < 0.01).mean() <= 0.01 + 4 * np.sqrt(0.01 / 1000)
        assert (p < 0.1).mean() == pytest.approx(0.1, abs=0.05)
        assert 0.4 < p.mean() < 0.62

    def test_tiny_for_a_shift(self):
        shifted = 1000 * stats.betabinom(12, 1, 7).pmf(np.arange(13))  # twice the ice
        assert shift_p_value(shifted, REFERENCE_DRAWS * self.GROUND_TRUTH) < 1e-10

    def test_two_bins_by_hand(self):
        # G = 2 Σ observed · ln(observed / expected), with one degree of freedom and no correction for continuity.
        table = np.array([[30.0, 70.0], [500.0, 500.0]])
        expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
        g = 2 * np.sum(table * np.log(table / expected))
        assert shift_p_value(table[0], table[1]) == pytest.approx(stats.chi2.sf(g, 1))

    def test_nothing_to_compare_is_no_shift(self):
        assert shift_p_value(np.zeros(3), np.ones(3)) == 1
        assert shift_p_value(np.array([50.0]), np.array([100.0])) == 1


class TestReport:
    def test_names_and_means(self, monitor, count):
        real, met = summarised(0.5), summarised(0.25, seed=1)
        row = monitor.report(batch(count(real, met)))
        figures = ("ground_truth_mean", "real_mean", "real_divergence", "met_mean", "met_divergence")
        assert set(row) == {f"shift/{name}/{f}" for name in ("ice", "rate", "constant") for f in figures}
        assert row["shift/ice/ground_truth_mean"] == pytest.approx(1 / 16, abs=0.003)
        assert row["shift/ice/real_mean"] == pytest.approx([real["ice"][0].mean()], rel=1e-5)
        assert row["shift/ice/met_mean"] == pytest.approx([met["ice"].mean()], rel=1e-5)
        # More ice diverges more; what cannot vary does not diverge at all.
        assert row["shift/ice/real_divergence"][0] > row["shift/ice/met_divergence"][0] > 0.1
        assert row["shift/constant/real_divergence"] == [0]

    def test_one_entry_for_each_run(self, monitor, count):
        counts = [batch(count(summarised(rate))) for rate in (0.1, 0.3, 0.9)]
        row = monitor.report(jax.tree.map(lambda *leaves: np.concatenate(leaves), *counts))
        assert all(one < other for one, other in pairwise(row["shift/ice/real_mean"]))
        assert len(row["shift/ice/met_divergence"]) == 3


class TestWarnings:
    @pytest.mark.slow
    def test_none_for_domain_randomisation(self):
        # dr + none over 8 seeds trains on P̄ itself. The rule warns of one such batch in 1/SIGNIFICANCE = 1000 at most.
        config = default_config(
            "icy_road", "dr", grounding="none", seeds=8, workers=32, student__hidden=(4,), student__epochs=1
        )
        training = Training(config)
        _, log = training.advance(training.init(), 40)
        counts = jax.tree.map(np.asarray, log.shift)
        assert counts.real["ice"].counts.sum(axis=-1).tolist() == [32 * 40] * 8
        assert training.monitor.warnings(counts) == []
        # Against a ground truth with a third less ice the same counts do warn: the silence above means something.
        drier = Histogram(REFERENCE_DRAWS * ground_truth(training.monitor, beta=22), jnp.float32(REFERENCE_DRAWS / 23))
        assert len(ShiftMonitor(training.monitor.edges, {"ice": drier}).warnings(counts)) == 1

    def test_false_alarms_are_as_rare_as_promised(self, monitor):
        # 300 batches of 8 runs on the ground truth: SIGNIFICANCE × 300 = 0.3 alarms expected, 5 all but impossible.
        rng = np.random.default_rng(0)
        theory = ground_truth(monitor)
        only_ice = ShiftMonitor({"ice": monitor.edges["ice"]}, {"ice": monitor.reference["ice"]})
        alarms = 0
        for _ in range(300):
            ice = {"ice": Histogram(rng.multinomial(1000, theory, size=8).astype(float), np.zeros(8))}
            alarms += len(only_ice.warnings(ShiftCounts(ice, ice)))
        assert SIGNIFICANCE == 1e-3
        assert alarms < 5

    def test_a_shifted_curriculum_is_named_with_its_means(self, monitor, count):
        shifted = summarised(0.25)
        ice, rate = sorted(monitor.warnings(batch(count(shifted))))
        # 'constant' does not vary and is not mentioned.
        assert f"'ice' averaged {shifted['ice'][0].mean():.3g}" in ice
        assert "against 0.06" in ice
        assert "'rate' averaged 0.25" in rate

    def test_many_runs_and_summaries_have_to_share_the_significance(self, monitor, monkeypatch):
        monkeypatch.setattr(samplr.shift, "shift_p_value", lambda *_: SIGNIFICANCE / 4)
        one = ShiftCounts(monitor.reference, monitor.reference)
        ice = ShiftMonitor({"ice": monitor.edges["ice"]}, {"ice": monitor.reference["ice"]})
        runs = {count: jax.tree.map(lambda *leaves: np.stack(leaves), *[one] * count) for count in (1, 3, 5)}
        assert [len(ice.warnings(counts)) for counts in runs.values()] == [1, 1, 0]
        assert monitor.warnings(runs[1]) != []
        assert monitor.warnings(runs[3]) == []  # three runs of three summaries

    def test_what_counts_is_the_curriculum_and_not_what_the_posterior_drew(self, count, monitor):
        shifted, truth = summarised(0.3), monitor.reference
        counted = batch(count(shifted))
        draws = jax.tree.map(lambda leaf: np.asarray(leaf)[None], truth)
        assert monitor.warnings(ShiftCounts(counted.real, draws)) != []
        assert monitor.warnings(ShiftCounts(draws, counted.met)) == []

    def test_one_shifted_run_among_many_is_enough(self, monitor, count):
        shifted = count(summarised(0.3))
        reference = ShiftCounts(monitor.reference, monitor.reference)
        many = jax.tree.map(lambda *leaves: np.stack(leaves), *[reference] * 7, shifted)
        assert any("'ice'" in line for line in monitor.warnings(many))

    def test_nothing_to_say_before_anything_was_met(self, monitor):
        nothing = jax.tree.map(np.zeros_like, monitor.reference)
        counts = batch(ShiftCounts(nothing, nothing))
        assert monitor.warnings(counts) == []
        row = monitor.report(counts)
        # Unknown is None, because JSON has no NaN.
        assert row["shift/ice/real_mean"] == row["shift/ice/met_divergence"] == [None]

    def test_an_environment_without_summaries_has_nothing_to_monitor(self):
        class Silent(IcyRoad):
            def summaries(self, aleatoric):
                return {}

        monitor = ShiftMonitor.of(Silent())
        counts = batch(monitor.count({}, {}))
        assert monitor.report(counts) == {}
        assert monitor.warnings(counts) == []
