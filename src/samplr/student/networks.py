"""Networks: an encoder, an optional memory, and the heads for policy and value."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from samplr import trees
from samplr.envs.api import Encoder, Environment
from samplr.envs.spaces import ActionSpace, encoded, encoded_size
from samplr.errors import UnknownNameError
from samplr.student.distributions import Policy, policy_from, policy_outputs

Memory: TypeAlias = Any
"""What a recurrent student carries from step to step; `None` for a student without memory."""


class MLPEncoder(eqx.Module):
    """Hidden layers with tanh over the flattened observation."""

    layers: tuple[eqx.nn.Linear, ...]

    def __init__(self, inputs: int, hidden: tuple[int, ...], *, key: PRNGKeyArray) -> None:
        sizes = (inputs, *hidden)
        keys = jax.random.split(key, max(len(hidden), 1))
        self.layers = tuple(
            orthogonal(size_in, size_out, gain=2**0.5, key=layer_key)
            for size_in, size_out, layer_key in zip(sizes, hidden, keys, strict=False)
        )

    def __call__(self, observation: PyTree) -> Float[Array, " features"]:
        """Encode one observation, whatever its parts."""
        x = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(observation)])
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


class LSTM(eqx.Module):
    """A long short-term memory. What comes in is weighted apart from what is remembered, so that a sequence can have
    the former done in one product before it goes through the latter step by step.
    """

    incoming: eqx.nn.Linear
    remembered: eqx.nn.Linear

    def __init__(self, inputs: int, size: int, *, key: PRNGKeyArray) -> None:
        incoming_key, remembered_key = jax.random.split(key)
        self.incoming = eqx.nn.Linear(inputs, 4 * size, key=incoming_key)
        self.remembered = eqx.nn.Linear(size, 4 * size, use_bias=False, key=remembered_key)

    def empty(self) -> Memory:
        """What is remembered at first."""
        size = self.remembered.in_features
        return (jnp.zeros(size), jnp.zeros(size))

    def __call__(self, incoming: Float[Array, " gates"], memory: Memory) -> Memory:
        """One step, from inputs that went through `self.incoming`; the first part of a memory is what it puts out."""
        output, cell = memory
        return _gated(incoming + self.remembered(output), cell)

    def unroll(self, incoming: Float[Array, "t gates"], starts: Bool[Array, " t"]) -> Float[Array, "t size"]:
        """What it puts out along a sequence that begins with an empty memory, emptied again at every start."""
        return _outputs(self.remembered.weight, incoming, starts)


class ActorCritic(eqx.Module):
    """Policy and value of a history: one observation at a time, with a memory where there is one."""

    encoder: Encoder
    lstm: LSTM | None
    actor_hidden: eqx.nn.Linear | None
    critic_hidden: eqx.nn.Linear | None
    actor: eqx.nn.Linear
    critic: eqx.nn.Linear
    action_space: ActionSpace = eqx.field(static=True)
    acted: eqx.nn.Linear | None = None
    """What the last action adds to the memory's inputs, for a student that is told it."""
    usual_hidden: Float[Array, " k"] | None = None
    """For a critic that is told the hidden numbers of θ′: their mean under the ground truth, which it supposes where it
    is not."""

    @property
    def recurrent(self) -> bool:
        """Whether the student remembers."""
        return self.lstm is not None

    @property
    def informed(self) -> bool:
        """Whether the critic is told what the policy must not know."""
        return self.usual_hidden is not None

    def initial_memory(self) -> Memory:
        """The memory at the start of an episode."""
        if self.lstm is None:
            return None
        empty = self.lstm.empty()
        return empty if self.acted is None else (empty, jnp.zeros(encoded_size(self.action_space)))

    def __call__(
        self, observation: PyTree, memory: Memory, hidden: Float[Array, " k"] | None = None
    ) -> tuple[Policy, Float[Array, ""], Memory]:
        """One step.

        **Arguments:**

        - `hidden`: the hidden numbers of θ′, for a critic that is told them.

        **Returns:** the policy, the value, and the memory that the next observation continues from, once it was told
        the action (`remember`).
        """
        features = self.encoder(observation)
        if self.lstm is not None:
            incoming = self.lstm.incoming(features)
            if self.acted is None:
                memory = self.lstm(incoming, memory)
                features = memory[0]
            else:
                past, last = memory
                past = self.lstm(incoming + self.acted(last), past)
                memory, features = (past, jnp.zeros_like(last)), past[0]
        return (*self._heads(features, hidden), memory)

    def remember(self, memory: Memory, action: Array) -> Memory:
        """The memory of a student that has now taken an action; the same memory for one that is not told."""
        if self.acted is None:
            return memory
        return (memory[0], encoded(action, self.action_space))

    def unroll(
        self,
        observations: PyTree,
        starts: Bool[Array, " t"],
        raw_actions: Array,
        hidden: Float[Array, "t k"] | None = None,
    ) -> tuple[Policy, Float[Array, " t"]]:
        """Policies and values along a sequence that begins with an empty memory, emptied again at every start.

        **Arguments:**

        - `raw_actions`: what was done after each observation, as the policy sampled it.
        - `hidden`: as for one step.
        """
        features = jax.vmap(self.encoder)(observations)
        if self.lstm is not None:
            incoming = jax.vmap(self.lstm.incoming)(features)
            if self.acted is not None:
                incoming += jax.vmap(self.acted)(self._last_actions(raw_actions, starts))
            features = self.lstm.unroll(incoming, starts)
        return jax.vmap(self._heads)(features, hidden)

    def _last_actions(self, raw_actions: Array, starts: Bool[Array, " t"]) -> Float[Array, "t size"]:
        """The action before each observation; none at a start."""
        done = jax.vmap(lambda raw: encoded(self.action_space.decode(raw), self.action_space))(raw_actions)
        before = jnp.concatenate([jnp.zeros_like(done[:1]), done[:-1]])
        return jnp.where(starts[:, None], 0.0, before)

    def _heads(self, features: Array, hidden: Float[Array, " k"] | None) -> tuple[Policy, Float[Array, ""]]:
        acting = _through(self.actor_hidden, features)
        judged = self.critic(_through(self.critic_hidden, features))
        value = judged[0]
        if hidden is not None and self.usual_hidden is not None:
            # Linear, so that what it supposes when it is not told is the mean over θ′.
            value += judged[1:] @ (hidden - jax.lax.stop_gradient(self.usual_hidden))
        return policy_from(self.actor(acting), self.action_space), value


