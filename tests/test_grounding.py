"""Grounding: under `fictitious` the student learns from transitions of the ground truth, whatever the curriculum."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import betaln

from programs import equations, programs_of
from samplr.compiling import jit
from samplr.config import default_config
from samplr.envs.api import Environment, GroundedEnvironment, TimeStep
from samplr.envs.fruit_choice import FruitChoice
from samplr.envs.icy_road import IcyRoad
from samplr.envs.icy_road.world import FAST, SLOW, IcyRoadState
from samplr.envs.spaces import Box, Discrete
from samplr.errors import SamplrError
from samplr.grounding import Fictitious, Grounding, Moment, Naive, PrimedStep, Ungrounded, Versions, as_redrawn
from samplr.posteriors import BernoulliField, Enumerated, Posterior
from samplr.rollout import collect
from samplr.student.networks import build_network
from samplr.training import Training

ENV = IcyRoad()
WORKERS, STEPS = 4400, 24  # two episodes on each level, 105,600 transitions


# --- The key test: the distribution of what the student learns from -------------------------------------------------


def untrained(env: Environment):
    """A student whose policy and value are linear in the observation."""
    return jit(lambda key: build_network(env, "mlp", (), 0, key=key), runs_once=True)(jax.random.key(0))


def telltale(env: IcyRoad):
    """A student that acts at random, and whose value of an observation is a code that gives the observation away."""
    network = untrained(env)
    n = env.segments
    code = jnp.concatenate([jnp.arange(n + 1.0), jnp.array([0.0, 0.0, 100.0, 0.0, 1000.0 * n])])
    return eqx.tree_at(
        lambda net: (net.actor.weight, net.critic.weight),
        network,
        (jnp.zeros_like(network.actor.weight), code[None]),
    )


def decoded(value) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Position, whether the last segment was icy, and the number of icy ones, from a telltale's value."""
    code = np.rint(np.asarray(value)).astype(int)
    return code % 100, code // 100 % 10, code // 1000


def predictive_p_value(position, icy_count, action, next_icy) -> float:
    """Chi-square of 'is the next segment icy' against P̄ given τ, over all groups of (t, N₊, action)."""
    groups = np.stack([position, icy_count, action], axis=-1).reshape(-1, 3)
    found, group = np.unique(groups, axis=0, return_inverse=True)
    size = np.bincount(group)
    icy = np.bincount(group, weights=next_icy.reshape(-1))
    p = (ENV.alpha + found[:, 1]) / (ENV.alpha + ENV.beta + found[:, 0])
    enough = size * np.minimum(p, 1 - p) >= 5
    assert enough.sum() > 50  # else there would be little to reject with
    statistic = ((icy - size * p) ** 2 / (size * p * (1 - p)))[enough].sum()
    return float(stats.chi2(enough.sum()).sf(statistic))


@pytest.fixture(scope="module")
def biased_levels():
    """A curriculum that shifts θ′ a lot: half of every road is ice, where the ground truth has a sixteenth."""
    keys = jax.random.split(jax.random.key(1), WORKERS)
    return jax.vmap(lambda key: ENV.level_at_rate(0.5, key=key))(keys)


@pytest.fixture(scope="module")
def rollouts(biased_levels):
    """A random student on the biased curriculum, under each grounding."""

    def under(grounding):
        return jit(lambda levels, key: collect(ENV, grounding, student, levels, STEPS, key=key), runs_once=True)

    key, student = jax.random.key(2), telltale(ENV)
    programs = {"none": under(Ungrounded()), "naive": under(Naive()), "fictitious": under(Fictitious())}
    found = {name: program(biased_levels, key) for name, program in programs.items()}
    # The other levels share nothing with these but the keys: see the swap test.
    other_keys = jax.random.split(jax.random.key(3), WORKERS)
    other = jax.vmap(lambda key: ENV.level_at_rate(0.2, key=key))(other_keys)
    return found, {name: programs[name](other, key) for name in ("none", "fictitious")}


def learned_from(rollout):
    """Position, ice count and action before, and whether the segment that the primed transition crossed was icy."""
    position, _, icy_count = decoded(rollout.value)
    position_after, next_icy, icy_count_after = decoded(rollout.primed_value[..., 0])
    # The primed observation continues the real history by one segment ...
    np.testing.assert_array_equal(position_after, position + 1)
    np.testing.assert_array_equal(icy_count_after, icy_count + next_icy)
    action = np.asarray(rollout.action[..., 0])
    # ... and the primed reward tells the same story.
    expected = np.where(action == FAST, np.where(next_icy, -8.0, 2.0), 1.0)
    np.testing.assert_array_equal(rollout.primed_reward[..., 0], expected)
    return position, icy_count, action, next_icy


