"""Learned posteriors qψ(θ′|τ): a recurrent network that reads the history and says what θ′ it leaves possible.

An environment names the numbers of θ′ that a belief is about (`env.hidden`) and fills in the rest (`env.complete`). The
belief about each number is a categorical over bins that are equally likely under the ground truth, and its log-odds to
the prior are a sum of a few waves over the bins. The head begins at zero, so that an untrained network believes the
prior; being smooth, it needs few examples to become better. It learns by cross-entropy from first episodes of levels
of origin `prior`: these are free examples (τ, θ′) of P̄. What a teacher replays would teach it the curriculum instead.
"""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from samplr.compiling import jit
from samplr.envs.api import Aleatoric, Encoder, Evidence, GroundedEnvironment, Observation
from samplr.envs.spaces import ActionSpace, encoded, encoded_size
from samplr.posteriors import Belief, Posterior

DRAWS = 2**14
"""Draws of the ground truth that bins are made from."""

POINTS = 9
"""Points at which the prior's distribution inside a bin is kept; between them it is taken as even."""

WAVES = 4
"""How many waves the belief about a continuous number is made of; about one of few values it may be anything."""


class Bins(eqx.Module):
    """For each hidden number, bins of (nearly) equal probability under P̄; a number of few values has one for each."""

    points: Float[Array, "k bins points"]
    """Quantiles of the prior inside each bin, from its lower to its upper end."""
    log_prior: Float[Array, "k bins"]
    """−∞ where a number has fewer bins than another."""
    waves: Float[Array, "k waves bins"]
    """The cosines that a belief is made of; zero where a number has fewer than another."""

    @classmethod
    def of(cls, env: GroundedEnvironment, count: int, *, draws: int = DRAWS) -> "Bins":
        """Make at most `count` bins of draws from the ground truth of an environment."""

        def draw(key: PRNGKeyArray) -> Float[Array, " k"]:
            return env.hidden(env.sample_level(key=key).aleatoric)

        hidden = jit(jax.vmap(draw), runs_once=True)(jax.random.split(jax.random.key(0), draws))
        made = [_bins(values, count) for values in np.asarray(hidden).T]
        most = max(len(weight) for _, weight in made)
        points = [np.pad(p, ((0, most - len(p)), (0, 0)), constant_values=np.inf) for p, _ in made]
        weights = [np.pad(weight, (0, most - len(weight))) for _, weight in made]
        waves = [_waves(p) for p, _ in made]
        largest = max(len(wave) for wave in waves)
        waves = [np.pad(wave, ((0, largest - len(wave)), (0, most - wave.shape[1]))) for wave in waves]
        with np.errstate(divide="ignore"):
            return cls(*(jnp.asarray(part, jnp.float32) for part in (points, np.log(weights), waves)))

    @property
    def shape(self) -> tuple[int, int]:
        """How many numbers, and how many bins of each."""
        numbers, bins = self.log_prior.shape
        return numbers, bins

    @property
    def edges(self) -> Float[Array, "k edges"]:
        """The borders between bins."""
        return (self.points[:, :-1, -1] + self.points[:, 1:, 0]) / 2

    def index(self, hidden: Float[Array, " k"]) -> Int[Array, " k"]:
        """The bin that each number lies in."""
        return jnp.sum(hidden[:, None] > self.edges, axis=1)

    def draw(self, index: Int[Array, " k"], *, key: PRNGKeyArray) -> Float[Array, " k"]:
        """Numbers in given bins, distributed inside them as under the prior."""
        points = self.points[jnp.arange(self.shape[0]), index]
        place = jax.random.uniform(key, index.shape) * (POINTS - 1)
        return jax.vmap(lambda x, values: jnp.interp(x, jnp.arange(POINTS), values))(place, points)


def _bins(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and probabilities of one number's bins: its values where there are few, else between quantiles."""
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= count:
        return np.repeat(distinct[:, None], POINTS, axis=1), counts / len(values)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, count + 1)))
    inside = [values[(values >= low) & (values <= high)] for low, high in itertools.pairwise(edges)]
    points = [np.quantile(part, np.linspace(0, 1, POINTS)) for part in inside]
    upto = np.searchsorted(np.sort(values), edges, side="right")
    upto[0] = 0
    return np.asarray(points), np.diff(upto) / len(values)


def _waves(points: np.ndarray) -> np.ndarray:
    """cos(π j (i + ½) / bins) for bin i and wave j = 1, 2, …: all there are for a number of few values."""
    bins = len(points)
    few_values = bool(np.all(points[:, 0] == points[:, -1]))
    waves = np.arange(1, bins if few_values else min(WAVES + 1, bins))
    return np.sqrt(2) * np.cos(np.pi * waves[:, None] * (np.arange(bins) + 0.5) / bins)


