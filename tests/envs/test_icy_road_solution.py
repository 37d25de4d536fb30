"""The exact solution of icy road, against brute force over every road that there is."""

import itertools
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import betaln

from samplr.compiling import jit
from samplr.envs.icy_road import IcyRoad, solution
from samplr.envs.icy_road.world import FAST
from samplr.errors import SamplrError
from samplr.evaluation import evaluate
from samplr.posteriors import BernoulliField
from samplr.student.networks import build_network

ROAD = IcyRoad(segments=4, alpha=0.5, beta=7.0)  # one icy segment makes slow the better choice
ROADS = list(itertools.product((0, 1), repeat=4))


def probability(env: IcyRoad, bits) -> float:
    """P̄(these very bits come first): Beta-binomial, in double precision."""
    ice = sum(bits)
    return float(np.exp(betaln(env.alpha + ice, env.beta + len(bits) - ice) - betaln(env.alpha, env.beta)))


def index(history) -> int:
    """Where a history stands in a table: shorter ones first, then as a binary number."""
    return 2 ** len(history) - 1 + int("0" + "".join(map(str, history)), 2)


def expected_reward(fast: float, icy: int) -> float:
    return (1 - fast) * 1 + fast * (-8 if icy else 2)


def histories(env: IcyRoad):
    for depth in range(env.segments):
        yield from itertools.product((0, 1), repeat=depth)