class TestGroundTruthUnderABiasedCurriculum:
    def test_the_curriculum_is_biased(self, rollouts):
        real, _ = rollouts
        assert np.mean(real["fictitious"].real_summaries["ice"]) == pytest.approx(0.5, abs=0.01)
        assert real["fictitious"].reward.size >= 100_000

    def test_fictitious_transitions_follow_the_posterior_predictive(self, rollouts):
        assert predictive_p_value(*learned_from(rollouts[0]["fictitious"])) > 0.001

    def test_naive_transitions_follow_the_posterior_predictive(self, rollouts):
        assert predictive_p_value(*learned_from(rollouts[0]["naive"])) > 0.001

    def test_ungrounded_transitions_do_not(self, rollouts):
        assert predictive_p_value(*learned_from(rollouts[0]["none"])) < 1e-6

    def test_a_small_bias_would_be_noticed(self, rollouts):
        # The power of the test: were one fictitious transition in twenty the real one instead, it would fail.
        position, icy_count, action, next_icy = learned_from(rollouts[0]["fictitious"])
        really_icy = learned_from(rollouts[0]["none"])[3]
        leaked = np.random.default_rng(0).random(next_icy.shape) < 0.05
        assert predictive_p_value(position, icy_count, action, np.where(leaked, really_icy, next_icy)) < 1e-6

    def test_naive_and_none_learn_from_what_really_happened(self, rollouts):
        for name in ("none", "naive"):
            rollout = rollouts[0][name]
            np.testing.assert_array_equal(rollout.primed_reward[..., 0], rollout.reward)
            np.testing.assert_array_equal(rollout.primed_terminated[..., 0], rollout.terminated)
            np.testing.assert_array_equal(rollout.matched, 1)
            np.testing.assert_array_equal(rollout.met_summaries["ice"], rollout.real_summaries["ice"])

    def test_the_real_simulator_goes_on_from_the_real_state(self, rollouts):
        # Same levels, same keys: what really happens under `fictitious` is what happens under `none`.
        fictitious, none = rollouts[0]["fictitious"], rollouts[0]["none"]
        for field in ("observation", "action", "reward", "terminated", "start", "episode_return"):
            np.testing.assert_array_equal(getattr(fictitious, field), getattr(none, field))

    def test_ice_met_before_anything_is_revealed_is_a_draw_from_the_prior(self, rollouts):
        met = np.asarray(rollouts[0]["fictitious"].met_summaries["ice"][0])
        theory = stats.betabinom(12, ENV.alpha, ENV.beta)
        assert met.mean() == pytest.approx(1 / 16, abs=4 * theory.std() / 12 / WORKERS**0.5)

    def test_no_leak_through_the_collector(self, rollouts):
        # The swap test in the large: before anything is revealed, other levels with the same keys give the same
        # fictitious transitions bit for bit, and under `none` they do not.
        levels, others = rollouts
        for field in ("primed_reward", "primed_value", "primed_terminated", "primed_weight"):
            one, other = (np.asarray(getattr(batch["fictitious"], field)[0]) for batch in (levels, others))
            assert one.tobytes() == other.tobytes()
        assert (levels["none"].primed_value[0] != others["none"].primed_value[0]).any()


# --- One transition at a time ---------------------------------------------------------------------------------------


ROAD = IcyRoad(segments=6)


def state_with(bits, position: int, rate: float = 0.5) -> IcyRoadState:
    return IcyRoadState(jnp.int32(position), BernoulliField(jnp.float32(rate), jnp.array(bits, bool)))


@pytest.fixture(scope="module")
def transition():
    """`grounding.step`, compiled once for each grounding and road."""
    programs = {}

    def of(grounding, state, action=FAST, env=ROAD, seed=0):
        def both(state, action, key):
            step_key, posterior_key = jax.random.split(key)
            moment = Moment(None, state, action, state.ice, None, step_key)
            return grounding.step(env, moment, key=posterior_key)

        name = (type(grounding), getattr(grounding, "samples", None), type(env))
        program = programs.setdefault(name, jit(both, runs_once=True))
        return program(state, jnp.int32(action), jax.random.key(seed))

    return of


