"""TD errors and advantages by hand, and the value that a recurrent student bootstraps from."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.envs.icy_road import IcyRoad
from samplr.grounding import Fictitious
from samplr.rollout import Rollout, collect
from samplr.student.advantages import discounted_returns, generalized_advantages, td_error
from samplr.student.networks import ActorCritic, build_network
from samplr.student.normalisation import ReturnScale
from samplr.student.ppo import PPO
from samplr.teachers.dr import sample_levels
from samplr.training import _returns_so_far

from .fakes import ppo_of, rollout_of

NO, YES = False, True


advantages = jit(PPO.advantages, runs_once=True)


def advantages_of(rollout: Rollout, **changes: object) -> np.ndarray:
    """The advantages of a rollout's only worker, with γ = λ = 1/2 unless told otherwise: γλ = 1/4."""
    return np.asarray(advantages(ppo_of(**changes), rollout, ReturnScale.empty()))[:, 0]


# --- TD errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terminated", "delta"),
    [
        (NO, 3.5),  # 1 + 0.9·5 − 2
        (YES, -1.0),  # 1 − 2
    ],
)
def test_a_td_error_bootstraps_unless_terminated(terminated: bool, delta: float) -> None:
    one = jnp.ones(1)
    result = td_error(jnp.array([1.0]), jnp.array([terminated]), jnp.array([5.0]), one, jnp.float32(2), 0.9)
    np.testing.assert_allclose(result, delta, rtol=1e-6)


def test_a_td_error_averages_over_weighted_versions() -> None:
    # γ = 1/2. Version 1 terminates: 1. Version 2 goes on: 3 + 2/2 = 4. So 1/4·1 + 3/4·4 − 1 = 2.25: its own reward, its
    # own ending and its own next value belong to each version, and V(oₜ), which is real, is taken off once.
    result = td_error(
        jnp.array([1.0, 3.0]),
        jnp.array([True, False]),
        jnp.array([100.0, 2.0]),
        jnp.array([0.25, 0.75]),
        jnp.float32(1),
        0.5,
    )
    np.testing.assert_allclose(result, 2.25, rtol=1e-6)


# --- advantages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "trace", "expected"),
    [
        # A₂ = 3; A₁ = 2 + 3/4; A₀ = 1 + 2.75/4.
        pytest.param([NO, NO, NO], [1, 1, 1], [1.6875, 2.75, 3], id="one episode"),
        # A₁ = 2 alone: what comes after belongs to another episode. A₀ = 1 + 2/4.
        pytest.param([NO, YES, NO], [1, 1, 1], [1.5, 2, 3], id="a real end cuts the trace"),
        # A₁ = 2 + 1/2·3/4; A₀ = 1 + 2.375/4.
        pytest.param([NO, NO, NO], [1, 0.5, 1], [1.59375, 2.375, 3], id="a trace of one half"),
        # A₀ = 1 + 0.
        pytest.param([NO, NO, NO], [0, 1, 1], [1, 2.75, 3], id="no trace at the first step"),
    ],
)
def test_advantages_are_traced_back_to_the_start_of_an_episode(
    end: list[bool], trace: list[float], expected: list[float]
) -> None:
    delta = jnp.array([1.0, 2.0, 3.0])
    result = generalized_advantages(delta, jnp.array(end), jnp.asarray(trace, jnp.float32), 0.5, 0.5)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_truncation_bootstraps_and_termination_does_not_and_both_cut_the_trace() -> None:
    steps = {"primed_reward": [1, 1], "value": [2, 0], "primed_value": [6, 4]}
    # The second step: δ₁ = 1 + 4/2 − 0 = 3 either way.
    truncated = rollout_of(**steps, truncated=[YES, NO])
    np.testing.assert_allclose(advantages_of(truncated), [1 + 6 / 2 - 2, 3])
    terminated = rollout_of(**steps, terminated=[YES, NO], primed_terminated=[YES, NO])
    np.testing.assert_allclose(advantages_of(terminated), [1 - 2, 3])
    going_on = rollout_of(**steps)
    np.testing.assert_allclose(advantages_of(going_on), [2 + 3 / 4, 3])


