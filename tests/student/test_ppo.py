"""PPO: its loss by hand, its batches, and that it learns."""

import functools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from samplr.compiling import jit
from samplr.envs.api import Environment
from samplr.envs.spaces import Discrete
from samplr.grounding import Ungrounded
from samplr.rollout import collect
from samplr.student import ppo as ppo_module
from samplr.student.distributions import Categorical
from samplr.student.networks import ActorCritic, MLPEncoder, build_network
from samplr.student.normalisation import ReturnScale
from samplr.student.ppo import PPO, Batch, Losses
from samplr.teachers.dr import sample_levels

from .fakes import ppo_of, rollout_of
from .worlds import AimBandit, ChoiceBandit, LockBandit, Recall

# --- the loss by hand -------------------------------------------------------------------------------------------------


class Told(eqx.Module):
    """A "network" that says what the observation tells it to: logits and a value."""

    def unroll(
        self, observations: dict[str, jax.Array], starts: jax.Array, raw_actions: jax.Array, hidden: None
    ) -> tuple[Categorical, jax.Array]:
        return Categorical(observations["logits"][:, None]), observations["value"]


def batch_of(
    *,
    ratio: Sequence[float] = (1, 1, 1, 1),
    advantage: Sequence[float] = (0, 0, 0, 0),
    value: Sequence[float] = (0, 0, 0, 0),
    old_value: Sequence[float] = (0, 0, 0, 0),
    target: Sequence[float] = (0, 0, 0, 0),
    probability: float = 0.5,
) -> Batch:
    """Four steps in which action 0 of two was taken; its probability was smaller by the `ratio` when it was taken."""

    def one_sequence(values: Sequence[float]) -> jax.Array:
        return jnp.asarray(values, jnp.float32)[:, None]

    logits = jnp.broadcast_to(jnp.log(jnp.array([probability, 1 - probability])), (4, 1, 2))
    return Batch(
        observation={"logits": logits, "value": one_sequence(value)},
        action=jnp.zeros((4, 1, 1), jnp.int32),
        log_prob=jnp.log(probability) - jnp.log(one_sequence(ratio)),
        value=one_sequence(old_value),
        start=jnp.zeros((4, 1), bool),
        advantage=one_sequence(advantage),
        target=one_sequence(target),
    )


loss = jit(PPO.loss, runs_once=True)


def losses_of(batch: Batch, **changes: Any) -> tuple[float, Losses]:
    total, losses = loss(ppo_of(**changes), Told(), batch)
    return float(total), losses


def test_the_surrogate_is_clipped_where_that_makes_it_worse() -> None:
    batch = batch_of(ratio=[1.5, 1.5, 0.5, 0.5], advantage=[2, -2, 2, -2])
    # With a clip range of 0.2: min(1.5·2, 1.2·2) = 2.4; min(−3, −2.4) = −3; min(1, 1.6) = 1; min(−1, −1.6) = −1.6.
    _, losses = losses_of(batch, clip=0.2)
    np.testing.assert_allclose(losses.policy, -(2.4 - 3 + 1 - 1.6) / 4, rtol=1e-5)
    # With a range of 1 nothing is clipped: 3 − 3 + 1 − 1.
    _, losses = losses_of(batch, clip=1.0)
    np.testing.assert_allclose(losses.policy, 0, atol=1e-6)


def test_the_kl_estimate_is_by_hand() -> None:
    # ratio − 1 − log ratio: 1.5 gives 0.5 − 0.405465, 0.5 gives −0.5 + 0.693147.
    _, losses = losses_of(batch_of(ratio=[1.5, 1.5, 0.5, 0.5]))
    np.testing.assert_allclose(losses.kl, (0.094535 + 0.193147) / 2, rtol=1e-4)


def test_the_value_loss_is_half_the_mean_squared_error() -> None:
    batch = batch_of(value=[1, 1, 1, 1], old_value=[0.5, 0.9, 0.5, 1], target=[2, 0, 0, 1])
    _, losses = losses_of(batch, clip_values=False)
    # Half of (1 + 1 + 1 + 0) / 4: where the values were before does not matter.
    np.testing.assert_allclose(losses.value, 0.375, rtol=1e-6)