class BeliefNetwork(eqx.Module):
    """An encoder of what is seen, a memory of it (GRU), and a head for each hidden number given those before it."""

    encoder: Encoder
    cell: eqx.nn.GRUCell
    heads: tuple[eqx.nn.Linear, ...]
    action_space: ActionSpace = eqx.field(static=True)

    def __init__(
        self,
        encoder: Encoder,
        features: int,
        memory: int,
        bins: Bins,
        action_space: ActionSpace,
        *,
        key: PRNGKeyArray,
    ) -> None:
        numbers, size = bins.shape
        self.encoder = encoder
        self.action_space = action_space
        inputs = features + encoded_size(action_space)
        cell = eqx.nn.GRUCell(inputs, memory, key=key)
        # Equinox scales by the size of the memory alone: the many features of a picture would hold its gates shut.
        self.cell = eqx.tree_at(lambda c: c.weight_ih, cell, cell.weight_ih * (memory / inputs) ** 0.5)
        # Zero, so that the belief begins as the prior.
        waves = bins.waves.shape[1]
        heads = [eqx.nn.Linear(memory + number * size, waves, key=key) for number in range(numbers)]
        self.heads = tuple(jax.tree.map(jnp.zeros_like, head) for head in heads)

    def begin(self, observation: Observation) -> Float[Array, " memory"]:
        """What is remembered of the first observation."""
        return self.remember(jnp.zeros(self.cell.hidden_size), observation, None)

    def remember(
        self, memory: Float[Array, " memory"], observation: Observation, action: Array | None
    ) -> Float[Array, " memory"]:
        """What is remembered after an action, and the observation that followed it."""
        done = jnp.zeros(encoded_size(self.action_space)) if action is None else encoded(action, self.action_space)
        return self.cell(jnp.concatenate([self.encoder(observation), done]), memory)

    def unroll(self, observations: PyTree, actions: Array) -> Float[Array, "t memory"]:
        """What is remembered at each step of an episode; `actions` are those that followed the observations."""
        features = jax.vmap(self.encoder)(observations)
        done = jax.vmap(lambda action: encoded(action, self.action_space))(actions)
        before = jnp.concatenate([jnp.zeros_like(done[:1]), done[:-1]])

        def remember(memory: Array, inputs: Array) -> tuple[Array, Array]:
            memory = self.cell(inputs, memory)
            return memory, memory

        empty = jnp.zeros(self.cell.hidden_size)
        return jax.lax.scan(remember, empty, jnp.concatenate([features, before], axis=1))[1]

    def log_probs(
        self, bins: Bins, memory: Float[Array, " memory"], number: int, before: Int[Array, " number"]
    ) -> Float[Array, " bins"]:
        """log qψ of the bins of one hidden number, given the bins of the numbers before it."""
        known = jax.nn.one_hot(before, bins.shape[1]).ravel()
        amplitudes = self.heads[number](jnp.concatenate([memory, known]))
        return jax.nn.log_softmax(amplitudes @ bins.waves[number] + bins.log_prior[number])


class LearnedPosterior(Posterior):
    """qψ(θ′|τ), used like any posterior: its belief is what the network remembers of the history."""

    env: GroundedEnvironment
    bins: Bins
    network: BeliefNetwork

    def init(self, observation: Observation) -> Belief:
        """The belief after the first observation."""
        return self.network.begin(observation)

    def update(self, belief: Belief, observation: Observation, action: Array, done: Bool[Array, ""]) -> Belief:
        """The belief after one more step."""
        return self.network.remember(belief, observation, action)

    def sample(self, belief: Belief, evidence: Evidence, *, key: PRNGKeyArray) -> Aleatoric:
        """Draw the hidden numbers from the belief, and the rest of θ′ given them and what was revealed."""
        bins_key, inside_key, rest_key = jax.random.split(key, 3)
        chosen: Int[Array, " number"] = jnp.zeros(0, jnp.int32)
        for number in range(self.bins.shape[0]):
            log_probs = self.network.log_probs(self.bins, belief, number, chosen)
            drawn = jax.random.categorical(jax.random.fold_in(bins_key, number), log_probs)
            chosen = jnp.append(chosen, drawn)
        return self.env.complete(self.bins.draw(chosen, key=inside_key), evidence, key=rest_key)


def first_episodes(end: Bool[Array, "t n"]) -> Bool[Array, "t n"]:
    """Which steps of a rollout belong to the first episode of their worker.

    Only these are examples of P̄: of a level whose episodes are short, a rollout holds many.
    """
    ended = jnp.cumsum(end, axis=0) - end
    return ended == 0


def cross_entropy(
    network: BeliefNetwork,
    bins: Bins,
    observations: PyTree,
    actions: Array,
    hidden: Float[Array, "n k"],
    counted: Bool[Array, "t n"],
) -> Float[Array, ""]:
    """−log qψ(θ′|τₜ), averaged over the steps that are counted.

    **Arguments:**

    - `observations`, `actions`: leaves lead with time, then worker; actions as the environment takes them.
    - `hidden`: the hidden numbers of each worker's level.
    """

    def of_worker(observations: PyTree, actions: Array, hidden: Float[Array, " k"]) -> Float[Array, " t"]:
        index = bins.index(hidden)

        def of_step(memory: Array) -> Float[Array, ""]:
            terms = [
                network.log_probs(bins, memory, number, index[:number])[index[number]]
                for number in range(bins.shape[0])
            ]
            return -sum(terms, start=jnp.zeros(()))

        return jax.vmap(of_step)(network.unroll(observations, actions))

    losses: Any = jax.vmap(of_worker, in_axes=(1, 1, 0), out_axes=1)(observations, actions, hidden)
    return jnp.sum(jnp.where(counted, losses, 0.0)) / jnp.maximum(jnp.sum(counted), 1)