def test_a_fictitious_termination_stops_the_bootstrap_but_the_real_episode_goes_on() -> None:
    rollout = rollout_of(primed_reward=[1, 1], value=[2, 0], primed_value=[6, 4], primed_terminated=[YES, NO])
    # δ₀ = 1 − 2 without the 6; yet the real episode did not end, and δ₁ = 3 is traced back: −1 + 3/4.
    np.testing.assert_allclose(advantages_of(rollout), [-0.25, 3])


def test_a_real_termination_cuts_the_trace_though_the_fictitious_episode_would_go_on() -> None:
    rollout = rollout_of(primed_reward=[1, 1], value=[2, 0], primed_value=[6, 4], terminated=[YES, NO])
    # δ₀ = 1 + 6/2 − 2 bootstraps from the fictitious observation; the next step is of another episode.
    np.testing.assert_allclose(advantages_of(rollout), [2, 3])


def test_each_td_error_averages_over_its_versions() -> None:
    rollout = rollout_of(
        primed_reward=[[1, 3], [0, 4]],
        primed_terminated=[[YES, NO], [NO, NO]],
        primed_value=[[100, 2], [2, 6]],
        primed_weight=[[0.25, 0.75], [0.5, 0.5]],
        value=[1, 1],
    )
    # δ₀ = 2.25 as above; δ₁ = 1/2·(0 + 1) + 1/2·(4 + 3) − 1 = 3; A₀ = 2.25 + 3/4.
    np.testing.assert_allclose(advantages_of(rollout), [3, 3])


def test_learning_is_from_primed_rewards_not_from_real_ones() -> None:
    rollout = rollout_of(reward=[50, 50], primed_reward=[1, 1], value=[0, 0], primed_value=[0, 0])
    np.testing.assert_allclose(advantages_of(rollout), [1.25, 1])


def test_the_matched_trace_passes_on_only_over_transitions_that_equal_the_real_ones() -> None:
    rollout = rollout_of(
        primed_reward=[1, 2, 3, 4], value=[0] * 4, primed_value=[0] * 4, matched=[1, 0, 0.5, 1], reward=[0] * 4
    )
    # A₃ = 4; A₂ = 3 + 1/2·4/4 = 3.5; A₁ = 2; A₀ = 1 + 2/4.
    np.testing.assert_allclose(advantages_of(rollout, matched_trace=True), [1.5, 2, 3.5, 4])
    # The full trace, the paper's, does not look: A₂ = 3 + 1; A₁ = 2 + 1; A₀ = 1 + 3/4.
    np.testing.assert_allclose(advantages_of(rollout, matched_trace=False), [1.75, 3, 4, 4])


# --- return normalisation ---------------------------------------------------------------------------------------------

DEVIATION_TWO = ReturnScale(count=jnp.float32(4), mean=jnp.float32(0), squares=jnp.float32(16))


def test_primed_rewards_are_divided_by_the_scale_of_the_real_return_and_clipped() -> None:
    rollout = rollout_of(
        reward=[0] * 4, primed_reward=[4, -3, 100, -100], value=[1] * 4, primed_value=[2] * 4, terminated=[YES] * 4
    )
    normalised = advantages(ppo_of(normalise_returns=True), rollout, DEVIATION_TWO)[:, 0]
    # r/2, clipped at ±10, then + 2/2 − 1 = 0: values are in the scaled units already.
    np.testing.assert_allclose(normalised, [2, -1.5, 10, -10], rtol=1e-6)
    plain = advantages(ppo_of(normalise_returns=False), rollout, DEVIATION_TWO)[:, 0]
    np.testing.assert_allclose(plain, [4, -3, 100, -100], rtol=1e-6)


def test_every_version_of_a_reward_is_clipped_by_itself() -> None:
    rollout = rollout_of(
        primed_reward=[[100, -2]], primed_weight=[[0.5, 0.5]], value=[0], primed_value=[[0, 0]], terminated=[YES]
    )
    # (10 − 1) / 2, not the clipped mean (100 − 2) / 2 / 2.
    result = advantages(ppo_of(normalise_returns=True), rollout, DEVIATION_TWO)
    np.testing.assert_allclose(result, [[4.5]], rtol=1e-6)