def test_the_clipped_value_loss_takes_the_worse_of_the_value_and_the_value_near_the_old_one() -> None:
    batch = batch_of(value=[1, 1, 1, 1], old_value=[0.5, 0.9, 0.5, 1], target=[2, 0, 0, 1])
    _, losses = losses_of(batch, clip_values=True, clip=0.2)
    # Near the old values: 0.7, 1, 0.7, 1. Errors there: 1.3² = 1.69, 1, 0.49, 0; the worse of each: 1.69, 1, 1, 0.
    np.testing.assert_allclose(losses.value, 3.69 / 4 / 2, rtol=1e-5)


def test_the_total_adds_the_value_loss_and_takes_off_the_entropy() -> None:
    batch = batch_of(advantage=[1, 1, 1, 3], value=[2, 2, 2, 2])
    # Policy loss −(1 + 1 + 1 + 3)/4 = −1.5; value loss 4/2 = 2; entropy of a fair coin log 2.
    total, losses = losses_of(batch, value_coefficient=0.5, entropy_coefficient=0.1)
    np.testing.assert_allclose(losses.entropy, np.log(2), rtol=1e-6)
    np.testing.assert_allclose(total, -1.5 + 0.5 * 2 - 0.1 * np.log(2), rtol=1e-6)


# --- minibatches ------------------------------------------------------------------------------------------------------

STEPS, WORKERS = 3, 4


def marked_batch() -> Batch:
    """A batch in which every step is marked by a number of its own: 10·worker + step, in every leaf."""
    mark = 10.0 * jnp.arange(WORKERS) + jnp.arange(STEPS)[:, None]
    return Batch(
        observation=jnp.stack([mark, -mark], axis=-1),
        action=mark[..., None].astype(jnp.int32),
        log_prob=mark,
        value=mark,
        start=mark % 10 == 0,
        advantage=mark,
        target=mark,
    )


ALL_STEPS = sorted(10 * worker + step for worker in range(WORKERS) for step in range(STEPS))


_minibatches = jit(PPO._minibatches, runs_once=True, static_argnums=2)


def minibatches(recurrent: bool, count: int, seed: int = 0) -> Batch:
    return _minibatches(ppo_of(minibatches=count), marked_batch(), recurrent, key=jax.random.key(seed))


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("recurrent", [False, True])
def test_minibatches_hold_every_step_exactly_once(recurrent: bool, count: int) -> None:
    split = minibatches(recurrent, count)
    assert split.log_prob.shape[0] == count
    assert sorted(np.ravel(split.log_prob)) == ALL_STEPS
    # All leaves were shuffled together.
    mark = np.asarray(split.log_prob)
    np.testing.assert_array_equal(split.observation, np.stack([mark, -mark], axis=-1))
    np.testing.assert_array_equal(split.action, mark[..., None])
    np.testing.assert_array_equal(split.start, mark % 10 == 0)
    for leaf in (split.value, split.advantage, split.target):
        np.testing.assert_array_equal(leaf, mark)