def random_policy(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(15).astype(np.float32)


def return_on(road, fast, start: int = 0, discount: float = 1.0) -> float:
    """The expected return from a segment on, one road at a time."""
    return sum(
        discount ** (t - start) * expected_reward(fast[index(road[:t])], road[t]) for t in range(start, len(road))
    )


class TestTables:
    def test_order_of_histories(self):
        expected = list(histories(ROAD))
        assert [index(history) for history in expected] == list(range(15))
        assert solution.depths(ROAD).tolist() == [len(history) for history in expected]
        assert solution.icy_counts(ROAD).tolist() == [sum(history) for history in expected]

    def test_predictive(self):
        expected = [probability(ROAD, (*h, 1)) / probability(ROAD, h) for h in histories(ROAD)]
        assert solution.predictive(ROAD) == pytest.approx(np.array(expected), rel=1e-5)

    def test_history_probability(self):
        expected = [probability(ROAD, history) for history in histories(ROAD)]
        assert solution.history_probability(ROAD) == pytest.approx(np.array(expected), rel=1e-5)

    def test_history_probability_sums_to_one_at_each_depth(self):
        env = IcyRoad()
        probability = jit(lambda: solution.history_probability(env), runs_once=True)()
        sums = np.bincount(solution.depths(env), weights=probability)
        assert sums == pytest.approx(np.ones(12), abs=1e-5)


class TestUtility:
    @pytest.mark.parametrize(("seed", "discount"), [(0, 1.0), (1, 1.0), (2, 0.9)])
    def test_by_brute_force_at_every_history(self, seed, discount):
        fast, expected = random_policy(seed), []
        for history in histories(ROAD):
            t = len(history)
            roads = [road for road in ROADS if road[:t] == history]
            weights = [probability(ROAD, road) for road in roads]
            returns = [return_on(road, fast, start=t, discount=discount) for road in roads]
            expected.append(np.average(returns, weights=weights))
        assert solution.utility(ROAD, fast, discount=discount) == pytest.approx(np.array(expected), abs=1e-5)

    @pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
    def test_return_at_rate_by_brute_force(self, rate):
        fast = random_policy(3)
        weights = [rate ** sum(road) * (1 - rate) ** (4 - sum(road)) for road in ROADS]
        expected = sum(w * return_on(road, fast) for w, road in zip(weights, ROADS, strict=True))
        assert float(solution.return_at_rate(ROAD, fast, rate)) == pytest.approx(expected, abs=1e-5)


def utilities_of(env: IcyRoad, policies) -> np.ndarray:
    return np.asarray(jit(jax.vmap(lambda fast: solution.utility(env, fast)[0]), runs_once=True)(policies))


class TestBayesOptimal:
    def test_utility_of_the_laboratory_road(self):
        env = IcyRoad()
        utility = jit(lambda: solution.utility(env, solution.bayes_optimal(env)), runs_once=True)()
        assert float(utility[0]) == pytest.approx(16.87, abs=0.005)

    def test_is_the_best_of_all_policies(self):
        # A road of 3 segments has 7 histories and so 128 deterministic policies: one of them is optimal.
        env = IcyRoad(segments=3, alpha=1.0, beta=12.0)
        policies = jnp.array(list(itertools.product((0.0, 1.0), repeat=7)))
        utilities = utilities_of(env, policies)
        best = solution.bayes_optimal(env)
        assert 0 < best.sum() < 7
        np.testing.assert_array_equal(best, policies[np.argmax(utilities)])

    def test_no_single_change_improves_it(self):
        env = IcyRoad(segments=8)
        best = solution.bayes_optimal(env)
        changed = jnp.abs(best - jnp.eye(len(best)))
        utilities = utilities_of(env, jnp.concatenate([best[None], changed]))
        loss = utilities[0] - utilities[1:]
        # What a change must cost: the probability of coming there, times the difference of the next reward.
        icy = np.asarray(solution.predictive(env), np.float64)
        cost = np.asarray(solution.history_probability(env)) * np.abs(10 * icy - 1)
        assert loss == pytest.approx(cost, abs=1e-5)
        assert (loss > -1e-6).all()

    def test_history_regret_is_zero_for_it_and_never_negative(self):
        assert solution.history_regret(ROAD, solution.bayes_optimal(ROAD)) == pytest.approx(np.zeros(15))
        regret = np.asarray(solution.history_regret(ROAD, random_policy(4)))
        assert (regret > 0).all()


class TestLevels:
    """One road, dry-ice-dry-ice, and a driver who is fast with probability ¼ at first and ½ elsewhere."""

    ROAD_BITS = jnp.array([0, 1, 0, 1], bool)
    POLICY = np.array([0.25, *[0.5] * 14], np.float32)

    def test_level_return_by_hand(self):
        # ¾·1 + ¼·2, ½·1 − ½·8, ½·1 + ½·2, ½·1 − ½·8
        assert float(solution.level_return(ROAD, self.POLICY, self.ROAD_BITS)) == pytest.approx(1.25 - 3.5 + 1.5 - 3.5)

    def test_level_regret_by_hand(self):
        # Told the ice one drives 2 + 1 + 2 + 1.
        assert float(solution.level_regret(ROAD, self.POLICY, self.ROAD_BITS)) == pytest.approx(6 - (-4.25))

    def test_level_return_follows_the_histories_of_its_road(self):
        fast = random_policy(5)
        for road in ROADS:
            expected = return_on(road, fast)
            assert float(solution.level_return(ROAD, fast, jnp.array(road, bool))) == pytest.approx(expected, abs=1e-5)

    def test_grounded_level_regret_is_the_mean_over_its_histories(self):
        fast = random_policy(6)
        regret = np.asarray(solution.history_regret(ROAD, fast))
        expected = np.mean([regret[index(h)] for h in [(), (0,), (0, 1), (0, 1, 0)]])
        found = float(solution.grounded_level_regret(ROAD, fast, self.ROAD_BITS))
        assert found == pytest.approx(expected, abs=1e-6)

    def test_grounded_regret_by_hand_on_a_road_of_one_segment(self):
        # P(icy) = 1/16: fast is worth 2·15/16 − 8/16 = 1.375 and is best; driving slow loses 0.375, ice or no ice.
        env = IcyRoad(segments=1)
        for bits in ([False], [True]):
            assert float(solution.grounded_level_regret(env, jnp.zeros(1), jnp.array(bits))) == pytest.approx(0.375)
        # Against a driver who is told the ice it is 1 on a dry road and 0 on an icy one.
        told = [float(solution.level_regret(env, jnp.zeros(1), jnp.array(bits))) for bits in ([False], [True])]
        assert told == pytest.approx([1, 0])


@pytest.fixture(scope="module", params=[0, 5], ids=["feed-forward", "lstm"])
def student(request):
    """A student whose actions and values differ from history to history."""
    build = jit(lambda key: build_network(ROAD, "mlp", (8,), request.param, key=key), runs_once=True)
    network = build(jax.random.key(1))
    return eqx.tree_at(lambda net: net.actor.weight, network, 200 * network.actor.weight)


@pytest.fixture(scope="module")
def table(student):
    return jit(partial(solution.tabulate, ROAD), runs_once=True)(student)


class TestStudents:
    def test_one_that_sees_its_actions_cannot_be_tabulated(self):
        build = partial(build_network, ROAD, "mlp", (), 4, sees_actions=True)
        network = jit(lambda key: build(key=key), runs_once=True)(jax.random.key(1))
        with pytest.raises(SamplrError, match="no one policy at a history"):
            solution.tabulate(ROAD, network)

    def test_tabulate_asks_what_driving_along_every_road_would_show(self, student, table):
        def drive(bits):
            state, observation = ROAD.reset(None, BernoulliField(jnp.float32(0), bits), key=jax.random.key(0))
            memory, seen = student.initial_memory(), []
            for _ in range(ROAD.segments):
                policy, value, memory = student(observation, memory)
                seen.append((policy.probabilities[0, FAST], value))
                after = ROAD.step(None, state, jnp.int32(FAST), key=jax.random.key(0))
                state, observation = after.state, after.observation
            return jnp.array(seen)

        seen = np.asarray(jit(jax.vmap(drive), runs_once=True)(jnp.array(ROADS, bool)))
        for road, along in zip(ROADS, seen, strict=True):
            for t in range(ROAD.segments):
                at = index(road[:t])
                assert (table.fast[at], table.value[at]) == pytest.approx(tuple(along[t]), abs=1e-5)
        assert np.ptp(table.fast) > 0.1  # there was something to tell apart
        assert np.ptp(table.value) > 0.1

    def test_value_error_is_zero_for_the_exact_values(self, table):
        exact = solution.utility(ROAD, table.fast, discount=0.9)
        perfect = solution.HistoryTable(table.fast, exact)
        assert float(solution.value_error(ROAD, perfect, discount=0.9)) == pytest.approx(0, abs=1e-6)
        # It is a root mean square under P̄: a critic that is 0.5 off everywhere is 0.5 off.
        off = solution.HistoryTable(table.fast, exact + 0.5)
        assert float(solution.value_error(ROAD, off, discount=0.9)) == pytest.approx(0.5, abs=1e-5)
        # And 1 off at the first of 4 decisions only: √(1/4).
        first = solution.HistoryTable(table.fast, exact.at[0].add(1.0))
        assert float(solution.value_error(ROAD, first, discount=0.9)) == pytest.approx(0.5, abs=1e-5)

    def test_simulated_return_agrees_with_the_exact_utility(self, student, table):
        networks = jax.tree.map(lambda leaf: leaf[None], student)
        played = evaluate(ROAD, networks, ROAD.suites()["ground_truth"], episodes=20_000)["ground_truth"]
        estimate = played.estimate("return")
        exact = float(solution.utility(ROAD, table.fast)[0])
        assert estimate.mean == pytest.approx(exact, abs=4 * estimate.standard_error)
        assert estimate.standard_error < 0.1
        assert (played.figures["length"] == ROAD.segments).all()

    def test_oracle_scores_are_the_exact_regrets(self, student, table):
        scores = ROAD.oracle_scores()
        level = ROAD.level_at_rate(0.5, key=jax.random.key(0))
        bits = level.aleatoric.bits
        both = jit(lambda: {name: score(student, level) for name, score in scores.items()}, runs_once=True)()
        assert set(both) == {"exact_regret", "grounded_regret"}
        assert float(both["exact_regret"]) == pytest.approx(
            float(solution.level_regret(ROAD, table.fast, bits)), abs=1e-5
        )
        grounded = float(solution.grounded_level_regret(ROAD, table.fast, bits))
        assert float(both["grounded_regret"]) == pytest.approx(grounded, abs=1e-5)
