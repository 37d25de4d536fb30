"""Posteriors: what a history implies about θ′, checked against the textbook and against each other."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import betaln

from samplr.compiling import jit
from samplr.envs.icy_road import IcyRoadPosterior
from samplr.errors import SamplrError
from samplr.posteriors import BernoulliEvidence, BernoulliField, BetaBernoulli, Enumerated

ALPHA, BETA = 1.0, 15.0
DRAWS = 20_000
# Each test below is one draw of a fixed seed, so that it fails always or never; at this level a right posterior
# would have failed for one seed in a thousand, while the errors it is meant to catch give p-values far below.
ALARM = 1e-3


def revealing(size: int, values: dict[int, bool]) -> BernoulliEvidence:
    """Evidence that some bits of a field were revealed; what the others are said to be must not matter."""
    revealed, told = np.zeros(size, bool), np.ones(size, bool)
    for place, value in values.items():
        revealed[place], told[place] = True, value
    return BernoulliEvidence(jnp.asarray(revealed), jnp.asarray(told))


def sampler(posterior, count=DRAWS):
    """Draws given some evidence, by one compiled program for all evidence of one shape."""
    keys = jax.random.split(jax.random.key(0), count)
    draw = jax.vmap(lambda evidence, key: posterior.sample(None, evidence, key=key), in_axes=(None, 0))
    compiled = jit(draw, runs_once=True)
    return lambda evidence: jax.tree.map(np.asarray, compiled(evidence, keys))


def pattern_counts(bits: np.ndarray) -> np.ndarray:
    """How often each pattern of bits occurred, the first bit the most significant."""
    codes = bits.astype(int) @ (1 << np.arange(bits.shape[1])[::-1])
    return np.bincount(codes, minlength=2 ** bits.shape[1])


def beta_binomial(alpha: float, beta: float, pattern: tuple[int, ...]) -> float:
    """P(these very bits), with their rate drawn from Beta(α, β)."""
    ones = sum(pattern)
    return float(np.exp(betaln(alpha + ones, beta + len(pattern) - ones) - betaln(alpha, beta)))


@pytest.fixture(scope="module")
def beta_2_6():
    return sampler(BetaBernoulli(2.0, 6.0))


@pytest.fixture(scope="module")
def field(beta_2_6) -> BernoulliField:
    """Draws from Beta(2, 6) where of 6 bits the places 1, 3 and 4 were revealed as 1, 0, 1: the rate is Beta(4, 7)."""
    return beta_2_6(revealing(6, {1: True, 3: False, 4: True}))


class TestBetaBernoulli:
    def test_rate_follows_beta_of_counts(self, field):
        theory = stats.beta(2 + 2, 6 + 1)
        assert stats.kstest(field.rate, theory.cdf).pvalue > ALARM
        assert field.rate.mean() == pytest.approx(theory.mean(), abs=4 * theory.std() / DRAWS**0.5)
        assert field.rate.std() == pytest.approx(theory.std(), rel=0.03)

    def test_rate_is_right_for_any_prior(self):
        # U-shaped, flat, skewed and peaked priors, by one program that takes α and β as they come.
        priors = [(0.5, 0.5), (1.0, 1.0), (1.0, 15.0), (0.7, 4.0), (30.0, 3.0), (200.0, 300.0)]

        def rate(alpha, beta, key):
            return BetaBernoulli(alpha, beta).sample_prior(1, key=key).rate

        rates = jit(jax.vmap(jax.vmap(rate, in_axes=(None, None, 0)), in_axes=(0, 0, None)), runs_once=True)
        alpha, beta = jnp.array(priors).T
        drawn = np.asarray(rates(alpha, beta, jax.random.split(jax.random.key(2), DRAWS)))
        p = [stats.kstest(x, stats.beta(*prior).cdf).pvalue for x, prior in zip(drawn, priors, strict=True)]
        assert min(p) * len(p) > ALARM

    def test_rate_given_is_the_distribution_that_is_sampled(self):
        rate = BetaBernoulli(2.0, 6.0).rate_given(revealing(6, {1: True, 3: False, 4: True}))
        assert float(rate.mean) == pytest.approx(4 / 11)
        assert float(rate.variance) == pytest.approx(stats.beta(4, 7).var(), rel=1e-5)

    def test_revealed_bits_are_kept(self, field):
        assert field.bits[:, 1].all()
        assert not field.bits[:, 3].any()
        assert field.bits[:, 4].all()

    def test_unrevealed_bits_are_exchangeable_beta_binomial(self, field):
        # Every pattern of the three unrevealed bits: a dependence on place, or a rate shared wrongly, shows here.
        expected = [beta_binomial(4, 7, pattern) for pattern in itertools.product((0, 1), repeat=3)]
        counts = pattern_counts(field.bits[:, [0, 2, 5]])
        assert stats.chisquare(counts, DRAWS * np.array(expected)).pvalue > ALARM

    def test_unrevealed_bits_correlate_through_their_rate(self, field):
        # ρ = 1/(a+b+1) for two bits with a rate from Beta(a, b); independent bits would give 0.
        correlation = np.corrcoef(field.bits[:, [0, 2, 5]].T)[np.triu_indices(3, k=1)]
        assert correlation == pytest.approx(np.full(3, 1 / 12), abs=4 / DRAWS**0.5)

    def test_bits_are_drawn_at_the_drawn_rate(self, field):
        # Given the rate of its draw a bit has that mean: so also among the draws of a low and of a high rate.
        for part in (field.rate < 0.3, field.rate > 0.45):
            rate, bits = field.rate[part], field.bits[part][:, [0, 2, 5]]
            z = (bits - rate[:, None]).sum() / np.sqrt(3 * (rate * (1 - rate)).sum())
            assert abs(z) < 4

    def test_values_of_unrevealed_bits_are_ignored(self, beta_2_6, field):
        evidence = revealing(6, {1: True, 3: False, 4: True})
        said_otherwise = BernoulliEvidence(evidence.revealed, evidence.values & evidence.revealed)
        assert not (said_otherwise.values == evidence.values).all()
        again = beta_2_6(said_otherwise)
        assert (again.rate == field.rate).all()
        assert (again.bits == field.bits).all()

    def test_prior_draws_have_nothing_revealed(self):
        keys = jax.random.split(jax.random.key(1), DRAWS)
        draw = jax.vmap(lambda key: BetaBernoulli(ALPHA, BETA).sample_prior(3, key=key))
        field = jit(draw, runs_once=True)(keys)
        assert stats.kstest(np.asarray(field.rate), stats.beta(ALPHA, BETA).cdf).pvalue > ALARM
        expected = [beta_binomial(ALPHA, BETA, pattern) for pattern in itertools.product((0, 1), repeat=3)]
        counts = pattern_counts(np.asarray(field.bits))
        # The three-ice pattern is expected only ~25 times: enough for chi-square.
        assert stats.chisquare(counts, DRAWS * np.array(expected)).pvalue > ALARM

    def test_cannot_be_summed_and_says_what_to_do(self):
        with pytest.raises(SamplrError, match=r"BetaBernoulli cannot be summed exactly.*number of samples"):
            BetaBernoulli(ALPHA, BETA).support(None, revealing(3, {}))


@pytest.fixture(scope="module")
def enumerated() -> Enumerated:
    """All 2⁴ ice patterns of a short icy road, with Beta-binomial prior probabilities."""

    def log_likelihood(evidence: BernoulliEvidence, candidate):
        contradicts = jnp.any(evidence.revealed & (evidence.values != candidate))
        return jnp.where(contradicts, -jnp.inf, 0.0)

    patterns = list(itertools.product((0, 1), repeat=4))
    prior = [beta_binomial(ALPHA, BETA, pattern) for pattern in patterns]
    # A prior known only up to a constant is enough.
    return Enumerated(jnp.array(patterns, bool), jnp.log(jnp.array(prior)) + 3.0, log_likelihood)


def every_evidence():
    """Each subset of four segments revealed, each way they may have turned out."""
    for revealed in itertools.product((False, True), repeat=4):
        places = [i for i, known in enumerate(revealed) if known]
        for values in itertools.product((False, True), repeat=len(places)):
            yield dict(zip(places, values, strict=True))


class TestEnumerated:
    def test_predictive_equals_the_conjugate_one(self, enumerated):
        support = jit(lambda evidence: enumerated.support(None, evidence), runs_once=True)
        for values in every_evidence():
            candidates, weight = support(revealing(4, values))
            predictive = np.asarray(weight) @ np.asarray(candidates)
            conjugate = (ALPHA + sum(values.values())) / (ALPHA + BETA + len(values))
            expected = [values.get(place, conjugate) for place in range(4)]
            assert predictive == pytest.approx(np.array(expected, float), abs=1e-5)
            assert float(weight.sum()) == pytest.approx(1, abs=1e-6)

    def test_samples_follow_the_support(self, enumerated):
        evidence = revealing(4, {0: True, 2: False})
        _, weight = enumerated.support(None, evidence)
        possible = np.asarray(weight) > 0
        assert possible.sum() == 4  # the two unrevealed bits
        counts = pattern_counts(sampler(enumerated)(evidence))
        assert counts[~possible].sum() == 0
        expected = np.asarray(weight, np.float64)[possible]
        assert stats.chisquare(counts[possible], DRAWS * expected / expected.sum()).pvalue > ALARM

    def test_structured_candidates_are_drawn_whole(self):
        # Leaves of one draw belong to the same candidate.
        candidates = BernoulliField(jnp.array([0.25, 0.75]), jnp.array([[False], [True]]))
        posterior = Enumerated(candidates, jnp.zeros(2), lambda evidence, candidate: jnp.zeros(()))
        field = sampler(posterior, count=200)(None)
        assert ((field.rate == 0.75) == field.bits[:, 0]).all()
        assert 0 < field.bits.sum() < 200


class TestIcyRoadPosterior:
    @pytest.mark.parametrize("values", [{}, {0: False}, {0: True, 1: False, 2: True}, dict.fromkeys(range(5), True)])
    def test_support_gives_the_exact_predictive_of_the_next_segment(self, values):
        fields, weight = IcyRoadPosterior(ALPHA, BETA).support(None, revealing(5, values))
        bits, crossed = np.asarray(fields.bits), len(values)
        assert np.asarray(weight).sum() == pytest.approx(1, abs=1e-6)
        # What was revealed is the same in every version.
        for place, value in values.items():
            assert (bits[:, place] == value).all()
        # (α + N₊)/(α + β + t)
        if crossed < 5:
            predictive = np.asarray(weight) @ bits[:, crossed]
            assert predictive == pytest.approx((ALPHA + sum(values.values())) / (ALPHA + BETA + crossed), rel=1e-6)


def test_exact_posteriors_carry_no_belief():
    # They need only the evidence: a belief would be one more thing to keep in step.
    posterior = BetaBernoulli(ALPHA, BETA)
    belief = posterior.init(jnp.zeros(3))
    assert jax.tree.leaves(belief) == []
    assert posterior.update(belief, jnp.zeros(3), jnp.int32(0), jnp.array(True)) is belief