def test_minibatches_of_a_student_without_memory_are_single_steps_from_anywhere() -> None:
    split = minibatches(recurrent=False, count=2)
    assert split.log_prob.shape == (2, 1, 6)
    # The steps of one worker are not kept together.
    one, other = (set(np.ravel(half) // 10) for half in split.log_prob)
    assert one & other


def test_minibatches_of_a_recurrent_student_are_whole_sequences_in_order() -> None:
    split = minibatches(recurrent=True, count=2)
    assert split.log_prob.shape == (2, STEPS, 2)
    sequences = np.moveaxis(np.asarray(split.log_prob), 1, 2).reshape(WORKERS, STEPS)
    assert sorted(map(tuple, sequences.tolist())) == [(w, w + 1, w + 2) for w in (0, 10, 20, 30)]


@pytest.mark.parametrize("recurrent", [False, True])
def test_minibatches_are_shuffled_anew_with_every_key(recurrent: bool) -> None:
    orders = {tuple(np.ravel(minibatches(recurrent, 2, seed).log_prob)) for seed in range(5)}
    assert len(orders) > 1


# --- pieces of a minibatch --------------------------------------------------------------------------------------------


def steps_of_one_input(count: int) -> Batch:
    """Single steps that differ in all that the loss depends on; an observation has four bytes."""
    columns = jax.random.normal(jax.random.key(1), (5, 1, count))
    return Batch(
        observation=columns[0][..., None],
        action=(columns[1] > 0).astype(jnp.int32)[..., None],
        log_prob=-jnp.abs(columns[1]),
        value=columns[2],
        start=jnp.zeros((1, count), bool),
        advantage=columns[3],
        target=columns[4],
    )


@pytest.mark.parametrize(
    ("steps", "cached", "pieces"), [(12, 48, 1), (12, 47, 2), (12, 16, 3), (12, 15, 4), (12, 3, 12), (7, 27, 7)]
)
def test_pieces_are_the_fewest_of_one_size_that_a_cpu_holds(
    steps: int, cached: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ppo_module, "_CACHED", cached)
    assert ppo_module._pieces(steps_of_one_input(steps)) == pieces
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert ppo_module._pieces(steps_of_one_input(steps)) == 1


def test_a_gradient_in_pieces_is_that_of_the_whole(network: ActorCritic, monkeypatch: pytest.MonkeyPatch) -> None:
    ppo, batch = ppo_of(clip_values=True, entropy_coefficient=0.1), steps_of_one_input(12)

    def gradient(cached: int) -> tuple[ActorCritic, Losses]:
        monkeypatch.setattr(ppo_module, "_CACHED", cached)
        # A function of its own, so that it is traced anew.
        return jit(lambda: ppo.gradient(network, batch), runs_once=True)()

    whole = gradient(48)
    assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(whole[0]))
    for in_pieces in (gradient(16), gradient(3)):
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), in_pieces, whole)


def test_sequences_of_a_recurrent_student_stay_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo_module, "_CACHED", 1)
    env = Recall()
    network = build_network(env, "mlp", (8,), 4, key=jax.random.key(0))
    seen, loss = [], PPO.loss

    def noted(ppo: PPO, network: ActorCritic, batch: Batch) -> Any:
        seen.append(batch.log_prob.shape)
        return loss(ppo, network, batch)

    monkeypatch.setattr(PPO, "loss", noted)
    levels = sample_levels(env, WORKERS, key=jax.random.key(1))

    def update(key: jax.Array) -> Losses:
        rollout = collect(env, Ungrounded(), network, levels, STEPS, key=key)
        return ppo_of().update(network, ppo_of().init(network), rollout, rollout.reward, key=key)[2]

    jax.eval_shape(update, jax.random.key(2))
    assert set(seen) == {(STEPS, WORKERS)}


# --- updates ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network() -> ActorCritic:
    """Two arms and one input, no hidden layer: arm 0 is a little more likely than arm 1, and the value is 1."""
    key = jax.random.key(0)
    actor, critic = (eqx.nn.Linear(1, outputs, key=key) for outputs in (2, 1))
    actor = eqx.tree_at(lambda x: (x.weight, x.bias), actor, (jnp.array([[0.3], [-0.1]]), jnp.zeros(2)))
    critic = eqx.tree_at(lambda x: (x.weight, x.bias), critic, (jnp.array([[1.0]]), jnp.zeros(1)))
    return ActorCritic(MLPEncoder(1, (), key=key), None, None, None, actor, critic, Discrete(2))


def rollout_on(network: ActorCritic, *, value: float = 0.0) -> Any:
    """Four steps of observation 1 in which arms 0, 1, 0, 1 were pulled, with their present probabilities."""
    rollout = rollout_of(primed_reward=[0] * 4, value=[value] * 4, primed_value=[0] * 4)
    observation, action = jnp.ones((4, 1, 1)), jnp.array([0, 1, 0, 1])[:, None, None]
    policy, _, _ = network(jnp.ones(1), None)
    log_prob = jax.nn.log_softmax(policy.logits[0])[action[..., 0]]
    return eqx.tree_at(
        lambda r: (r.observation, r.action, r.log_prob), rollout, (observation, action.astype(jnp.int32), log_prob)
    )