def as_bytes(tree) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


SAMPLES = [1, 4, "exact"]


class TestSwap:
    """Two states that differ only in what is unrevealed: the segments ahead of the car, and the rate."""

    REVEALED = (True, False, False)

    @pytest.mark.parametrize("samples", SAMPLES)
    @pytest.mark.parametrize("action", [SLOW, FAST])
    def test_fictitious_transition_is_bitwise_the_same(self, transition, samples, action):
        for seed, ahead in enumerate(itertools.product((False, True), repeat=3)):
            mirrored = [not bit for bit in ahead]
            one = state_with([*self.REVEALED, *ahead], 3, rate=0.9)
            other = state_with([*self.REVEALED, *mirrored], 3, rate=0.1)
            primed = [transition(Fictitious(samples), state, action, seed=seed)[1] for state in (one, other)]
            # All but `matched`, which compares with what really happened and so must know it.
            learned = [eqx.tree_at(lambda p: p.matched, p, None) for p in primed]
            assert as_bytes(learned[0]) == as_bytes(learned[1])

    @pytest.mark.parametrize("samples", SAMPLES)
    def test_matched_too_where_the_real_transition_is_the_same(self, transition, samples):
        one = state_with([*self.REVEALED, True, False, False], 3, rate=0.9)
        other = state_with([*self.REVEALED, True, True, True], 3, rate=0.1)
        primed = [transition(Fictitious(samples), state)[1] for state in (one, other)]
        assert as_bytes(primed[0]) == as_bytes(primed[1])

    def test_the_same_swap_shows_under_none(self, transition):
        one, other = (state_with([*self.REVEALED, bit, False, False], 3) for bit in (False, True))
        primed = [transition(Ungrounded(), state)[1] for state in (one, other)]
        assert primed[0].reward != primed[1].reward
        assert (primed[0].observation != primed[1].observation).any()

    def test_what_was_revealed_does_matter(self, transition):
        # Else the test above would also pass for a posterior that ignores the history.
        much_ice, no_ice = state_with([1, 1, 1, 0, 0, 0], 3), state_with([0, 0, 0, 0, 0, 0], 3)
        weights = [transition(Fictitious("exact"), state)[1].weight for state in (much_ice, no_ice)]
        assert weights[0] == pytest.approx([15 / 19, 4 / 19])
        assert weights[1] == pytest.approx([18 / 19, 1 / 19])


class TestSamples:
    STATE = state_with([1, 0, 1, 1, 0, 0], 2)  # one icy and one dry revealed; the next segment is icy

    @pytest.mark.parametrize("samples", [1, 4])
    def test_m_versions_of_equal_weight(self, transition, samples):
        _, primed = transition(Fictitious(samples), self.STATE)
        assert primed.reward.shape == primed.terminated.shape == primed.weight.shape == (samples,)
        assert primed.observation.shape == (samples, *ROAD.observation_space.shape)
        assert primed.weight == pytest.approx(np.full(samples, 1 / samples))
        assert primed.aleatoric.bits.shape == (ROAD.segments,)  # one θ′ stands for what was met

    def test_draws_of_one_transition_differ(self, transition):
        # P(icy) = 2/18: among 40 transitions of four draws some mix ice and dry.
        rewards = [np.asarray(transition(Fictitious(4), self.STATE, seed=seed)[1].reward) for seed in range(40)]
        assert any(len(set(reward)) > 1 for reward in rewards)

    def test_exact_versions_are_weighted_by_the_predictive(self, transition):
        _, primed = transition(Fictitious("exact"), self.STATE)
        assert dict(zip(np.asarray(primed.reward), np.asarray(primed.weight), strict=True)) == pytest.approx(
            {2.0: 16 / 18, -8.0: 2 / 18}
        )

    def test_exact_expectation_is_the_mean_of_many_samples(self, transition):
        _, exact = transition(Fictitious("exact"), self.STATE)
        steps = [transition(Fictitious(4), self.STATE, seed=seed)[1] for seed in range(1000)]
        reward = np.mean([step.weight @ step.reward for step in steps])
        observation = np.mean([step.weight @ step.observation for step in steps], axis=0)
        icy = 2 / 18
        error = np.sqrt(icy * (1 - icy) / 4000)
        assert exact.weight @ exact.reward == pytest.approx(reward, abs=4 * 10 * error)
        np.testing.assert_allclose(exact.weight @ exact.observation, observation, atol=4 * error)

    def test_what_is_met_is_a_draw_also_where_all_versions_are_summed(self, transition):
        met = [transition(Fictitious("exact"), self.STATE, seed=seed)[1].aleatoric.bits for seed in range(100)]
        # Four unrevealed segments, each icy with probability 2/18: a hundred dry roads all but never come.
        ahead = np.stack(met)[:, 2:]
        assert 0 < ahead.mean() < 0.3
        np.testing.assert_array_equal(np.stack(met)[:, :2], [[True, False]] * 100)

    @pytest.mark.parametrize("samples", SAMPLES)
    def test_termination_is_primed_as_well(self, transition, samples):
        last = state_with([0, 0, 0, 0, 0, 1], 5)
        assert transition(Fictitious(samples), last)[1].terminated.all()
        assert not transition(Fictitious(samples), self.STATE)[1].terminated.any()

    def test_any_posterior_with_a_support_can_be_summed(self, transition):
        # All 2⁶ roads enumerated, in place of the two that matter: the same expected transition.
        _, two = transition(Fictitious("exact"), self.STATE)
        _, all_roads = transition(Fictitious("exact"), self.STATE, env=EnumeratedRoad(segments=6))
        assert all_roads.reward.shape == (64,)
        assert all_roads.weight @ all_roads.reward == pytest.approx(float(two.weight @ two.reward), abs=1e-5)
        assert all_roads.matched == pytest.approx(float(two.matched), abs=1e-6)


