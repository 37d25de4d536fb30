"""The rollout: resets, restarts, and what is written down about each step."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from programs import equations
from samplr.compiling import jit
from samplr.config import default_config
from samplr.envs.api import GroundedEnvironment, Level, TimeStep
from samplr.envs.spaces import Box, Discrete
from samplr.grounding import Fictitious, Naive, Ungrounded
from samplr.posteriors import Posterior
from samplr.rollout import Rollout, StepKeys, collect
from samplr.shift import ShiftMonitor
from samplr.student.networks import ActorCritic, build_network
from samplr.training import build_grounding, student_shapes

SHORT, LONG, LIMIT = 1, 5, 3
WORKERS, STEPS = 1000, 12
BUILT = []


class CountingPosterior(Posterior):
    """Its belief is the number of steps since the episode began; a draw shows it."""

    def init(self, observation):
        return jnp.int32(0)

    def update(self, belief, observation, action, done):
        return belief + 1

    def sample(self, belief, evidence, *, key):
        return 100 + belief


class FuseState(eqx.Module):
    time: jax.Array
    luck: jax.Array
    fuse: jax.Array


class Fuse(GroundedEnvironment):
    """An episode ends when its fuse θ′ has burnt down, after 1 step or 5 with equal probability.

    It is cut off after 3, so a short fuse terminates an episode and a long one sees it truncated. The agent sees the
    time since the reset, a number that the reset drew, and the number of its layout.
    """

    posterior = CountingPosterior()
    observation_is_sufficient = False
    observation_space = Box((3,))
    action_space = Discrete(2)

    def sample_layout(self, *, key):
        return jax.random.randint(key, (), 1, 1000)

    def sample_aleatoric(self, layout, *, key):
        return jnp.where(jax.random.bernoulli(key), SHORT, LONG)

    def build(self, layout):
        BUILT.append(layout)
        return {"number": layout.astype(jnp.float32)}

    def reset(self, world, aleatoric, *, key):
        state = FuseState(jnp.int32(0), jax.random.uniform(key), aleatoric)
        return state, self.observe(world, state)

    def step(self, world, state, action, *, key):
        after = FuseState(state.time + 1, state.luck, state.fuse)
        burnt = after.time >= state.fuse
        return TimeStep(
            state=after,
            observation=self.observe(world, after),
            reward=after.time.astype(jnp.float32),
            terminated=burnt,
            truncated=~burnt & (after.time >= LIMIT),
            metrics={"lasted": after.time.astype(jnp.float32)},
        )

    def observe(self, world, state):
        return jnp.stack([state.time.astype(jnp.float32), state.luck, world["number"]])

    def evidence(self, state):
        return None

    def substitute(self, state, aleatoric):
        return FuseState(state.time, state.luck, aleatoric)

    def summaries(self, aleatoric):
        return {"fuse": aleatoric.astype(jnp.float32)}

    def hidden(self, aleatoric):
        return aleatoric.astype(jnp.float32)[None]


ENV = Fuse()


def student_with(memory: int, **kind: bool):
    def build(key):
        return build_network(ENV, "mlp", (), memory, **kind, key=key)

    return jit(build, runs_once=True)(jax.random.key(0))


def telltale():
    """A student that acts at random, and whose value of an observation is time + luck."""
    network = student_with(memory=0)
    return eqx.tree_at(
        lambda net: (net.actor.weight, net.critic.weight),
        network,
        (jnp.zeros_like(network.actor.weight), jnp.array([[1.0, 1.0, 0.0]])),
    )


@pytest.fixture(scope="module")
def levels() -> Level:
    """Half of the workers have a short fuse, half a long one; every layout has its own number."""
    fuse = jnp.where(jnp.arange(WORKERS) % 2 == 0, SHORT, LONG)
    return Level(1 + jnp.arange(WORKERS), fuse, jnp.zeros(WORKERS, jnp.int32))


@pytest.fixture(scope="module")
def rollouts(levels):
    student, found = telltale(), {}
    groundings = {
        "none": Ungrounded(),
        "naive": Naive(),
        "fictitious": Fictitious(),
        "scored": Fictitious(scores="real"),
    }
    for name, grounding in groundings.items():
        program = jit(lambda key, g=grounding: collect(ENV, g, student, levels, STEPS, key=key), runs_once=True)
        BUILT.clear()
        found[name] = jax.tree.map(np.asarray, program(jax.random.key(0)))
        # Worlds are built once per rollout, not at every step or restart.
        assert len(BUILT) == 1
    return found


@pytest.fixture(params=["none", "naive", "fictitious"])
def rollout(request, rollouts):
    return rollouts[request.param]


def test_the_shift_monitor_counts_levels_and_not_their_episodes(rollouts):
    # Half of the levels have a short fuse, and three times as many episodes as the others.
    rollout = rollouts["none"]
    assert (rollout.real_summaries["fuse"][rollout.start] == SHORT).mean() == pytest.approx(0.75)
    monitor = ShiftMonitor.of(ENV)
    counts = monitor.count(rollout.real_summaries, rollout.met_summaries)
    row = monitor.report(jax.tree.map(lambda leaf: leaf[None], counts))
    assert row["shift/fuse/real_mean"] == [(SHORT + LONG) / 2]


class TestScoredByRealSteps:
    def test_levels_are_scored_as_without_grounding(self, rollouts):
        scored, ungrounded = rollouts["scored"].as_scored(), rollouts["none"]
        for name in ("primed_reward", "primed_terminated", "primed_value", "primed_weight", "matched"):
            np.testing.assert_array_equal(getattr(scored, name), getattr(ungrounded, name))

    def test_a_truncated_step_has_the_value_of_what_followed_and_not_of_the_restart(self, rollouts):
        rollout = rollouts["scored"]
        assert rollout.truncated.any()
        time_after, luck = rollout.observation[..., 0] + 1, rollout.observation[..., 1]
        np.testing.assert_allclose(rollout.real_value, time_after + luck, rtol=1e-6)

    def test_the_student_learns_from_the_same_as_ever(self, rollouts):
        for name in ("primed_reward", "primed_terminated", "primed_value", "primed_weight", "matched"):
            found, expected = (getattr(rollouts[which], name) for which in ("scored", "fictitious"))
            np.testing.assert_array_equal(found, expected)
        assert (rollouts["scored"].primed_terminated != rollouts["none"].primed_terminated).any()

    def test_otherwise_by_what_the_student_learns_from(self, rollouts):
        assert rollouts["fictitious"].as_scored() is rollouts["fictitious"]


class TestEveryGrounding:
    def test_begins_from_a_reset(self, rollout):
        assert rollout.start[0].all()
        np.testing.assert_array_equal(rollout.observation[0, :, 0], 0)

    def test_an_episode_starts_where_the_last_one_ended(self, rollout):
        np.testing.assert_array_equal(rollout.start[1:], rollout.end[:-1])
        assert rollout.end[:-1].any()
        np.testing.assert_array_equal(rollout.start, rollout.observation[..., 0] == 0)

    def test_restarts_on_the_same_layout_with_fresh_luck(self, rollout):
        luck, number = rollout.observation[..., 1], rollout.observation[..., 2]
        np.testing.assert_array_equal(number, np.broadcast_to(1 + np.arange(WORKERS), number.shape))
        changed = luck[1:] != luck[:-1]
        np.testing.assert_array_equal(changed, rollout.start[1:])

    def test_terminated_and_truncated_are_kept_apart(self, rollout):
        short = rollout.real_summaries["fuse"] == SHORT
        time_after = rollout.observation[..., 0] + 1
        np.testing.assert_array_equal(rollout.terminated, short)
        np.testing.assert_array_equal(rollout.truncated, ~short & (time_after == LIMIT))
        np.testing.assert_array_equal(rollout.end, rollout.terminated | rollout.truncated)

    def test_episode_return_sums_from_the_reset(self, rollout):
        # Rewards are 1, 2, 3: after each step of an episode it has collected 1, 3, 6.
        time = rollout.observation[..., 0].astype(int)
        np.testing.assert_array_equal(rollout.episode_return, np.array([1, 3, 6])[time])
        np.testing.assert_array_equal(rollout.metrics["lasted"], time + 1)

    def test_next_observation_is_the_true_one_also_at_the_end(self, rollout):
        # V(o′) = time + luck of the same episode, one step later; after a reset it would be below 1.
        np.testing.assert_allclose(rollout.primed_value[..., 0], rollout.value + 1, rtol=1e-6)
        assert (rollout.value[1:][rollout.end[:-1]] < 1).all()

    def test_an_action_is_recorded_with_its_probability(self, rollout):
        np.testing.assert_allclose(rollout.log_prob, np.log(0.5), rtol=1e-6)
        assert set(np.unique(rollout.action)) == {0, 1}


@pytest.mark.parametrize("name", ["none", "fictitious"])
def test_none_and_fictitious_keep_the_level_at_restarts(rollouts, levels, name):
    real = rollouts[name].real_summaries["fuse"]
    np.testing.assert_array_equal(real, np.broadcast_to(levels.aleatoric, real.shape))
    # And so a short fuse, which restarts three times as often, begins three quarters of the episodes.
    assert real[rollouts[name].start].mean() == pytest.approx(0.75 * SHORT + 0.25 * LONG)


class TestNaiveRedraws:
    """Half of all *episodes* have a short fuse, though these take a quarter of the time."""

    def test_the_level_has_no_say(self, rollouts, levels):
        first = rollouts["naive"].real_summaries["fuse"][0] == SHORT
        for given in (SHORT, LONG):
            # 500 fair coins: 4 standard errors are 0.09.
            assert first[np.asarray(levels.aleatoric) == given].mean() == pytest.approx(0.5, abs=0.09)

    def test_short_episodes_do_not_bias_the_fuse(self, rollouts):
        start, short = rollouts["naive"].start, rollouts["naive"].real_summaries["fuse"] == SHORT
        # Wald: whether an episode begins inside the rollout depends on the fuses before its own, so the excess of
        # short fuses over half of a worker's episodes has mean 0; workers are independent.
        excess = (start * (short - 0.5)).sum(axis=0)
        assert abs(excess.mean()) < 4 * excess.std() / WORKERS**0.5
        # Were θ′ drawn once for each rollout, short fuses would begin three quarters: 25 standard errors off.
        assert 0.25 * start.sum() / WORKERS > 20 * excess.std() / WORKERS**0.5

    def test_the_fuse_is_redrawn_at_every_restart(self, rollouts):
        start, short = rollouts["naive"].start, rollouts["naive"].real_summaries["fuse"] == SHORT
        for previous in (True, False):
            restarted = start[1:] & (short[:-1] == previous)
            count = restarted.sum()
            assert short[1:][restarted].mean() == pytest.approx(0.5, abs=4 * 0.5 / count**0.5)

    def test_the_fuse_is_kept_within_an_episode(self, rollouts):
        real, start = rollouts["naive"].real_summaries["fuse"], rollouts["naive"].start
        changed = real[1:] != real[:-1]
        assert changed.any()
        assert not (changed & ~start[1:]).any()


def test_what_is_luck_in_a_step_has_a_key_each():
    keys = StepKeys.of(jax.random.key(0))
    assert len({np.asarray(jax.random.key_data(key)).tobytes() for key in vars(keys).values()}) == 4


class WatchingPosterior(CountingPosterior):
    """Its belief is the time that was last seen."""

    def init(self, observation):
        return observation[0].astype(jnp.int32)

    def update(self, belief, observation, action, done):
        return observation[0].astype(jnp.int32)


def test_the_belief_has_seen_the_observation_that_is_acted_on(levels):
    few, student = jax.tree.map(lambda leaf: leaf[:8], levels), telltale()
    grounding = Fictitious(1, WatchingPosterior())
    rollout = jit(lambda key: collect(ENV, grounding, student, few, STEPS, key=key), runs_once=True)(jax.random.key(0))
    np.testing.assert_array_equal(rollout.met_summaries["fuse"], 100 + rollout.observation[..., 0])


class Dial(Fuse):
    """The same with a continuous action between −1 and 3."""

    action_space = Box((1,), -1.0, 3.0)


def test_the_probability_of_a_continuous_action_is_that_of_what_was_sampled(levels):
    few = jax.tree.map(lambda leaf: leaf[:8], levels)
    student = jit(lambda key: build_network(Dial(), "mlp", (), 0, key=key), runs_once=True)(jax.random.key(0))

    def play(key):
        rollout = collect(Dial(), Ungrounded(), student, few, STEPS, key=key)
        policy, _ = jax.vmap(student.unroll, in_axes=1, out_axes=1)(rollout.observation, rollout.start, rollout.action)
        return rollout, jax.vmap(jax.vmap(lambda p, a: p.log_prob(a)))(policy, rollout.action)

    rollout, log_prob = jit(play, runs_once=True)(jax.random.key(0))
    assert ((rollout.action > 0) & (rollout.action < 1)).all()
    np.testing.assert_allclose(rollout.log_prob, log_prob, atol=1e-4)


def test_the_belief_follows_the_episode_and_restarts_with_it(rollouts):
    rollout = rollouts["fictitious"]
    np.testing.assert_array_equal(rollout.met_summaries["fuse"], 100 + rollout.observation[..., 0])
    # The fuses that were met never burn down, but the real episodes end all the same.
    assert not rollout.primed_terminated.any()
    assert rollout.terminated.any()


class TestRecurrentStudent:
    @pytest.fixture(scope="class", params=[False, True], ids=["", "sees actions"])
    @staticmethod
    def student(request):
        network = student_with(memory=4, sees_actions=request.param)
        # A policy that depends on the memory, so that its log-probabilities tell about it.
        return eqx.tree_at(lambda net: net.actor.weight, network, 100 * network.actor.weight)

    @pytest.fixture(scope="class")
    @staticmethod
    def remembered(student):
        levels = jax.vmap(lambda key: ENV.sample_level(key=key))(jax.random.split(jax.random.key(1), 16))
        levels = eqx.tree_at(lambda level: level.layout, levels, 0.01 * levels.layout)
        program = jit(lambda key: collect(ENV, Ungrounded(), student, levels, 7, key=key), runs_once=True)
        return program(jax.random.key(2))

    def test_memory_is_emptied_at_restarts(self, student, remembered):
        # `unroll` empties the memory at every start; the learner relies on the two being the same.

        def unroll(observation, start, action):
            policy, value = student.unroll(observation, start, action)
            return value, jax.vmap(lambda p, a: p.log_prob(a))(policy, action)

        unroll_all = jit(jax.vmap(unroll, in_axes=1, out_axes=1), runs_once=True)
        value, log_prob = unroll_all(remembered.observation, remembered.start, remembered.action)
        np.testing.assert_allclose(remembered.value, value, atol=1e-6)
        np.testing.assert_allclose(remembered.log_prob, log_prob, atol=1e-5)

    def test_primed_value_continues_from_the_real_memory(self, remembered):
        # Under `none` o′ₜ₊₁ is oₜ₊₁: within an episode the next step must find the very same value.
        goes_on = ~np.asarray(remembered.end[:-1])
        assert goes_on.sum() > 10
        primed, value = np.asarray(remembered.primed_value[:-1, :, 0]), np.asarray(remembered.value[1:])
        np.testing.assert_allclose(primed[goes_on], value[goes_on], atol=1e-6)
        assert np.abs(primed - value)[~goes_on].max() > 1e-3


def test_an_informed_critic_is_told_the_fuse_of_the_running_episode(levels):
    # Its value is the fuse, as far as that is above the usual one: 3, for short ones and long ones are as likely.
    student = student_with(memory=0, informed_critic=True)
    student = eqx.tree_at(
        lambda net: (net.critic.weight, net.critic.bias, net.usual_hidden),
        student,
        (jnp.zeros_like(student.critic.weight), jnp.array([0.0, 1.0]), jnp.array([3.0])),
    )
    program = jit(lambda key: collect(ENV, Naive(), student, levels, STEPS, key=key), runs_once=True)
    rollout = jax.tree.map(np.asarray, program(jax.random.key(0)))
    fuse = rollout.real_summaries["fuse"]
    # θ′ is redrawn at every restart, and the value of the last observation is still that of the old one.
    assert (fuse[1:] != fuse[:-1]).any()
    np.testing.assert_array_equal(rollout.hidden[..., 0], fuse)
    np.testing.assert_array_equal(rollout.value, fuse - 3)
    np.testing.assert_array_equal(rollout.primed_value[..., 0], fuse - 3)


def test_a_critic_that_is_not_informed_leaves_no_trace_of_what_is_hidden(rollouts):
    assert all(rollout.hidden is None for rollout in rollouts.values())


@pytest.mark.parametrize("name", ["icy_road", "black_ice", "black_ice_sketch", "fruit_choice"])
def test_no_loop_of_a_rollout_asks_the_host_whether_it_goes_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A loop of unknown length, such as one that draws until all draws are accepted, stalls a GPU after every turn.
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    config = default_config(name, "samplr", workers=1, student__minibatches=1)
    levels = jax.eval_shape(
        lambda: jax.tree.map(lambda leaf: leaf[None], config.env.sample_level(key=jax.random.key(0)))
    )
    students = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), student_shapes(config))

    def roll(network: ActorCritic, level: Level) -> Rollout:
        return collect(config.env, build_grounding(config), network, level, 2, key=jax.random.key(0))

    names = {equation.primitive.name for equation in equations(jax.make_jaxpr(roll)(students, levels).jaxpr)}
    assert "scan" in names
    assert not names & {"while", "random_gamma"}