@functools.partial(jit, runs_once=True)
def updated(ppo: PPO, network: ActorCritic, advantages: jax.Array, value: float = 0.0) -> tuple[ActorCritic, Losses]:
    network, _, losses = ppo.update(
        network, ppo.init(network), rollout_on(network, value=value), advantages[:, None], key=jax.random.key(0)
    )
    return network, losses


def step_length(before: ActorCritic, after: ActorCritic) -> float:
    return float(optax.tree.norm(jax.tree.map(jnp.subtract, *(eqx.filter(n, eqx.is_array) for n in (after, before)))))


def test_gradients_are_scaled_down_to_the_maximal_norm_and_smaller_ones_left_alone(network: ActorCritic) -> None:
    # Adam's first step is η·g / (|g| + ε) in every coordinate. With an ε far larger than any gradient that is η·g/ε: a
    # step as long as the gradient that Adam was given.
    huge = 1e4
    advantages = jnp.array([1.0, -1.0, 2.0, 0.0])

    def length(max_gradient_norm: float) -> tuple[float, float]:
        ppo = ppo_of(learning_rate=huge, adam_epsilon=huge, max_gradient_norm=max_gradient_norm)
        after, losses = updated(ppo, network, advantages)
        return step_length(network, after), float(losses.gradient_norm)

    unclipped, norm = length(1e9)
    assert norm > 0.1
    assert unclipped == pytest.approx(norm, rel=1e-3)
    clipped, told = length(norm / 10)
    assert clipped == pytest.approx(norm / 10, rel=1e-3)
    # The norm in the log is that before clipping.
    assert told == pytest.approx(norm, rel=1e-5)
    assert length(norm * 1.1)[0] == pytest.approx(norm, rel=1e-3)


def test_every_epoch_has_a_shuffle_of_its_own(network: ActorCritic, monkeypatch: pytest.MonkeyPatch) -> None:
    shuffle, orders = jax.random.permutation, []

    def noted(key: jax.Array, size: int) -> jax.Array:
        order = shuffle(key, size)
        jax.debug.callback(lambda order: orders.append(tuple(order.tolist())), order)
        return order

    monkeypatch.setattr(jax.random, "permutation", noted)
    ppo = ppo_of(epochs=4)
    update = jit(lambda key: ppo.update(network, ppo.init(network), rollout_on(network), jnp.ones((4, 1)), key=key)[2])
    jax.block_until_ready(update(jax.random.key(0)))
    jax.effects_barrier()
    assert len(orders) == 4
    assert len(set(orders)) > 1


def test_a_positive_entropy_coefficient_makes_the_policy_more_random(network: ActorCritic) -> None:
    def entropy(student: ActorCritic) -> float:
        return float(student(jnp.ones(1), None)[0].entropy())

    nothing_to_learn = jnp.zeros(4)
    for coefficient, more_random in [(1.0, True), (-1.0, False)]:
        ppo = ppo_of(entropy_coefficient=coefficient, value_coefficient=0.0)
        after, _ = updated(ppo, network, nothing_to_learn)
        assert (entropy(after) > entropy(network) + 1e-4) == more_random
        assert (entropy(after) < entropy(network) - 1e-4) != more_random


def test_an_action_of_positive_advantage_becomes_more_likely_and_the_value_moves_to_its_target(
    network: ActorCritic,
) -> None:
    before_policy, before_value, _ = network(jnp.ones(1), None)
    # Arm 0 did well and arm 1 badly; targets are advantages plus the values at collection time: mean 5.
    after, _ = updated(ppo_of(), network, jnp.array([1.0, -1.0, 1.0, -1.0]), 5.0)
    after_policy, after_value, _ = after(jnp.ones(1), None)
    assert after_policy.probabilities[0, 0] > before_policy.probabilities[0, 0]
    assert before_value < after_value < 5