@jax.jit
def are_finite(networks: ActorCritic) -> Bool[Array, " runs"]:
    """Whether all parameters of each student of a batch are finite: those of one that has diverged are not."""
    leaves = [leaf for leaf in jax.tree.leaves(networks) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.stack([jnp.all(jnp.isfinite(leaf), axis=tuple(range(1, leaf.ndim))) for leaf in leaves]).all(0)


def _gated(gates: Float[Array, " gates"], cell: Float[Array, " size"]) -> Memory:
    """The memory after a step, from the weighted sums that open its gates."""
    enter, keep, news, leave = jnp.split(gates, 4)
    cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(enter) * jnp.tanh(news)
    return (jax.nn.sigmoid(leave) * jnp.tanh(cell), cell)


@jax.custom_vjp
def _outputs(
    weight: Float[Array, "gates size"], incoming: Float[Array, "t gates"], starts: Bool[Array, " t"]
) -> Float[Array, "t size"]:
    """What an LSTM puts out along a sequence, given the weights of what it remembers.

    Its gradient is written out because a scan's would add to that of the weights at every step, nearly half of the cost
    on a GPU. Here the scan finds the gradients of the gates, and one product afterwards that of the weights.
    """
    return _outputs_forward(weight, incoming, starts)[0]


def _outputs_forward(weight: Array, incoming: Array, starts: Array) -> tuple[Array, Any]:
    empty = (jnp.zeros(weight.shape[1], incoming.dtype),) * 2

    def step(memory: Memory, now: tuple[Array, Array]) -> tuple[Memory, Any]:
        incoming, start = now
        output, cell = trees.where(start, empty, memory)
        gates = incoming + weight @ output
        memory = _gated(gates, cell)
        return memory, (memory[0], (output, cell, gates))

    _, (outputs, passed) = jax.lax.scan(step, empty, (incoming, starts))
    return outputs, (weight, starts, passed)


def _outputs_backward(kept: Any, by_output: Float[Array, "t size"]) -> tuple[Array, Array, None]:
    weight, starts, (outputs, cells, gates) = kept
    nothing = (jnp.zeros_like(by_output[0]),) * 2

    def step(by_memory: Memory, now: Any) -> tuple[Memory, Array]:
        by_output, start, cell, gates = now
        _, pull_back = jax.vjp(_gated, gates, cell)
        by_gates, by_cell = pull_back((by_memory[0] + by_output, by_memory[1]))
        return trees.where(start, nothing, (by_gates @ weight, by_cell)), by_gates

    _, by_gates = jax.lax.scan(step, nothing, (by_output, starts, cells, gates), reverse=True)
    return by_gates.T @ outputs, by_gates, None


_outputs.defvjp(_outputs_forward, _outputs_backward)


def _through(layer: eqx.nn.Linear | None, features: Array) -> Array:
    return features if layer is None else jax.nn.relu(layer(features))


def orthogonal(inputs: int, outputs: int, *, gain: float, key: PRNGKeyArray) -> eqx.nn.Linear:
    """A linear layer with orthogonal weights and zero biases: the numbers of `jax.nn.initializers.orthogonal`.

    That one asks LAPACK for a QR factorisation. On a CPU, factorisations for a batch of runs share their work with the
    threads that are to start them: as many at once as there are cores wait for each other forever (JAX 0.10). Gram and
    Schmidt's way to the same factor is plain arithmetic.
    """
    layer = eqx.nn.Linear(inputs, outputs, key=key)
    columns = _orthonormal(jax.random.normal(key, (max(inputs, outputs), min(inputs, outputs))))
    weight = gain * (columns if outputs >= inputs else columns.T)
    return eqx.tree_at(lambda x: (x.weight, x.bias), layer, (weight, jnp.zeros(outputs)))


_product = functools.partial(jnp.matmul, precision="highest")


def _orthonormal(columns: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """Columns made orthogonal to those before them, and of length 1."""
    places = jnp.arange(columns.shape[1])

    def settle(place: Array, columns: Array) -> Array:
        before, column = jnp.where(places < place, columns, 0.0), columns[:, place]
        for _ in range(2):  # once leaves rounding errors, twice is enough
            column -= _product(before, _product(before.T, column))
        return columns.at[:, place].set(column / jnp.sqrt(jnp.sum(column**2)))

    return jax.lax.fori_loop(0, columns.shape[1], settle, columns)


def _wide_orthogonal(inputs: int, outputs: int, *, gain: float, key: PRNGKeyArray) -> eqx.nn.Linear:
    """As `orthogonal`, for many columns, in fewer and larger products.

    Newton and Schulz's iteration takes every singular value of a Gaussian matrix to 1, which leaves its orthogonal
    factor, and that is distributed as the QR factorisation's.
    """
    layer = eqx.nn.Linear(inputs, outputs, key=key)
    gaussian = jax.random.normal(key, (outputs, inputs)) / (inputs**0.5 + outputs**0.5)

    def towards_one(_: Array, w: Array) -> Array:
        # The smaller of the two products, wwᵀw = (wwᵀ)w = w(wᵀw).
        cube = _product(_product(w, w.T), w) if outputs <= inputs else _product(w, _product(w.T, w))
        return 1.5 * w - 0.5 * cube

    weight = gain * jax.lax.fori_loop(0, 40, towards_one, gaussian)
    return eqx.tree_at(lambda x: (x.weight, x.bias), layer, (weight, jnp.zeros(outputs)))


def build_encoder(env: Environment, encoder: str, hidden: tuple[int, ...], *, key: PRNGKeyArray) -> Encoder:
    """Build an encoder by its name: `mlp`, or one of the environment's own."""
    inputs = sum(leaf.size for leaf in jax.tree.leaves(env.observation_shapes()))
    known: Mapping[str, Callable[..., Encoder]] = {
        "mlp": lambda hidden, key: MLPEncoder(inputs, hidden, key=key),
        **env.encoders(),
    }
    if encoder not in known:
        raise UnknownNameError("encoder", encoder, known)
    return known[encoder](hidden=hidden, key=key)


def build_network(
    env: Environment,
    encoder: str,
    hidden: tuple[int, ...],
    memory_size: int,
    head: int = 0,
    sees_actions: bool = False,
    informed_critic: bool = False,
    policy_gain: float = 0.01,
    *,
    key: PRNGKeyArray,
) -> ActorCritic:
    """Build a student's network for an environment.

    **Arguments:**

    - `encoder`: `mlp`, or one of the environment's own encoders.
    - `hidden`: sizes of the encoder's hidden layers.
    - `memory_size`: size of the LSTM, or 0 for a student without memory.
    - `head`: size of a hidden layer before the policy and of another before the value, or 0 for none.
    - `sees_actions`: whether the LSTM is told the last action.
    - `informed_critic`: whether the value depends on the hidden numbers of θ′.
    - `policy_gain`: of the policy's last layer; a small one makes actions nearly uniform at first.
    """
    encoder_key, lstm_key, actor_key, critic_key = jax.random.split(key, 4)
    encode = build_encoder(env, encoder, hidden, key=encoder_key)
    features = jax.eval_shape(encode, env.observation_shapes()).size
    lstm = LSTM(features, memory_size, key=lstm_key) if memory_size else None
    inputs_of_heads = memory_size or features

    def before(head_key: PRNGKeyArray) -> eqx.nn.Linear | None:
        # Folded in, so that a network without such layers begins as it always did.
        key = jax.random.fold_in(head_key, 1)
        return _wide_orthogonal(inputs_of_heads, head, gain=2**0.5, key=key) if head else None

    actor_hidden, critic_hidden = before(actor_key), before(critic_key)
    features = head or inputs_of_heads
    actor = orthogonal(features, policy_outputs(env.action_space), gain=policy_gain, key=actor_key)
    usual_hidden = _usual_hidden(env) if informed_critic else None
    critic = orthogonal(features, 1 if usual_hidden is None else 1 + usual_hidden.size, gain=1.0, key=critic_key)
    acted = None
    if sees_actions:
        # Folded in, so that a network without it begins as it always did; 0 and 1 would give the LSTM's own weights.
        key = jax.random.fold_in(lstm_key, 2)
        acted = eqx.nn.Linear(encoded_size(env.action_space), 4 * memory_size, use_bias=False, key=key)
    return ActorCritic(encode, lstm, actor_hidden, critic_hidden, actor, critic, env.action_space, acted, usual_hidden)


def _usual_hidden(env: Environment) -> Float[Array, " k"]:
    """The mean of the hidden numbers of θ′ under the ground truth, as found from draws."""

    def draw(key: PRNGKeyArray) -> Float[Array, " k"]:
        return env.hidden(env.sample_level(key=key).aleatoric)

    return jnp.mean(jax.vmap(draw)(jax.random.split(jax.random.key(0), 1024)), axis=0)
