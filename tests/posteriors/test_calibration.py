"""Calibration: hand-computed curves, and posteriors that are right, wrong or too sure of themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from samplr.compiling import jit
from samplr.envs.fruit_choice import FruitChoice
from samplr.envs.icy_road import IcyRoad, IcyRoadPosterior
from samplr.errors import SamplrError
from samplr.posteriors import BernoulliEvidence, Enumerated, Posterior
from samplr.posteriors.calibration import Answers, Calibration, ask, bin_masses
from samplr.posteriors.learned import Bins
from samplr.report.calibration import reliability_figure
from samplr.student.networks import build_network

ENV = IcyRoad()
NO_INDEX = jnp.zeros(1, int)


def bins_at(*edges: float) -> Bins:
    """Bins of one number with given borders."""
    ends = np.concatenate([[0.0], edges, [1.0]])
    points = np.stack([ends[:-1], ends[1:]], axis=1)[None]
    return Bins(jnp.asarray(points, jnp.float32), jnp.zeros((1, len(ends) - 1)), jnp.zeros((1, 1, len(ends) - 1)))


def answers(below, truth, live=None, kl=0.0) -> Answers:
    """What was said about one border at each of some steps."""
    below, truth = np.asarray(below, np.float32)[:, None, None], np.asarray(truth, bool)[:, None, None]
    live = np.ones(len(below), bool) if live is None else np.asarray(live, bool)
    return Answers(below, truth, np.full(len(below), kl, np.float32), live)


class TestCurve:
    def test_by_hand(self):
        # Four times 5 %, of which one came true; twice 75 %, of which both did.
        told = Calibration.of(answers([0.05] * 4 + [0.75] * 2, [1, 0, 0, 0, 1, 1], kl=0.5), bins_at(0.5))
        assert told.predicted[[0, 7]] == pytest.approx([0.05, 0.75])
        assert told.observed[[0, 7]] == pytest.approx([0.25, 1.0])
        assert told.share[[0, 7]] == pytest.approx([4 / 6, 2 / 6])
        assert told.share.sum() == pytest.approx(1)
        assert told.error == pytest.approx(4 / 6 * 0.2 + 2 / 6 * 0.25)
        assert told.crps == pytest.approx((0.95**2 + 3 * 0.05**2 + 2 * 0.25**2) / 6)
        assert told.kl == pytest.approx(0.5)

    def test_certainty_has_its_place(self):
        told = Calibration.of(answers([0.0, 1.0], [0, 1]), bins_at(0.5))
        assert told.share[[0, 9]].tolist() == [0.5, 0.5]
        assert told.error == told.crps == 0

    def test_what_follows_the_end_of_an_episode_does_not_count(self):
        told = Calibration.of(answers([0.5, 0.5, 0.9], [1, 0, 0], live=[1, 1, 0]), bins_at(0.5))
        assert told.error == 0


class TestBinMasses:
    EVIDENCE = BernoulliEvidence(jnp.arange(12) < 5, jnp.arange(12) == 2)

    def test_of_a_conjugate_posterior(self):
        masses = bin_masses(ENV, ENV.posterior, None, self.EVIDENCE, bins_at(0.05, 0.2), NO_INDEX)
        below = stats.beta(1 + 1, 15 + 4).cdf([0, 0.05, 0.2, 1])
        assert np.asarray(masses[0]) == pytest.approx(np.diff(below), abs=1e-5)

    def test_of_an_enumerated_posterior(self):
        env = FruitChoice()
        masses = bin_masses(env, env.posterior, None, None, bins_at(0.5), NO_INDEX)
        assert masses[0].tolist() == pytest.approx([0.3, 0.7])

    def test_given_the_numbers_before(self):
        class Pairs:
            def hidden(self, candidate):
                return candidate

        candidates = jnp.array([[0.1, 0.1], [0.1, 0.9], [0.9, 0.9]])
        posterior = Enumerated(candidates, jnp.log(jnp.array([0.2, 0.2, 0.6])), lambda evidence, one: jnp.zeros(()))
        both = jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, axis=0), bins_at(0.5))
        masses = bin_masses(Pairs(), posterior, None, None, both, jnp.array([0, 0]))
        assert np.asarray(masses) == pytest.approx(np.array([[0.4, 0.6], [0.5, 0.5]]))

    def test_of_a_posterior_that_does_not_tell(self):
        class Mine(Posterior):
            def sample(self, belief, evidence, *, key):
                return None

        with pytest.raises(SamplrError, match="Mine does not say how likely"):
            bin_masses(ENV, Mine(), None, self.EVIDENCE, bins_at(0.5), NO_INDEX)


@pytest.fixture(scope="module")
def judged() -> dict[str, Calibration]:
    """The exact posterior of icy road, and two with another prior: one too careful, one too sure."""
    bins = Bins.of(ENV, 16)

    def judge(alpha, beta):
        student = build_network(ENV, "mlp", (), 0, key=jax.random.key(0))
        posterior = IcyRoadPosterior(alpha, beta)
        return ask(ENV, posterior, ENV.posterior, bins, student, steps=14, episodes=1024, seed=0)

    # By one program: α and β may be anything.
    said = jit(jax.vmap(judge), runs_once=True)(jnp.array([1.0, 1.0, 30.0]), jnp.array([15.0, 3.0, 450.0]))
    said = jax.tree.map(np.asarray, said)
    names = ("exact", "careful", "sure")
    return {name: Calibration.of(jax.tree.map(lambda leaf, i=i: leaf[i], said), bins) for i, name in enumerate(names)}


def test_the_exact_posterior_is_calibrated(judged):
    assert judged["exact"].error < 0.02
    assert judged["exact"].kl == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("name", ["careful", "sure"])
def test_a_wrong_posterior_is_found_out(judged, name):
    assert judged[name].error > 0.1
    assert judged[name].kl > 0.1
    assert judged[name].crps > judged["exact"].crps


def test_too_sure_and_too_careful_are_different_things(judged):
    # What the sure one calls unlikely comes true too often.
    unlikely = (judged["sure"].share > 0.01) & (judged["sure"].predicted < 0.3)
    assert unlikely.any()
    assert (judged["sure"].observed > judged["sure"].predicted)[unlikely].all()


def test_the_curves_are_drawn(judged, tmp_path):
    figure = reliability_figure({"exact": [judged["exact"]], "wrong": [judged["sure"], judged["careful"]]})
    figure.savefig(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    assert figure.axes[0].get_legend().get_texts()[0].get_text().startswith("exact")