def test_normalised_advantages_do_not_care_for_scale_and_offset_but_value_targets_do(network: ActorCritic) -> None:
    advantages = jnp.array([1.0, -2.0, 3.0, 0.5])
    # The offset of 40 is common to all steps: without normalisation it would drown the differences.
    moved = 10 * advantages + 40

    def actor_and_critic(normalise: bool, given: jax.Array) -> tuple[np.ndarray, np.ndarray]:
        # Of the actor's and the critic's gradients neither is clipped, and ε = 1 keeps Adam from hiding their size.
        ppo = ppo_of(normalise_advantages=normalise, adam_epsilon=1.0)
        after, _ = updated(ppo, network, given)
        return np.asarray(after.actor.weight), np.asarray(after.critic.weight)

    actor, critic = actor_and_critic(True, advantages)
    moved_actor, moved_critic = actor_and_critic(True, moved)
    np.testing.assert_allclose(moved_actor, actor, rtol=1e-5)
    assert np.abs(moved_critic - critic).max() > 1e-3
    plain_actor, _ = actor_and_critic(False, advantages)
    assert np.abs(plain_actor - actor).max() > 1e-4


# --- it learns --------------------------------------------------------------------------------------------------------


def rewards_while_learning(
    env: Environment, *, updates: int, steps: int = 1, memory: int = 0, learning_rate: float = 2e-2
) -> np.ndarray:
    """The mean reward per episode at every update of one short training, in one compiled program."""
    workers, episode = 32, env.length
    ppo = ppo_of(
        learning_rate=learning_rate,
        discount=0.99,
        gae_lambda=0.95,
        epochs=2,
        minibatches=2,
        max_gradient_norm=0.5,
        normalise_advantages=True,
    )

    def update(carry: tuple[ActorCritic, Any], key: jax.Array) -> tuple[tuple[ActorCritic, Any], jax.Array]:
        network, opt_state = carry
        levels_key, play_key, learn_key = jax.random.split(key, 3)
        levels = sample_levels(env, workers, key=levels_key)
        rollout = collect(env, Ungrounded(), network, levels, steps, key=play_key)
        advantages = ppo.advantages(rollout, ReturnScale.empty())
        network, opt_state, _ = ppo.update(network, opt_state, rollout, advantages, key=learn_key)
        return (network, opt_state), episode * jnp.mean(rollout.reward)

    def train(seed: int) -> jax.Array:
        network_key, updates_key = jax.random.split(jax.random.key(seed))
        network = build_network(env, "mlp", (8,), memory, key=network_key)
        keys = jax.random.split(updates_key, updates)
        return jax.lax.scan(update, (network, ppo.init(network)), keys)[1]

    return np.asarray(jit(train, runs_once=True)(0))


def test_a_student_learns_which_of_three_arms_the_cue_means() -> None:
    rewards = rewards_while_learning(ChoiceBandit(), updates=60)
    assert rewards[:3].mean() < 0.6  # 1/3 for guessing
    assert rewards[-10:].mean() > 0.95


@pytest.mark.slow
def test_a_student_learns_to_set_two_dials_of_different_size() -> None:
    rewards = rewards_while_learning(LockBandit(), updates=60)
    assert rewards[:3].mean() < 0.6  # (1/2 + 1/4)/2 = 3/8 for guessing
    assert rewards[-10:].mean() > 0.95


@pytest.mark.slow
def test_a_student_learns_to_aim_in_a_box() -> None:
    rewards = rewards_while_learning(AimBandit(), updates=120)
    # Guessing evenly loses 1/12 + 1/16 in each dimension, 0.29 in all; always aiming at the middle loses 1/8.
    assert rewards[:3].mean() < 0.85
    assert rewards[-10:].mean() > 0.96


def test_a_student_with_memory_solves_what_one_without_cannot() -> None:
    # Rollouts of two episodes: at the restart inside, the memory of the first cue must go.
    with_memory = rewards_while_learning(Recall(), updates=60, steps=4, memory=8)
    assert with_memory[-10:].mean() > 0.95
    without = rewards_while_learning(Recall(), updates=60, steps=4, memory=0)
    # Whatever it does at the second step, it is right half of the time: 10 updates of 64 episodes, 4 deviations.
    assert without[-10:].mean() == pytest.approx(0.5, abs=4 * 0.5 / 640**0.5)