class TestMatched:
    """The weight of the versions that the agent could not tell from what really happened."""

    def test_exact(self, transition):
        for icy, weight in ((True, 2 / 18), (False, 16 / 18)):
            state = state_with([1, 0, icy, 0, 0, 0], 2)
            assert transition(Fictitious("exact"), state)[1].matched == pytest.approx(weight)

    def test_share_of_the_samples_that_equal_the_real_transition(self, transition):
        shares = set()
        for seed in range(40):
            real, primed = transition(Fictitious(4), TestSamples.STATE, seed=seed)
            assert real.reward == -8
            shares.add(float(primed.matched))
            assert primed.matched == pytest.approx(np.mean(np.asarray(primed.reward) == -8))
        assert len(shares) > 1

    def test_a_difference_in_the_observation_alone_counts(self, transition):
        # Driving slow earns 1 on ice and off it, but the agent sees which it was.
        real, primed = transition(Fictitious("exact"), TestSamples.STATE, SLOW)
        assert (np.asarray(primed.reward) == real.reward).all()
        assert primed.matched == pytest.approx(2 / 18)

    def test_a_difference_in_the_reward_or_the_end_alone_counts(self):
        real = TimeStep(None, jnp.zeros(2), jnp.float32(1), jnp.array(False), jnp.array(False))
        versions = Versions(jnp.zeros(3), jnp.array([0.5, 0.3, 0.2]), jnp.zeros(()))
        redrawn = TimeStep(
            None, jnp.zeros((3, 2)), jnp.array([1.0, 2.0, 1.0]), jnp.array([False, False, True]), jnp.zeros(3, bool)
        )
        assert as_redrawn(real, redrawn, versions).matched == pytest.approx(0.5)


class EnumeratedRoad(IcyRoad):
    """The same road, with the posterior over all its ice patterns written out."""

    @property
    def posterior(self) -> Enumerated:
        patterns = np.array(list(itertools.product((False, True), repeat=self.segments)))
        ones = patterns.sum(axis=1)
        log_prior = betaln(self.alpha + ones, self.beta + self.segments - ones) - betaln(self.alpha, self.beta)

        def log_likelihood(evidence, candidate):
            return jnp.where(jnp.any(evidence.revealed & (evidence.values != candidate.bits)), -jnp.inf, 0.0)

        candidates = BernoulliField(jnp.zeros(len(patterns)), jnp.asarray(patterns))
        return Enumerated(candidates, jnp.asarray(log_prior, jnp.float32), log_likelihood)


# --- Common random numbers ------------------------------------------------------------------------------------------


class NormalPosterior(Posterior):
    def sample(self, belief, evidence, *, key):
        return jax.random.normal(key)


class NoiseState(eqx.Module):
    level: jax.Array
    hidden: jax.Array


