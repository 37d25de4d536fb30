"""Evaluation: every student plays the same levels with the same luck, and figures come with their error."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr import evaluation
from samplr.compiling import jit
from samplr.envs.api import Environment, TimeStep
from samplr.envs.icy_road import IcyRoad
from samplr.envs.icy_road.world import FAST, SLOW
from samplr.envs.spaces import Box, Discrete
from samplr.errors import SamplrError, SamplrWarning, UnknownNameError
from samplr.evaluation import Condition, Estimate, evaluate, suite_named, suite_of_levels
from samplr.student.networks import build_network

ROAD = IcyRoad(segments=6)
SUITE = ROAD.suites()["ground_truth"]
EPISODES = 60


@pytest.fixture(scope="module")
def drivers():
    """Students that drive fast with a given probability, stacked."""
    network = jit(lambda key: build_network(ROAD, "mlp", (), 0, key=key), runs_once=True)(jax.random.key(0))

    def with_probabilities(*fast: float):
        bias = jnp.array([[math.log(1 - p), math.log(p)] for p in fast])
        stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(fast)), network)
        parts = lambda net: (net.actor.weight, net.actor.bias)  # noqa: E731
        return eqx.tree_at(parts, stacked, (jnp.zeros_like(stacked.actor.weight), bias))

    return with_probabilities


SURE = 1 - 1e-12


@pytest.fixture(scope="module")
def played(drivers):
    """One who is always slow, one always fast, and twice the same who tosses a coin."""
    return evaluate(ROAD, drivers(1e-12, SURE, 0.5, 0.5), SUITE, episodes=EPISODES)["ground_truth"].figures


@pytest.fixture(scope="module")
def sure_of_themselves(drivers):
    """Two who waver, made to take the action they think best."""
    return evaluate(ROAD, drivers(0.6, 0.4), SUITE, episodes=EPISODES, deterministic=True)["ground_truth"].figures


class TestEvaluate:
    def test_one_number_for_each_run_and_episode(self, played):
        assert set(played) == {"return", "length", "icy_share"}
        assert all(values.shape == (4, EPISODES) for values in played.values())

    def test_every_run_plays_the_same_levels(self, played):
        share = played["icy_share"]
        np.testing.assert_array_equal(share, np.broadcast_to(share[0], share.shape))
        assert len(np.unique(share)) > 1

    def test_returns_are_those_of_the_levels(self, played):
        icy = np.rint(6 * played["icy_share"][0])
        np.testing.assert_array_equal(played["return"][0], np.full(EPISODES, 6.0))
        np.testing.assert_array_equal(played["return"][1], 12 - 10 * icy)
        np.testing.assert_array_equal(played["length"], 6)

    def test_the_same_student_has_the_same_luck(self, played):
        np.testing.assert_array_equal(played["return"][2], played["return"][3])
        assert len(np.unique(played["return"][2])) > 2

    def test_the_seed_decides_the_levels_whoever_plays(self, drivers, played, sure_of_themselves):
        # Another batch, of another size, playing another way: the same levels.
        np.testing.assert_array_equal(sure_of_themselves["icy_share"][0], played["icy_share"][0])
        other = evaluate(ROAD, drivers(0.5), SUITE, episodes=EPISODES, seed=1)["ground_truth"].figures
        assert (other["icy_share"][0] != played["icy_share"][0]).any()

    def test_deterministic_takes_the_most_likely_action(self, sure_of_themselves):
        icy = np.rint(6 * sure_of_themselves["icy_share"][0])
        np.testing.assert_array_equal(sure_of_themselves["return"][0], 12 - 10 * icy)  # always fast
        np.testing.assert_array_equal(sure_of_themselves["return"][1], np.full(EPISODES, 6.0))  # always slow

    def test_figures_are_those_of_the_end_of_each_episode(self):
        # Episodes of one batch end at different times; those that ended early must not go on collecting.
        env = Countdown()
        figures = evaluate(env, someone(env), env.suites()["ground_truth"], episodes=50)["ground_truth"].figures
        assert set(figures["from"][0]) == {1, 2, 3, 4, 5}
        np.testing.assert_array_equal(figures["length"], figures["from"])
        np.testing.assert_array_equal(figures["return"], 10 * figures["from"])
        np.testing.assert_array_equal(figures["left"], 0)

    def test_an_episode_that_does_not_end_is_cut_off_and_told(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(evaluation, "LONGEST_EPISODE", 3)
        env = Countdown()
        with pytest.warns(SamplrWarning, match="of 50 episodes of 'ground_truth' had no end .* after 3 steps"):
            figures = evaluate(env, someone(env), env.suites()["ground_truth"], episodes=50)["ground_truth"].figures
        np.testing.assert_array_equal(figures["length"], np.minimum(figures["from"], 3))
        np.testing.assert_array_equal(figures["left"], np.maximum(figures["from"] - 3, 0))


def someone(env):
    """A student as it begins, in a batch of its own."""
    network = jit(lambda key: build_network(env, "mlp", (), 0, key=key), runs_once=True)(jax.random.key(0))
    return jax.tree.map(lambda leaf: leaf[None], network)


class Countdown(Environment):
    """Lasts for θ′ steps, one to five, and pays 10 for each; whole episodes are truncated where θ′ is even."""

    observation_space = Box((1,))
    action_space = Discrete(2)

    def sample_layout(self, *, key):
        return None

    def sample_aleatoric(self, layout, *, key):
        return jax.random.randint(key, (), 1, 6)

    def reset(self, world, aleatoric, *, key):
        return (aleatoric, aleatoric), jnp.zeros(1)

    def step(self, world, state, action, *, key):
        start, left = state[0], state[1] - 1
        over = left == 0
        return TimeStep(
            state=(start, left),
            observation=jnp.zeros(1),
            reward=jnp.float32(10),
            terminated=over & (start % 2 == 1),
            truncated=over & (start % 2 == 0),
            metrics={"from": start.astype(jnp.float32), "left": left.astype(jnp.float32)},
        )


class TestSuites:
    def test_by_name(self):
        assert list(suite_named(ROAD, "fixed_rates")) == ["q=0", "q=0.2", "q=0.4", "q=0.6", "q=0.8"]

    def test_an_unknown_suite_lists_the_known(self):
        with pytest.raises(UnknownNameError, match="unknown suite 'circuits': choose one of fixed_rates, ground_truth"):
            suite_named(ROAD, "circuits")
        assert issubclass(UnknownNameError, SamplrError)

    def test_of_given_levels(self, drivers):
        all_ice, no_ice = (ROAD.level_at_rate(rate, key=jax.random.key(0)) for rate in (1.0, 0.0))
        suite = suite_of_levels([all_ice, no_ice])
        assert list(suite) == ["level 0", "level 1"]
        found = evaluate(ROAD, drivers(SURE), suite, episodes=3)
        assert found["level 0"].figures["return"].tolist() == [[-48] * 3]
        assert found["level 1"].figures["return"].tolist() == [[12] * 3]


class TestEstimate:
    def test_by_hand(self):
        # Deviations −2, −1, 0, 3: variance 14/3, standard error √(14/3)/2.
        estimate = Estimate.of([1, 2, 3, 6])
        assert estimate.mean == 3
        assert estimate.standard_error == pytest.approx(math.sqrt(14 / 3) / 2)
        assert str(estimate) == "3.00 ± 1.08"

    def test_the_error_of_a_single_value_is_unknown(self):
        estimate = Estimate.of([5])
        assert estimate.mean == 5
        assert math.isnan(estimate.standard_error)
        assert str(estimate) == "5.00"

    def test_over_runs_where_there_are_several(self):
        # Episodes of one run share its luck in training: the runs are what is independent.
        condition = Condition({"return": np.array([[1.0, 3.0], [4.0, 6.0], [9.0, 7.0]])})
        assert condition.estimate("return") == Estimate.of([2, 5, 8])

    def test_over_episodes_of_a_single_run(self):
        assert Condition({"return": np.array([[1.0, 2, 3, 6]])}).estimate("return") == Estimate.of([1, 2, 3, 6])

    def test_as_json(self):
        condition = Condition({"return": np.array([[1.0, 3.0], [4.0, 6.0]]), "length": np.array([[2.0]])})
        assert condition.to_json() == {
            "return": {"mean": 3.5, "standard_error": pytest.approx(1.5), "per_run": [2.0, 5.0]},
            # JSON has no NaN.
            "length": {"mean": 2.0, "standard_error": None, "per_run": [2.0]},
        }


def test_actions_have_the_names_the_drivers_assume():
    assert (SLOW, FAST) == (0, 1)
