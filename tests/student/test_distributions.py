"""Policies against SciPy, their padding and their bounds."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from samplr.compiling import jit
from samplr.envs.spaces import Box, Discrete, MultiDiscrete
from samplr.errors import SamplrError
from samplr.student.distributions import Beta, Categorical, Policy, policy_from, policy_outputs

UNEQUAL = MultiDiscrete((2, 4, 3))
"""A network gives 3 × 4 numbers for it: the first component's last two and the third's last one are padding."""
PADDING = ~(np.arange(4) < np.array([[2], [4], [3]]))


def outputs(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def samples(policy: Policy, count: int) -> np.ndarray:
    return np.asarray(_samples(policy, jax.random.split(jax.random.key(0), count)))


@functools.partial(jit, runs_once=True)
def _samples(policy: Policy, keys: jax.Array) -> jax.Array:
    return jax.vmap(lambda key: policy.sample(key=key))(keys)


@functools.partial(jit, runs_once=True)
def log_prob(policy: Policy, raw: jax.Array) -> jax.Array:
    return policy.log_prob(raw)


log_probs = jit(jax.vmap(lambda policy, raw: policy.log_prob(raw), in_axes=(None, 0)), runs_once=True)


@functools.partial(jit, runs_once=True)
def entropy(policy: Policy) -> jax.Array:
    return policy.entropy()


# --- choices ----------------------------------------------------------------------------------------------------------


def test_log_probs_and_entropy_of_one_choice_are_scipys() -> None:
    logits = outputs(5)
    policy = policy_from(jnp.asarray(logits), Discrete(5))
    expected = special.log_softmax(logits.astype(np.float64))
    for choice in range(5):
        np.testing.assert_allclose(log_prob(policy, jnp.array([choice])), expected[choice], rtol=1e-5)
    np.testing.assert_allclose(entropy(policy), stats.entropy(np.exp(expected)), rtol=1e-5)
    assert policy.most_likely().tolist() == [np.argmax(logits)]


def test_several_choices_are_independent_and_padding_counts_for_nothing() -> None:
    table = outputs(12).reshape(3, 4)
    policy = policy_from(jnp.asarray(table.ravel()), UNEQUAL)
    components = [
        special.log_softmax(row[:size].astype(np.float64)) for row, size in zip(table, UNEQUAL.sizes, strict=True)
    ]
    for raw in [(0, 0, 0), (1, 3, 2), (1, 2, 0)]:
        expected = sum(component[choice] for component, choice in zip(components, raw, strict=True))
        np.testing.assert_allclose(log_prob(policy, jnp.array(raw)), expected, rtol=1e-5)
    np.testing.assert_allclose(entropy(policy), sum(stats.entropy(np.exp(c)) for c in components), rtol=1e-5)


def test_the_entropy_of_even_choices_is_by_hand() -> None:
    # log 2 + log 4 + log 3 = log 24.
    policy = policy_from(jnp.zeros(12), UNEQUAL)
    np.testing.assert_allclose(entropy(policy), math.log(24), rtol=1e-6)
    np.testing.assert_allclose(log_prob(policy, jnp.array([1, 3, 2])), -math.log(24), rtol=1e-6)


def test_a_choice_that_does_not_exist_is_never_made_however_much_the_network_wants_it() -> None:
    policy = policy_from(jnp.asarray(np.where(PADDING, 100.0, 0.0).ravel(), jnp.float32), UNEQUAL)
    assert isinstance(policy, Categorical)
    assert np.all(np.asarray(policy.probabilities)[PADDING] == 0)
    drawn = samples(policy, 5_000)
    assert drawn.max(axis=0).tolist() == [1, 3, 2]  # every choice that exists is made, and no other
    assert np.all(policy.most_likely() < jnp.array(UNEQUAL.sizes))


def test_gradients_are_finite_and_none_reaches_the_padding() -> None:
    given = jnp.asarray(outputs(12))

    def objective(numbers: jax.Array) -> jax.Array:
        policy = policy_from(numbers, UNEQUAL)
        return policy.log_prob(jnp.array([1, 3, 2])) + policy.entropy()

    gradient = np.asarray(jit(jax.grad(objective), runs_once=True)(given)).reshape(3, 4)
    assert np.all(np.isfinite(gradient))
    assert np.all(gradient[PADDING] == 0)
    assert np.all(gradient[~PADDING] != 0)


def test_choices_are_drawn_with_their_probabilities() -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05]).astype(np.float32)
    drawn = samples(policy_from(jnp.asarray(logits), Discrete(4)), 10_000)[:, 0]
    assert stats.chisquare(np.bincount(drawn, minlength=4), 10_000 * np.exp(logits.astype(np.float64))).pvalue > 1e-3


@pytest.mark.parametrize(("space", "count"), [(Discrete(5), 5), (UNEQUAL, 12), (Box((2,), 0.0, 1.0), 4)])
def test_a_network_gives_so_many_numbers(space: Discrete | MultiDiscrete | Box, count: int) -> None:
    assert policy_outputs(space) == count


def test_a_discrete_action_is_decoded_to_a_scalar_and_several_to_a_vector() -> None:
    assert Discrete(3).decode(jnp.array([2])).shape == ()
    assert UNEQUAL.decode(jnp.array([1, 3, 2])).tolist() == [1, 3, 2]


# --- boxes ------------------------------------------------------------------------------------------------------------

BOX = Box((2,), (-1.0, 0.0), (1.0, 4.0))


def test_log_probs_and_entropies_of_a_box_are_scipys() -> None:
    given = outputs(4)
    # α = 1 + softplus of the first half, β of the second.
    alpha, beta = np.split(1 + np.log1p(np.exp(given.astype(np.float64))), 2)
    policy = policy_from(jnp.asarray(given), BOX)
    for raw in ([0.1, 0.9], [0.5, 0.5], [0.99, 0.3]):
        # The density is that of the raw action in the unit square, which is what PPO's ratios need.
        np.testing.assert_allclose(
            log_prob(policy, jnp.array(raw)), stats.beta(alpha, beta).logpdf(raw).sum(), rtol=1e-4, atol=1e-5
        )
    np.testing.assert_allclose(entropy(policy), stats.beta(alpha, beta).entropy().sum(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(policy.most_likely(), alpha / (alpha + beta), rtol=1e-5)


@pytest.mark.parametrize("size", [-60.0, 0.0, 8.0, 1e9])
def test_samples_lie_inside_the_unit_square_with_finite_log_probs(size: float) -> None:
    # From the flattest density the network can give (α = β = 1) to one so sharp that a float32 would round to the end.
    policy = policy_from(jnp.array([size, -60.0, -60.0, size]), BOX)
    assert isinstance(policy, Beta)
    assert jnp.all(policy.alpha >= 1)
    assert jnp.all(policy.beta >= 1)
    drawn = samples(policy, 2_000)
    assert np.all((drawn > 0) & (drawn < 1))
    assert np.all(np.isfinite(log_probs(policy, jnp.asarray(drawn))))
    decoded = np.asarray(jax.vmap(BOX.decode)(jnp.asarray(drawn)))
    assert np.all((decoded >= [-1, 0]) & (decoded <= [1, 4]))


def test_samples_of_a_box_follow_their_densities() -> None:
    policy = Beta(jnp.array([2.0, 1.5]), jnp.array([3.0, 4.0]))
    first, second = samples(policy, 5_000).T
    assert stats.kstest(first, stats.beta(2, 3).cdf).pvalue > 1e-3
    assert stats.kstest(second, stats.beta(1.5, 4).cdf).pvalue > 1e-3
    # The dimensions are independent.
    assert stats.pearsonr(first, second).pvalue > 1e-3


@pytest.mark.parametrize(("raw", "action"), [([0.0, 0.0], [-1, 0]), ([1.0, 1.0], [1, 4]), ([0.25, 0.5], [-0.5, 2.0])])
def test_the_unit_square_is_decoded_to_the_bounds_of_each_dimension(raw: list[float], action: list[float]) -> None:
    np.testing.assert_allclose(BOX.decode(jnp.array(raw)), action)


@pytest.mark.parametrize(
    "box", [Box((2,)), Box((2,), low=0.0), Box((2,), high=1.0), Box((2,), (0.0, -math.inf), (1.0, 1.0))]
)
def test_actions_without_finite_bounds_are_refused(box: Box) -> None:
    with pytest.raises(SamplrError, match="actions need finite bounds"):
        policy_outputs(box)


def test_the_number_of_outputs_for_a_box_is_known_while_tracing() -> None:
    # `Training.init` builds its networks inside a compiled program, where nothing may be asked of jax.numpy.
    shape = jax.eval_shape(lambda: jnp.zeros(policy_outputs(BOX))).shape
    assert shape == (4,)
