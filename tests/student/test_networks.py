"""Networks: sequences and steps agree, memories are emptied where an episode begins, names are known."""

import functools
import itertools
import subprocess
import sys
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from programs import equations
from samplr.compiling import jit
from samplr.envs import make_environment
from samplr.envs.api import Environment
from samplr.envs.icy_road import IcyRoad
from samplr.errors import SamplrError, UnknownNameError
from samplr.student.distributions import Categorical
from samplr.student.networks import LSTM, ActorCritic, MLPEncoder, _wide_orthogonal, build_network, orthogonal

from .worlds import AimBandit, CueWorld, LockBandit, Recall

ROAD = IcyRoad(segments=3)
STEPS = 6
STARTS = jnp.array([True, False, False, True, True, False])


ACTIONS = jnp.array([1, 0, 1, 1, 0, 1])[:, None]


def network_for(env: Environment, encoder: str, hidden: tuple[int, ...], memory: int, **kind: float) -> ActorCritic:
    def build(key: jax.Array) -> ActorCritic:
        return build_network(env, encoder, hidden, memory, **kind, key=key)

    return jit(build, runs_once=True)(jax.random.key(0))


@pytest.fixture(scope="module")
def recurrent() -> ActorCritic:
    return network_for(ROAD, "mlp", (4,), 5)


@pytest.fixture(scope="module")
def self_aware() -> ActorCritic:
    return network_for(ROAD, "mlp", (4,), 5, sees_actions=True)


@pytest.fixture(scope="module")
def informed() -> ActorCritic:
    return network_for(ROAD, "mlp", (4,), 5, informed_critic=True)


@pytest.fixture(scope="module")
def memoryless() -> ActorCritic:
    return network_for(ROAD, "mlp", (4,), 0)


def observations(seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (STEPS, *ROAD.observation_space.shape))


_unroll = jit(ActorCritic.unroll, runs_once=True)
step = jit(ActorCritic.__call__, runs_once=True)


