"""Learned posteriors: bins, the network, what it learns from, and that nothing leaks through it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from samplr.compiling import jit
from samplr.envs.api import Level, Origin
from samplr.envs.fruit_choice import FruitChoice
from samplr.envs.icy_road import IcyRoad
from samplr.envs.icy_road.world import FAST, IcyRoadState
from samplr.envs.spaces import Box, Discrete, MultiDiscrete, encoded
from samplr.errors import SamplrError
from samplr.grounding import Fictitious, Moment
from samplr.posteriors import BernoulliField
from samplr.posteriors.beliefs import LearnedBeliefs
from samplr.posteriors.learned import (
    POINTS,
    WAVES,
    BeliefNetwork,
    Bins,
    LearnedPosterior,
    _bins,
    _waves,
    cross_entropy,
    first_episodes,
)
from samplr.rollout import collect
from samplr.student.networks import build_network

ENV = IcyRoad()
COUNT = 16
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def bins() -> Bins:
    return Bins.of(ENV, COUNT)


@pytest.fixture(scope="module")
def beliefs(bins) -> LearnedBeliefs:
    return LearnedBeliefs(ENV, bins, "mlp", (16,), 8, 1e-2, 2)


@pytest.fixture(scope="module")
def untrained(beliefs):
    return jit(lambda key: beliefs.init(key=key), runs_once=True)(KEY)


@pytest.fixture(scope="module")
def opinionated(untrained) -> BeliefNetwork:
    """A network that makes something of what it sees: heads with weights drawn at random."""
    drawn = 0.5 * jax.random.normal(jax.random.key(1), untrained.network.heads[0].weight.shape)
    return eqx.tree_at(lambda network: network.heads[0].weight, untrained.network, drawn)


class TestBins:
    def test_few_values_have_a_bin_each(self):
        points, weights = _bins(np.array([0.0, 1.0, 1.0, 5.0]), 8)
        assert points[:, 0].tolist() == points[:, -1].tolist() == [0, 1, 5]
        assert weights.tolist() == [0.25, 0.5, 0.25]

    def test_many_values_lie_between_quantiles(self):
        points, weights = _bins(np.arange(101.0), 4)
        assert points[:, 0].tolist() == [0, 25, 50, 75]
        assert points[:, -1].tolist() == [25, 50, 75, 100]
        assert points[1].tolist() == pytest.approx(np.linspace(25, 50, POINTS))
        assert weights * 101 == pytest.approx([26, 25, 25, 25])

    def test_a_value_that_comes_often_takes_the_place_of_several_bins(self):
        values = np.concatenate([np.zeros(60), np.arange(1.0, 41.0)])
        points, weights = _bins(values, 10)
        assert len(points) == len(weights) < 10
        assert weights.sum() == pytest.approx(1)
        assert weights[0] >= 0.6

    def test_are_equally_likely_under_the_ground_truth(self, bins):
        assert bins.shape == (1, COUNT)
        np.testing.assert_allclose(np.exp(bins.log_prior), 1 / COUNT, rtol=0.01)
        # Beta(1, 15) has the quantile 1 − (1 − p)^(1/15).
        expected = 1 - (1 - np.arange(1, COUNT) / COUNT) ** (1 / 15)
        np.testing.assert_allclose(bins.edges[0], expected, rtol=0.1, atol=2e-3)

    def test_a_number_lies_in_its_bin(self, bins):
        inside = np.asarray(bins.points[0, :, POINTS // 2])
        found = [int(bins.index(jnp.array([number]))[0]) for number in (-1.0, *inside, 2.0)]
        assert found == [0, *range(COUNT), COUNT - 1]

    def test_draws_from_equally_likely_bins_are_draws_from_the_prior(self, bins):
        def draw(key):
            index = jax.random.randint(key, (1,), 0, COUNT)
            return bins.draw(index, key=jax.random.fold_in(key, 1))[0]

        drawn = jit(jax.vmap(draw), runs_once=True)(jax.random.split(KEY, 4000))
        assert stats.kstest(np.asarray(drawn), stats.beta(1, 15).cdf).pvalue > 1e-3

    def test_waves_of_few_values_can_say_anything(self):
        waves = _waves(np.repeat(np.arange(12.0)[:, None], POINTS, axis=1))
        wanted = np.random.default_rng(0).normal(size=12)
        amplitudes = np.linalg.lstsq(waves.T, wanted - wanted.mean(), rcond=None)[0]
        np.testing.assert_allclose(amplitudes @ waves, wanted - wanted.mean(), atol=1e-9)

    def test_waves_of_a_continuous_number_are_few(self):
        assert _waves(np.arange(32.0)[:, None] + np.linspace(0, 1, POINTS)).shape == (WAVES, 32)

    def test_the_right_fruit_has_two(self):
        fruits = Bins.of(FruitChoice(max_rooms=1), COUNT, draws=512)
        assert fruits.points[0, :, 0].tolist() == [0, 1]
        assert np.exp(fruits.log_prior[0, 1]) == pytest.approx(0.7, abs=0.08)


class TestNetwork:
    def test_untrained_it_believes_the_prior(self, bins, untrained):
        memory = untrained.network.begin(jnp.ones(ENV.observation_space.shape))
        np.testing.assert_allclose(
            untrained.network.log_probs(bins, memory, 0, jnp.zeros(0, int)), bins.log_prior[0], atol=1e-6
        )

    def test_step_by_step_it_remembers_what_it_does_at_once(self, bins, opinionated):
        observations = jax.random.normal(KEY, (5, *ENV.observation_space.shape))
        actions = jnp.array([1, 0, 1, 1, 0])
        posterior = LearnedPosterior(ENV, bins, opinionated)
        belief = posterior.init(observations[0])
        found = [belief]
        for observation, action in zip(observations[1:], actions[:-1], strict=True):
            belief = posterior.update(belief, observation, action, jnp.array(False))
            found.append(belief)
        np.testing.assert_allclose(jnp.stack(found), opinionated.unroll(observations, actions), atol=1e-6)

    def test_many_features_move_its_gates_no_more_than_few(self, bins):
        def pull(features: int) -> float:
            network = BeliefNetwork(lambda seen: seen, features, 64, bins, Discrete(2), key=KEY)
            seen = jnp.abs(jax.random.normal(KEY, (features + 2,)))
            return float(jnp.std(network.cell.weight_ih @ seen))

        assert pull(1024) == pytest.approx(pull(32), rel=0.5)

    def test_actions_of_every_kind_are_numbers(self):
        assert encoded(jnp.int32(2), Discrete(3)).tolist() == [0, 0, 1]
        assert encoded(jnp.array([1, 0]), MultiDiscrete((2, 3))).tolist() == [0, 1, 1, 0, 0]
        assert encoded(jnp.array([0.5, -1.0]), Box((2,), -1.0, 1.0)).tolist() == [0.5, -1.0]

    def test_draws_follow_its_probabilities_and_keep_what_was_revealed(self, bins, opinionated):
        state = IcyRoadState(jnp.int32(3), BernoulliField(jnp.float32(0.5), jnp.arange(12) % 2 == 0))
        posterior = LearnedPosterior(ENV, bins, opinionated)
        belief = posterior.init(ENV.observe(None, state))
        draw = jit(jax.vmap(lambda key: posterior.sample(belief, ENV.evidence(state), key=key)), runs_once=True)
        field = draw(jax.random.split(KEY, 4000))
        np.testing.assert_array_equal(field.bits[:, :3], np.tile([True, False, True], (4000, 1)))
        probability = np.exp(np.asarray(opinionated.log_probs(bins, belief, 0, jnp.zeros(0, int)), np.float64))
        assert probability.max() > 2 * probability.min()
        found = np.bincount(np.asarray(jax.vmap(bins.index)(field.rate[:, None]))[:, 0], minlength=COUNT)
        assert stats.chisquare(found, 4000 * probability / probability.sum()).pvalue > 1e-3
        z = (field.bits[:, 3:] - field.rate[:, None]).sum() / np.sqrt(9 * (field.rate * (1 - field.rate)).sum())
        assert abs(float(z)) < 4


class Pair(eqx.Module):
    """Two hidden numbers: a coin with three sides, and a fair one that agrees with it or says nothing."""

    def sample_level(self, *, key):
        side_key, other_key = jax.random.split(key)
        side = jax.random.randint(side_key, (), 0, 3)
        return Level(None, jnp.stack([side, jnp.where(side == 2, jax.random.bernoulli(other_key), side)]))

    def hidden(self, aleatoric):
        return aleatoric.astype(jnp.float32)

    def complete(self, hidden, evidence, *, key):
        return hidden


def test_hidden_numbers_may_depend_on_each_other():
    env = Pair()
    bins = Bins.of(env, 8, draws=2048)
    assert bins.shape == (2, 3)
    assert np.isneginf(bins.log_prior[1, 2])  # the second number has two values only
    network = jit(lambda key: BeliefNetwork(eqx.nn.Identity(), 1, 4, bins, Discrete(2), key=key), runs_once=True)(KEY)
    parameters, structure = eqx.partition(network, eqx.is_inexact_array)
    hidden = env.hidden(jax.vmap(lambda key: env.sample_level(key=key).aleatoric)(jax.random.split(KEY, 512)))
    seen, actions, counted = jnp.zeros((1, 512, 1)), jnp.zeros((1, 512), int), jnp.ones((1, 512), bool)
    optimizer = optax.adam(0.1)

    def loss(parameters):
        return cross_entropy(eqx.combine(parameters, structure), bins, seen, actions, hidden, counted)

    def descend(_, carry):
        parameters, opt_state = carry
        changes, opt_state = optimizer.update(jax.grad(loss)(parameters), opt_state)
        return optax.apply_updates(parameters, changes), opt_state

    def train(parameters):
        trained, _ = jax.lax.fori_loop(0, 200, descend, (parameters, optimizer.init(parameters)))
        return trained, loss(parameters), loss(trained)

    trained, before, after = jit(train, runs_once=True)(parameters)
    # Independent: log 3 + log 2 at best. In truth the second is known in two of three cases.
    assert float(before) == pytest.approx(np.log(6), abs=0.03)
    assert float(after) == pytest.approx(np.log(3) + np.log(2) / 3, abs=0.05)
    posterior = LearnedPosterior(env, bins, eqx.combine(trained, structure))
    belief = posterior.init(jnp.zeros(1))
    drawn = jit(jax.vmap(lambda key: posterior.sample(belief, None, key=key)), runs_once=True)(
        jax.random.split(KEY, 2000)
    )
    decided = np.asarray(drawn)[np.asarray(drawn[:, 0]) < 2]
    assert np.mean(decided[:, 0] == decided[:, 1]) > 0.97


class TestWhatItLearnsFrom:
    STEPS = 24  # two episodes on each road

    @pytest.fixture(scope="class")
    @staticmethod
    def levels():
        drawn = jax.vmap(lambda key: ENV.sample_level(key=key))(jax.random.split(KEY, 6))
        origin = jnp.array([Origin.PRIOR, Origin.REPLAY, Origin.PRIOR, Origin.EDIT, Origin.ADVERSARY, Origin.PRIOR])
        return eqx.tree_at(lambda level: level.origin, drawn, origin.astype(jnp.int32))

    @pytest.fixture(scope="class")
    @staticmethod
    def rollout(levels):
        student = build_network(ENV, "mlp", (), 0, key=KEY)
        return jit(
            lambda key: collect(ENV, Fictitious(), student, levels, TestWhatItLearnsFrom.STEPS, key=key), runs_once=True
        )(KEY)

    @pytest.fixture(scope="class")
    @staticmethod
    def learn(beliefs, untrained):
        program = jit(lambda state, levels, rollout: beliefs.learn(state, levels, rollout), runs_once=True)
        return lambda levels, rollout, state=untrained: program(state, levels, rollout)

    def test_first_episodes(self):
        end = jnp.array([[0, 0, 1], [1, 0, 0], [0, 0, 1], [1, 0, 0]], bool)
        expected = [[1, 1, 1], [1, 1, 0], [0, 1, 0], [0, 1, 0]]
        np.testing.assert_array_equal(first_episodes(end), np.array(expected, bool))

    def test_cross_entropy_is_the_mean_over_what_counts(self, bins, opinionated):
        observations = jax.random.normal(KEY, (3, 2, *ENV.observation_space.shape))
        actions, hidden = jnp.array([[0, 1], [1, 1], [0, 0]]), jnp.array([[0.01], [0.2]])
        counted = jnp.array([[1, 1], [1, 0], [0, 0]], bool)
        terms = []
        for step, worker in ((0, 0), (1, 0), (0, 1)):
            memory = opinionated.unroll(observations[:, worker], actions[:, worker])[step]
            index = int(bins.index(hidden[worker])[0])
            terms.append(-opinionated.log_probs(bins, memory, 0, jnp.zeros(0, int))[index])
        loss = cross_entropy(opinionated, bins, observations, actions, hidden, counted)
        assert float(loss) == pytest.approx(np.mean(terms), rel=1e-5)

    def test_new_levels_teach(self, levels, rollout, learn):
        learned, told = learn(levels, rollout)
        assert float(jnp.abs(learned.network.heads[0].weight).sum()) > 0
        assert float(told["belief/cross_entropy"]) == pytest.approx(np.log(COUNT), rel=0.01)  # before it learned

    def test_levels_that_a_teacher_picked_do_not(self, levels, rollout, learn):
        # Whatever θ′ they had and whatever happened on them: what is learned stays bit for bit the same.
        picked = np.asarray(levels.origin) != Origin.PRIOR
        other_rate = jnp.where(picked, 0.9, levels.aleatoric.rate)
        other_levels = eqx.tree_at(lambda x: x.aleatoric.rate, levels, other_rate)
        other_rollout = eqx.tree_at(
            lambda x: (x.observation, x.action),
            rollout,
            (
                jnp.where(picked[:, None], 7.0, rollout.observation),
                jnp.where(picked[:, None], 1 - rollout.action, rollout.action),
            ),
        )
        assert_same(learn(levels, rollout), learn(other_levels, other_rollout))
        # The test would notice: the same change to one level of the ground truth is learned from.
        noticed = eqx.tree_at(lambda x: x.aleatoric.rate, levels, levels.aleatoric.rate.at[0].set(0.9))
        with pytest.raises(AssertionError):
            assert_same(learn(levels, rollout), learn(noticed, rollout))

    def test_later_episodes_do_not(self, levels, rollout, learn):
        late = ~np.asarray(first_episodes(rollout.end))
        assert late.mean() == 0.5
        other = eqx.tree_at(
            lambda x: (x.observation, x.action),
            rollout,
            (jnp.where(late[..., None], 7.0, rollout.observation), jnp.where(late[..., None], 0, rollout.action)),
        )
        assert_same(learn(levels, rollout), learn(levels, other))

    def test_without_an_example_nothing_changes(self, levels, rollout, learn):
        # Also after some steps, when Adam has a momentum that would carry it on.
        learned, _ = learn(levels, rollout)
        replayed = eqx.tree_at(lambda x: x.origin, levels, jnp.full(6, Origin.REPLAY, jnp.int32))
        again, _ = learn(replayed, rollout, learned)
        assert_same(again, learned)


def assert_same(one, other) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


class TestNoLeak:
    """Law 2 with a learned posterior: the real, unrevealed θ′ does not matter to what the student learns from."""

    @pytest.fixture(scope="class")
    @staticmethod
    def grounding(bins, opinionated):
        return Fictitious(2, LearnedPosterior(ENV, bins, opinionated))

    def test_swapping_what_is_unrevealed_leaves_the_fictitious_transition_alone(self, grounding):
        behind = jnp.array([False, True, False])

        @jit
        def primed(ahead, seed):
            bits = jnp.concatenate([behind, jnp.full(9, ahead)])
            state = IcyRoadState(jnp.int32(3), BernoulliField(jnp.where(ahead, 0.9, 0.0), bits))
            belief = grounding.believed.init(ENV.observe(None, state))
            moment = Moment(None, state, jnp.int32(FAST), state.ice, belief, jax.random.key(1))
            return grounding.step(ENV, moment, key=jax.random.key(seed))[1]

        def seen(step):  # `matched` compares with the real transition, so it may differ
            return step.observation, step.reward, step.terminated, step.weight, step.aleatoric

        rewards = set()
        for seed in range(8):
            icy, dry = primed(True, seed), primed(False, seed)
            assert_same(seen(icy), seen(dry))
            rewards |= set(np.asarray(icy.reward).tolist())
        assert rewards == {2.0, -8.0}  # both happened, so there was something to leak

    def test_no_leak_through_the_collector(self, grounding):
        # Before anything is revealed, other levels with the same keys give the same fictitious transitions.
        def play(levels):
            return collect(ENV, grounding, build_network(ENV, "mlp", (), 0, key=KEY), levels, 1, key=KEY)

        program = jit(play, runs_once=True)
        keys = jax.random.split(KEY, 200)
        icy, dry = (program(jax.vmap(lambda key, q=q: ENV.level_at_rate(q, key=key))(keys)) for q in (0.9, 0.0))
        np.testing.assert_array_equal(icy.primed_reward, dry.primed_reward)
        np.testing.assert_array_equal(icy.primed_value, dry.primed_value)
        assert not np.array_equal(icy.reward, dry.reward)


def test_a_world_that_names_no_hidden_numbers_says_so():
    class Nameless(IcyRoad):
        hidden = IcyRoad.__mro__[1].hidden

    with pytest.raises(SamplrError, match="Nameless does not name the numbers of θ′ that are hidden"):
        Bins.of(Nameless(), 4)
