"""Estimated priors: what is counted, what is fitted to it, and how fast it comes to the truth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize
from scipy.special import betaln

from samplr.compiling import jit
from samplr.envs.fruit_choice import FruitChoice
from samplr.envs.fruit_choice.world import RightFruit
from samplr.envs.icy_road import IcyRoad, IcyRoadPosterior
from samplr.errors import SamplrError
from samplr.posteriors import BernoulliEvidence, BernoulliField, BetaBernoulli, Posterior
from samplr.posteriors.priors import WEIGHT, BetaEstimate, FrequencyEstimate

ENV = IcyRoad()


def fields(*patterns: str) -> BernoulliField:
    bits = jnp.array([[bit == "1" for bit in pattern] for pattern in patterns])
    return BernoulliField(jnp.zeros(len(patterns)), bits)


def seen(*patterns: str) -> BetaEstimate:
    return BetaEstimate.empty(len(patterns[0])).observe(fields(*patterns), jnp.ones(len(patterns), bool))


class TestBetaEstimate:
    def test_counts_fields_by_their_ones_and_zeros(self):
        estimate = seen("000", "010", "111")
        assert estimate.ones.tolist() == [2, 1, 1]  # more than 0, 1, 2 ones
        assert estimate.zeros.tolist() == [2, 2, 1]
        assert estimate.levels == 3

    def test_one_step_by_hand(self):
        # One field of two bits, one of them 1. α·[ψ(1+α) − ψ(α)] = α/α = 1, and ψ(2+2) − ψ(2) = 1/2 + 1/3.
        begin = BetaEstimate(jnp.array([1.0, 0.0]), jnp.array([1.0, 0.0]), jnp.ones(()), jnp.ones(()))
        step = begin.improved()
        assert float(step.alpha) == pytest.approx((WEIGHT + 1) / (WEIGHT + 5 / 6))
        assert float(step.beta) == pytest.approx(float(step.alpha))

    def test_nothing_seen_is_uniform(self):
        estimate = BetaEstimate.empty(5).observe(fields("11111"), jnp.zeros(1, bool))
        assert (float(estimate.alpha), float(estimate.beta), float(estimate.levels)) == (1, 1, 0)

    def test_only_samples_of_the_ground_truth_count(self):
        mixed = BetaEstimate.empty(3).observe(fields("000", "111", "010", "111"), jnp.array([True, False, True, False]))
        for one, other in zip(jax.tree.leaves(mixed), jax.tree.leaves(seen("000", "010")), strict=True):
            np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize("pattern", ["0000", "1111"])
    def test_stays_a_prior_where_all_fields_are_alike(self, pattern):
        estimate = seen(*[pattern] * 1000)
        assert 0 < float(estimate.alpha) < 1e4
        assert 0 < float(estimate.beta) < 1e4
        mean = float(estimate.alpha / (estimate.alpha + estimate.beta))
        assert mean == pytest.approx(float(pattern[0]), abs=1e-2)

    def test_is_the_most_likely_beta(self):
        draw = jit(jax.vmap(lambda key: BetaBernoulli(2.0, 6.0).sample_prior(12, key=key)), runs_once=True)
        drawn = draw(jax.random.split(jax.random.key(0), 2000))
        estimate = BetaEstimate.empty(12)
        for _ in range(4):  # more steps on the same levels, as a run gives them with every rollout
            estimate = jit(BetaEstimate.observe)(estimate, drawn, jnp.ones(2000, bool))
        ones = np.asarray(drawn.bits).sum(axis=1)

        def unlikelihood(logs):
            alpha, beta = np.exp(logs)
            weights = 4 * (betaln(ones + alpha, 12 - ones + beta) - betaln(alpha, beta)).sum()
            return -weights - WEIGHT * (logs - np.exp(logs)).sum()

        best = np.exp(optimize.minimize(unlikelihood, [0.0, 0.0]).x)
        assert [float(estimate.alpha), float(estimate.beta)] == pytest.approx(best, rel=2e-3)

    def test_comes_to_the_truth_as_one_over_the_root_of_the_levels(self):
        batches, per_batch, runs = 64, 64, 48

        def run(key):
            def rollout(estimate, key):
                drawn = jax.vmap(lambda key: ENV.sample_aleatoric(None, key=key))(jax.random.split(key, per_batch))
                estimate = estimate.observe(drawn, jnp.ones(per_batch, bool))
                return estimate, (estimate.alpha, estimate.beta)

            return jax.lax.scan(rollout, BetaEstimate.empty(12), jax.random.split(key, batches))[1]

        alpha, beta = jit(jax.vmap(run))(jax.random.split(jax.random.key(1), runs))
        mean = np.asarray(alpha / (alpha + beta))
        # The spread of a Beta-binomial's mean over N fields; the estimate of it is as good as the best there is.
        one = np.sqrt(1 / 16 * 15 / 16 * (16 + 12) / (12 * (16 + 1)))
        for levels in (1024, 4096):
            error = mean[:, levels // per_batch - 1] - 1 / 16
            assert abs(error.mean()) < 4 * one / np.sqrt(levels * runs)
            assert error.std() == pytest.approx(one / np.sqrt(levels), rel=0.3)
        at = {levels: np.log(np.asarray(alpha + beta)[:, levels // per_batch - 1] / 16) for levels in (1024, 4096)}
        assert at[1024].std() / at[4096].std() == pytest.approx(2, rel=0.35)
        assert abs(at[4096].mean()) < 0.05

    def test_lends_its_prior_to_the_formulas_of_the_posterior(self):
        estimate = BetaEstimate(jnp.zeros(3), jnp.zeros(3), jnp.float32(2.0), jnp.float32(6.0))
        posterior = estimate.applied(ENV.posterior)
        assert isinstance(posterior, IcyRoadPosterior)
        evidence = BernoulliEvidence(jnp.array([True, False, False]), jnp.array([True, False, False]))
        assert float(posterior.rate_given(evidence).mean) == pytest.approx(3 / 9)
        assert posterior.support(None, evidence)[1].tolist() == pytest.approx([6 / 9, 3 / 9])


class TestFrequencyEstimate:
    def test_counts_candidates_and_one_more_of_each(self):
        env = FruitChoice()
        estimate = env.posterior.estimate(env.level_shapes()[0].aleatoric)
        assert isinstance(estimate, FrequencyEstimate)
        apples = RightFruit(jnp.array([True, True, False, True, True]))
        estimate = estimate.observe(apples, jnp.array([True, True, True, True, False]))
        assert estimate.counts.tolist() == [3, 1]
        posterior = estimate.applied(env.posterior)
        assert np.exp(posterior.log_posterior(None)) == pytest.approx([4 / 6, 2 / 6])

    def test_adds_up(self):
        env = FruitChoice()
        estimate, everything = env.posterior.estimate(None), jnp.ones(2, bool)
        for apples in ([True, True], [True, False]):
            estimate = estimate.observe(RightFruit(jnp.array(apples)), everything)
        assert estimate.counts.tolist() == [3, 1]
        assert estimate.metrics() == {"prior/levels": 4}

    def test_a_candidate_is_the_whole_of_it(self):
        candidates = BernoulliField(jnp.array([0.1, 0.9, 0.9]), jnp.array([[False], [False], [True]]))
        estimate = FrequencyEstimate.empty(candidates).observe(candidates, jnp.ones(3, bool))
        assert estimate.counts.tolist() == [1, 1, 1]

    def test_nothing_seen_is_uniform(self):
        env = FruitChoice(q=0.9)
        posterior = env.posterior.estimate(None).applied(env.posterior)
        assert np.exp(posterior.log_posterior(None)) == pytest.approx([0.5, 0.5])


def test_a_posterior_whose_prior_cannot_be_estimated_says_so():
    class Mine(Posterior):
        def sample(self, belief, evidence, *, key):
            return None

    with pytest.raises(SamplrError, match="the prior of Mine cannot be estimated: choose 'known'"):
        Mine().estimate(None)