def unroll(
    network: ActorCritic, seen: jax.Array, starts: jax.Array = STARTS, actions: jax.Array = ACTIONS
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and values along a sequence."""
    policy, value = _unroll(network, seen, starts, actions)
    assert isinstance(policy, Categorical)
    return np.asarray(policy.logits), np.asarray(value)


@pytest.mark.parametrize("kind", ["recurrent", "self_aware", "memoryless"])
def test_a_sequence_gives_what_its_steps_give_one_by_one(kind: str, request: pytest.FixtureRequest) -> None:
    network: ActorCritic = request.getfixturevalue(kind)
    assert network.recurrent == (kind != "memoryless")
    seen = observations(0)
    logits, values = unroll(network, seen)
    for t in range(STEPS):
        if STARTS[t]:
            memory = network.initial_memory()
        policy, value, memory = step(network, seen[t], memory)
        np.testing.assert_allclose(logits[t], policy.logits, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(values[t], value, rtol=1e-4, atol=1e-6)
        memory = network.remember(memory, ROAD.action_space.decode(ACTIONS[t]))


def test_the_last_action_is_seen_within_an_episode_by_those_who_are_told(
    recurrent: ActorCritic, self_aware: ActorCritic
) -> None:
    seen, otherwise = observations(0), ACTIONS.at[1].set(1).at[2].set(0)
    np.testing.assert_array_equal(unroll(recurrent, seen)[1], unroll(recurrent, seen, actions=otherwise)[1])
    changed = np.abs(unroll(self_aware, seen)[1] - unroll(self_aware, seen, actions=otherwise)[1]) > 1e-6
    # The action at step 1 is known at step 2; the one at step 2 ended its episode.
    assert changed.tolist() == [False, False, True, False, False, False]


def test_being_told_ones_actions_leaves_the_rest_of_a_network_as_it_is(
    recurrent: ActorCritic, self_aware: ActorCritic
) -> None:
    assert self_aware.acted is not None
    without = eqx.tree_at(lambda net: net.acted, self_aware, None)
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.array_equal(a, b), without, recurrent))


class TestInformedCritic:
    HIDDEN = jnp.linspace(0, 1, STEPS)[:, None]

    def test_only_the_value_depends_on_what_it_is_told(self, informed: ActorCritic) -> None:
        policy, value = _unroll(informed, observations(0), STARTS, ACTIONS, self.HIDDEN)
        logits, not_told = unroll(informed, observations(0))
        np.testing.assert_array_equal(policy.logits, logits)
        assert np.abs(value - not_told).max() > 1e-3

    def test_a_sequence_gives_what_its_steps_give_one_by_one(self, informed: ActorCritic) -> None:
        seen = observations(0)
        _, values = _unroll(informed, seen, STARTS, ACTIONS, self.HIDDEN)
        for t in range(STEPS):
            if STARTS[t]:
                memory = informed.initial_memory()
            _, value, memory = step(informed, seen[t], memory, self.HIDDEN[t])
            np.testing.assert_allclose(values[t], value, rtol=1e-4, atol=1e-6)

    def test_told_nothing_it_expects_what_the_ground_truth_brings_on_average(self, informed: ActorCritic) -> None:
        keys = jax.random.split(jax.random.key(7), 20_000)
        rates = jit(jax.vmap(lambda key: ROAD.hidden(ROAD.sample_aleatoric(None, key=key))), runs_once=True)(keys)
        seen, memory = observations(0)[0], informed.initial_memory()
        told = jit(jax.vmap(lambda rate: informed(seen, memory, rate)[1]), runs_once=True)(rates)
        # The mean of 1,024 draws is known to a standard error of 1/32 of the spread: five of them.
        assert abs(jnp.mean(told) - informed(seen, memory)[1]) < 5 / 32 * jnp.std(told)

    def test_a_world_that_names_nothing_hidden_is_refused(self) -> None:
        with pytest.raises(SamplrError, match="Recall does not name the numbers of θ′ that are hidden"):
            network_for(Recall(), "mlp", (), 0, informed_critic=True)


def test_what_was_seen_before_a_start_is_forgotten_and_what_came_after_it_is_not(recurrent: ActorCritic) -> None:
    seen = observations(0)
    _, values = unroll(recurrent, seen)
    # Another first episode (steps 0 to 2) changes nothing from the start at step 3 on…
    other_episode = seen.at[:3].set(observations(1)[:3])
    _, after_another = unroll(recurrent, other_episode)
    np.testing.assert_array_equal(after_another[3:], values[3:])
    assert np.all(np.abs(after_another[:3] - values[:3]) > 1e-6)
    # … but step 4, which begins an episode, is remembered at step 5.
    _, after_other_start = unroll(recurrent, seen.at[4].set(observations(1)[4]))
    assert abs(after_other_start[5] - values[5]) > 1e-6


def test_a_sequence_begins_with_an_empty_memory_even_if_no_start_is_marked(recurrent: ActorCritic) -> None:
    seen = observations(0)
    marked = jnp.zeros(STEPS, bool).at[0].set(True)
    np.testing.assert_array_equal(
        unroll(recurrent, seen, marked)[1], unroll(recurrent, seen, jnp.zeros(STEPS, bool))[1]
    )


def test_a_student_without_memory_sees_each_step_alone(memoryless: ActorCritic) -> None:
    seen = observations(0)
    _, values = unroll(memoryless, seen)
    _, backwards = unroll(memoryless, seen[::-1])
    np.testing.assert_allclose(backwards[::-1], values, rtol=1e-5)


@pytest.mark.parametrize("kind", ["recurrent", "memoryless"])
def test_a_fresh_policy_is_nearly_uniform(kind: str, request: pytest.FixtureRequest) -> None:
    logits, _ = unroll(request.getfixturevalue(kind), observations(0))
    np.testing.assert_allclose(jax.nn.softmax(logits), 0.5, atol=0.02)


def test_a_policy_of_more_gain_goes_by_what_it_observes() -> None:
    quiet, loud = (network_for(ROAD, "mlp", (4,), 0, policy_gain=gain) for gain in (0.01, 1.0))
    np.testing.assert_allclose(100 * quiet.actor.weight, loud.actor.weight, rtol=1e-5)
    np.testing.assert_array_equal(quiet.critic.weight, loud.critic.weight)


def test_orthogonal_layers_have_orthogonal_rows_of_the_given_gain_and_no_bias() -> None:
    layer = jit(lambda key: orthogonal(5, 3, gain=2.0, key=key), runs_once=True)(jax.random.key(0))
    np.testing.assert_allclose(layer.weight @ layer.weight.T, 4 * np.eye(3), atol=1e-5)
    np.testing.assert_array_equal(layer.bias, np.zeros(3))


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (1, 7), (64, 19)])
def test_orthogonal_layers_have_the_numbers_of_jax_itself(shape: tuple[int, int]) -> None:
    outputs, inputs = shape
    key = jax.random.key(3)
    layer = jit(lambda key: orthogonal(inputs, outputs, gain=2.0, key=key), runs_once=True)(key)
    np.testing.assert_allclose(layer.weight, jax.nn.initializers.orthogonal(2.0)(key, shape), atol=1e-5)


@pytest.mark.parametrize("shape", [(32, 32), (32, 20), (20, 32)])
def test_layers_before_the_heads_are_orthogonal_also_where_they_are_square(shape: tuple[int, int]) -> None:
    # A square Gaussian matrix has singular values near 0, which take the most steps to 1.
    inputs, outputs = shape
    layer = jit(lambda key: _wide_orthogonal(inputs, outputs, gain=2.0, key=key), runs_once=True)(jax.random.key(0))
    singular = np.linalg.svd(np.asarray(layer.weight), compute_uv=False)
    np.testing.assert_allclose(singular, 2.0, rtol=1e-4)


def test_a_fresh_critic_is_linear_of_gain_one(memoryless: ActorCritic) -> None:
    assert jnp.linalg.norm(memoryless.critic.weight) == pytest.approx(1.0, rel=1e-4)


def test_heads_have_a_rectified_layer_each() -> None:
    network = network_for(ROAD, "mlp", (4,), 0, head=3)
    seen = observations(0)[0]
    features = network.encoder(seen)
    acting, judging = (np.maximum(layer(features), 0) for layer in (network.actor_hidden, network.critic_hidden))
    policy, value, _ = network(seen, None)
    np.testing.assert_allclose(policy.logits[0], network.actor(acting), atol=1e-6)
    np.testing.assert_allclose(value, network.critic(judging)[0], atol=1e-6)
    # Something was rectified.
    assert min(np.min(network.actor_hidden(features)), np.min(network.critic_hidden(features))) < 0


def test_the_weights_of_a_memory_are_different_draws(self_aware: ActorCritic) -> None:
    """Layers of any two sizes, drawn with the same key, begin with the same numbers but for their scale."""
    lstm, acted = self_aware.lstm, self_aware.acted
    assert lstm is not None
    assert acted is not None
    drawn = [layer.weight.ravel() * layer.in_features**0.5 for layer in (lstm.incoming, lstm.remembered, acted)]
    for one, other in itertools.combinations(drawn, 2):
        size = min(one.size, other.size)
        assert not np.isclose(one[:size], other[:size], atol=1e-3).any()


def test_the_layers_of_an_mlp_are_different_draws() -> None:
    first, second = MLPEncoder(4, (4, 4), key=jax.random.key(0)).layers
    assert np.abs(first.weight - second.weight).max() > 0.1


@pytest.mark.parametrize("name", ["icy_road", "black_ice", "fruit_choice"])
def test_no_network_is_made_with_the_help_of_lapack(name: str) -> None:
    # Factorisations for a batch of runs may wait for each other forever: see `orthogonal`.
    env = make_environment(name)
    for encoder in ("mlp", *env.encoders()):
        build = functools.partial(build_network, env, encoder, (8,), 4, 16)
        traced = jax.make_jaxpr(jax.vmap(lambda key, build=build: build(key=key)))(
            jax.random.split(jax.random.key(0), 2)
        )
        names = {equation.primitive.name for equation in equations(traced.jaxpr)}
        assert "dot_general" in names
        assert not names & {"qr", "geqrf", "geqp3", "householder_product", "svd", "eigh", "cholesky", "lu"}


def test_an_mlp_takes_an_observation_of_several_parts_as_one_vector() -> None:
    encoder = MLPEncoder(7, (), key=jax.random.key(0))
    observation = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.float32(6)}
    np.testing.assert_array_equal(encoder(observation), np.arange(7.0))


def test_an_mlp_has_tanh_after_every_layer() -> None:
    encoder = jit(lambda key: MLPEncoder(3, (4, 2), key=key), runs_once=True)(jax.random.key(0))
    x = np.array([1.0, -2.0, 3.0])
    for layer in encoder.layers:
        x = np.tanh(np.asarray(layer.weight) @ x + np.asarray(layer.bias))
    np.testing.assert_allclose(encoder(jnp.array([1.0, -2.0, 3.0])), x, rtol=1e-5)


@pytest.mark.parametrize(("env", "outputs"), [(Recall(), 2), (LockBandit(), 2 * 4), (AimBandit(), 2 * 2)])
def test_a_network_fits_the_actions_of_its_world_and_can_be_built_while_tracing(env: CueWorld, outputs: int) -> None:
    # Tracing is what `Training.init` does: all runs of a batch are built by one compiled program.
    network = jax.eval_shape(lambda key: build_network(env, "mlp", (), 0, key=key), jax.random.key(0))
    assert network.actor.weight.shape == (outputs, 2)
    assert network.critic.weight.shape == (1, 2)


def test_an_environment_can_bring_its_own_encoder() -> None:
    @functools.partial(jit, runs_once=True)
    def value_of_one_and_three(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        network = build_network(Recall(), "twice", (), 0, key=key)
        return network(jnp.array([1.0, 3.0]), None)[1], network.critic.weight[0]

    value, weight = value_of_one_and_three(jax.random.key(0))
    np.testing.assert_allclose(value, 2 * weight[0] + 6 * weight[1], rtol=1e-5)


def test_an_unknown_encoder_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError) as error:
        build_network(Recall(), "cnn", (), 0, key=jax.random.key(0))
    assert str(error.value) == "unknown encoder 'cnn': choose one of mlp, twice"


HEADS_ON_A_CPU = """
import equinox as eqx
import jax
from samplr.compiling import jit
from samplr.envs.black_ice import BlackIce
from samplr.student.networks import build_network

build = jit(jax.vmap(lambda key: build_network(BlackIce(), "paper", (), 0, 100, key=key)), runs_once=True)
networks = jax.block_until_ready(build(jax.random.split(jax.random.key(0), 2)))
for hidden in (networks.actor_hidden, networks.critic_hidden):
    for weight in hidden.weight:
        assert abs(weight @ weight.T / 2 - jax.numpy.eye(100)).max() < 1e-5
assert (networks.actor_hidden.weight != networks.critic_hidden.weight).all()
"""


def test_wide_heads_are_orthogonal_and_made_in_finite_time():
    # In a process of its own: two QR factorisations of this size used to wait for each other forever.
    subprocess.run([sys.executable, "-c", HEADS_ON_A_CPU], check=True, timeout=120)


def test_the_memory_is_an_lstm() -> None:
    lstm = LSTM(3, 5, key=jax.random.key(0))
    reference = eqx.nn.LSTMCell(3, 5, key=jax.random.key(1))
    weights = (lstm.incoming.weight, lstm.remembered.weight, lstm.incoming.bias)
    reference = eqx.tree_at(lambda cell: (cell.weight_ih, cell.weight_hh, cell.bias), reference, weights)
    inputs = jax.random.normal(jax.random.key(2), (3,))
    memory = (jnp.linspace(-1, 1, 5), jnp.linspace(2, -2, 5))
    for mine, theirs in zip(lstm(lstm.incoming(inputs), memory), reference(inputs, memory), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_gradients_along_a_sequence_are_those_of_its_steps() -> None:
    lstm = LSTM(3, 5, key=jax.random.key(0))
    incoming, target = jax.random.normal(jax.random.key(1), (2, STEPS, 20))

    def step_by_step(lstm: LSTM, incoming: jax.Array) -> jax.Array:
        outputs = []
        for now, start in zip(incoming, STARTS, strict=True):
            memory = lstm(now, lstm.empty() if start else memory)
            outputs.append(memory[0])
        return jnp.stack(outputs)

    def weighted(unroll: Callable[[LSTM, jax.Array], jax.Array]) -> tuple[LSTM, jax.Array]:
        def loss(both: tuple[LSTM, jax.Array]) -> jax.Array:
            return jnp.sum(target[:, :5] * unroll(*both))

        return eqx.filter_grad(loss)((lstm, incoming))

    at_once = weighted(lambda lstm, incoming: lstm.unroll(incoming, STARTS))
    mine, expected = at_once[0].remembered.weight, weighted(step_by_step)[0].remembered.weight
    assert jnp.max(jnp.abs(expected)) > 0.01
    np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(at_once[1], weighted(step_by_step)[1], rtol=1e-4, atol=1e-6)