class Noise(GroundedEnvironment):
    """A random walk driven by the step's key alone: θ′ is there, is never revealed, and does not matter."""

    posterior = NormalPosterior()
    observation_is_sufficient = True
    observation_space = Box((2,))
    action_space = Discrete(2)

    def sample_layout(self, *, key):
        return None

    def sample_aleatoric(self, layout, *, key):
        return jax.random.normal(key)

    def reset(self, world, aleatoric, *, key):
        state = NoiseState(jax.random.normal(key), aleatoric)
        return state, self.observe(world, state)

    def step(self, world, state, action, *, key):
        walk_key, reward_key, end_key = jax.random.split(key, 3)
        after = NoiseState(state.level + jax.random.normal(walk_key), state.hidden)
        return TimeStep(
            state=after,
            observation=self.observe(world, after),
            reward=jax.random.normal(reward_key),
            terminated=jax.random.bernoulli(end_key, 0.2),
            truncated=jnp.array(False),
        )

    def observe(self, world, state):
        return jnp.stack([state.level, -state.level])

    def evidence(self, state):
        return None

    def substitute(self, state, aleatoric):
        return NoiseState(state.level, aleatoric)


def test_fictitious_steps_share_the_luck_of_the_real_step():
    env, samples = Noise(), 3
    network = untrained(env)
    levels = jax.vmap(lambda key: env.sample_level(key=key))(jax.random.split(jax.random.key(1), 8))
    program = jit(lambda key: collect(env, Fictitious(samples), network, levels, 10, key=key), runs_once=True)
    rollout = program(jax.random.key(2))
    for version in range(samples):
        np.testing.assert_array_equal(rollout.primed_reward[..., version], rollout.reward)
        np.testing.assert_array_equal(rollout.primed_terminated[..., version], rollout.terminated)
    np.testing.assert_allclose(rollout.matched, 1, rtol=1e-6)
    # There was luck to share.
    assert np.unique(rollout.reward).size == rollout.reward.size
    assert 0 < rollout.terminated.sum() < rollout.terminated.size


# --- What cannot be grounded ----------------------------------------------------------------------------------------


class Bandit(Environment):
    """One step, a reward that is θ′ itself; it does not say what a history reveals."""

    observation_space = Box((1,))
    action_space = Discrete(2)

    def sample_layout(self, *, key):
        return None

    def sample_aleatoric(self, layout, *, key):
        return jax.random.normal(key)

    def reset(self, world, aleatoric, *, key):
        return aleatoric, jnp.zeros(1)

    def step(self, world, state, action, *, key):
        return TimeStep(state, jnp.zeros(1), state, jnp.array(True), jnp.array(False))


def test_ungrounded_environment_is_refused():
    message = "Bandit has no posterior, so it cannot be trained with grounding 'fictitious': choose 'none' or 'naive'"
    with pytest.raises(SamplrError, match=message):
        Training(default_config(Bandit(), "samplr"))
    # Without the posterior it is as good an environment as any.
    for name in ("none", "naive"):
        grounding = Training(default_config(Bandit(), "robust_plr", grounding=name)).grounding
        assert grounding.posterior(Bandit()) is None


def test_what_does_not_depend_on_the_hidden_is_computed_once() -> None:
    # Which fruit is right changes nothing that the hero sees, and sight is nearly all of a step's work.
    env = FruitChoice(max_rooms=2)

    def work(grounding: Grounding) -> int:
        def step(key: jax.Array) -> tuple[TimeStep, PrimedStep]:
            level = env.sample_level(key=key)
            world = env.build(level.layout)
            state, _ = env.reset(world, level.aleatoric, key=key)
            return grounding.step(env, Moment(world, state, jnp.int32(0), level.aleatoric, None, key), key=key)

        return numbers_computed(jax.make_jaxpr(step)(jax.random.key(0)).jaxpr)

    assert work(Fictitious("exact")) < 1.2 * work(Ungrounded())


def numbers_computed(jaxpr: Any) -> int:
    """How many numbers a program computes, each turn of a loop counted once."""
    # A broadcast is not computed: whoever reads it reads one number.
    at_work = [
        equation
        for equation in equations(jaxpr)
        if not programs_of(equation) and equation.primitive.name != "broadcast_in_dim"
    ]
    return sum(out.aval.size for equation in at_work for out in equation.outvars)