def test_the_discounted_return_so_far_begins_anew_with_every_episode() -> None:
    # 1; 2 + 1/2; the episode ended: 4; 8 + 4/2.
    result = discounted_returns(jnp.array([1.0, 2.0, 4.0, 8.0]), jnp.array([NO, YES, NO, NO]), 0.5)
    np.testing.assert_allclose(result, [1, 2.5, 4, 10])


def test_only_real_rewards_and_real_ends_set_the_scale() -> None:
    rollout = rollout_of(
        reward=[1, 2, 4, 8],
        primed_reward=[99] * 4,
        primed_terminated=[YES] * 4,
        truncated=[NO, YES, NO, NO],
        value=[0] * 4,
        primed_value=[0] * 4,
    )
    np.testing.assert_allclose(_returns_so_far(rollout, jnp.float32(0.5))[:, 0], [1, 2.5, 4, 10])


# --- the bootstrap of a recurrent student -----------------------------------------------------------------------------

ROAD = IcyRoad(segments=3, alpha=1.0, beta=1.0, show_counts=False)
WORKERS, STEPS = 3, 7


@pytest.fixture(scope="module")
def student() -> ActorCritic:
    build = jit(lambda key: build_network(ROAD, "mlp", (), 8, key=key), runs_once=True)
    network = build(jax.random.key(1))
    # A critic that says more than a fresh one, so that different memories mean clearly different values.
    return eqx.tree_at(lambda n: n.critic.weight, network, 5 * network.critic.weight)


@pytest.fixture(scope="module")
def recurrent_rollout(student: ActorCritic) -> Rollout:
    """Two episodes and a bit. With exact versions it is known what was seen: version 0 is dry, version 1 icy."""

    def play(key: jax.Array) -> Rollout:
        levels = sample_levels(ROAD, WORKERS, key=key)
        return collect(ROAD, Fictitious("exact"), student, levels, STEPS, key=key)

    return jit(play, runs_once=True)(jax.random.key(0))


def seen_at(position: int, icy: bool) -> jax.Array:
    """What the agent sees after crossing `position` segments the last of which was dry or icy: two one-hot codes."""
    return jnp.concatenate([jnp.eye(4)[position], jnp.array([0.0, not icy, icy])])


def test_the_rollout_has_restarts_and_real_observations_that_are_one_of_the_versions(
    recurrent_rollout: Rollout,
) -> None:
    # What the next test relies on.
    assert recurrent_rollout.start[:, 0].tolist() == [True, False, False, True, False, False, True]
    for t in (0, 1, 3, 4):
        for n in range(WORKERS):
            versions = [seen_at(t % 3 + 1, icy).tolist() for icy in (False, True)]
            assert recurrent_rollout.observation[t + 1, n].tolist() in versions
    np.testing.assert_allclose(jnp.sum(recurrent_rollout.primed_weight, axis=-1), 1, rtol=1e-6)


def test_a_recurrent_student_bootstraps_from_the_memory_after_the_real_observation(
    student: ActorCritic, recurrent_rollout: Rollout
) -> None:
    step = jit(lambda observation, memory: student(observation, memory)[1:], runs_once=True)
    forgetful = []
    for n in range(WORKERS):
        for t in range(STEPS):
            if recurrent_rollout.start[t, n]:
                memory = student.initial_memory()
            value, memory = step(recurrent_rollout.observation[t, n], memory)
            np.testing.assert_allclose(recurrent_rollout.value[t, n], value, rtol=1e-4, atol=1e-5)
            # V(o′ₜ₊₁) continues from the memory after o₁, …, oₜ, all of them real; looking at o′ leaves no trace there.
            versions = [seen_at(t % 3 + 1, icy) for icy in (False, True)]
            expected = [step(version, memory)[0] for version in versions]
            np.testing.assert_allclose(recurrent_rollout.primed_value[t, n], expected, rtol=1e-4, atol=1e-5)
            forgetful += [
                abs(step(v, student.initial_memory())[0] - e) for v, e in zip(versions, expected, strict=True)
            ]
    # That this test can fail: from an empty memory the values are others.
    assert min(forgetful) > 1e-3
    # And so are those of the two versions.
    assert np.min(np.abs(np.diff(recurrent_rollout.primed_value, axis=-1))) > 1e-3
