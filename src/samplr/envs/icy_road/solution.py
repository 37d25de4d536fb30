"""Icy road solved exactly, by dynamic programming over its histories.

What the agent does reveals nothing that driving on would not, so a history τ is the list of what the segments crossed
so far were like: there are 2ᵗ histories of length t, and 2ᴺ − 1 at which there is something to decide. Every table here
has one entry for each of those, depth after depth, and within a depth ordered as binary numbers whose first crossed
segment is the most significant bit (1 for ice). A policy is the probability of driving fast at every history.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from samplr.envs.icy_road.world import FAST, IcyRoad, IcyRoadState
from samplr.errors import SamplrError
from samplr.posteriors import BernoulliField
from samplr.student.distributions import Categorical
from samplr.student.networks import ActorCritic

Histories = Float[Array, " histories"]


class HistoryTable(eqx.Module):
    """What a student does and expects at every history."""

    fast: Histories
    value: Histories


def depths(env: IcyRoad) -> Int[np.ndarray, " histories"]:
    """How many segments each history has crossed."""
    return np.repeat(np.arange(env.segments), 2 ** np.arange(env.segments))


def icy_counts(env: IcyRoad) -> Int[np.ndarray, " histories"]:
    """How many of them were icy."""
    within = np.concatenate([np.arange(2**depth) for depth in range(env.segments)])
    return np.bitwise_count(within).astype(np.int64)


def predictive(env: IcyRoad) -> Histories:
    """P̄(next segment is icy|τ) = (α + N₊) / (α + β + t)."""
    return jnp.asarray((env.alpha + icy_counts(env)) / (env.alpha + env.beta + depths(env)), jnp.float32)


def history_probability(env: IcyRoad) -> Histories:
    """P̄(τ): the probability that the first t segments are like this."""
    icy, probability = predictive(env), [jnp.ones(1)]
    for depth in range(env.segments - 1):
        p = icy[_at(depth)]
        probability.append((probability[-1][:, None] * jnp.stack([1 - p, p], axis=1)).ravel())
    return jnp.concatenate(probability)


def bayes_optimal(env: IcyRoad) -> Histories:
    """The Bayes-optimal policy: since driving fast buys no information, the best action is the best next reward."""
    return (_expected_reward(jnp.ones(()), predictive(env)) > 1.0).astype(jnp.float32)


def utility(env: IcyRoad, fast: Histories, *, discount: float = 1.0, icy: Histories | None = None) -> Histories:
    """Ū(π|τ) at every history: the expected sum of the rewards to come.

    **Arguments:**

    - `fast`: the policy.
    - `discount`: 1 for the utility; the student's γ for the V̄^π its critic should learn.
    - `icy`: the probability that the next segment is icy, by default the ground truth's `predictive`.
    """
    icy = predictive(env) if icy is None else icy
    reward = _expected_reward(fast, icy)
    after: Float[Array, " next"] = jnp.zeros(2**env.segments)
    tables = []
    for depth in reversed(range(env.segments)):
        p, dry_or_icy = icy[_at(depth)], after.reshape(-1, 2)
        after = reward[_at(depth)] + discount * ((1 - p) * dry_or_icy[:, 0] + p * dry_or_icy[:, 1])
        tables.append(after)
    return jnp.concatenate(tables[::-1])


def return_at_rate(env: IcyRoad, fast: Histories, rate: float) -> Float[Array, ""]:
    """The expected return of a policy where ice is drawn at a fixed rate."""
    return utility(env, fast, icy=jnp.full(fast.shape, rate))[0]


def history_regret(env: IcyRoad, fast: Histories) -> Histories:
    """Ū(π*|τ) − Ū(π|τ): what the policy will still lose against the Bayes-optimal one."""
    return utility(env, bayes_optimal(env)) - utility(env, fast)


def level_return(env: IcyRoad, fast: Histories, bits: Bool[Array, " segments"]) -> Float[Array, ""]:
    """The expected return of a policy on one road."""
    return jnp.sum(_expected_reward(fast[_path(env, bits)], bits.astype(jnp.float32)))


def level_regret(env: IcyRoad, fast: Histories, bits: Bool[Array, " segments"]) -> Float[Array, ""]:
    """The exact regret of a level: what a driver who is told the ice would gain over the policy."""
    told = jnp.sum(jnp.where(bits, 1.0, 2.0))
    return told - level_return(env, fast, bits)


def grounded_level_regret(env: IcyRoad, fast: Histories, bits: Bool[Array, " segments"]) -> Float[Array, ""]:
    """Ū_θ(π*) − Ū_θ(π): the mean regret to the Bayes-optimal policy over the histories that the level leads to."""
    return jnp.mean(history_regret(env, fast)[_path(env, bits)])


def value_error(env: IcyRoad, table: HistoryTable, *, discount: float) -> Float[Array, ""]:
    """Root mean square of V − V̄^π over the histories met under P̄."""
    squared = (table.value - utility(env, table.fast, discount=discount)) ** 2
    return jnp.sqrt(jnp.sum(history_probability(env) * squared) / env.segments)


def tabulate(env: IcyRoad, network: ActorCritic) -> HistoryTable:
    """Ask a student for its policy and value at every history, memory included."""
    if network.acted is not None:
        raise SamplrError("a student that sees its actions has no one policy at a history of roads: train it without")
    memory = jax.tree.map(lambda leaf: leaf[None], network.initial_memory())
    fast, value = [], []
    for depth in range(env.segments):
        observations = jax.vmap(lambda state: env.observe(None, state))(_states(env, depth))
        policy, v, memory = jax.vmap(network)(observations, memory)
        assert isinstance(policy, Categorical)
        fast.append(policy.probabilities[:, 0, FAST])
        value.append(v)
        memory = jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, axis=0), memory)
    return HistoryTable(jnp.concatenate(fast), jnp.concatenate(value))


def _expected_reward(fast: Array, icy: Array) -> Array:
    return (1 - fast) * 1.0 + fast * (2.0 * (1 - icy) - 8.0 * icy)


def _at(depth: int) -> slice:
    """Where the histories of one depth lie in a table."""
    return slice(2**depth - 1, 2 ** (depth + 1) - 1)


def _path(env: IcyRoad, bits: Bool[Array, " segments"]) -> Int[Array, " segments"]:
    """The histories that a road leads through."""
    node = jnp.int32(0)
    path = []
    for segment in range(env.segments):
        path.append(node)
        node = 2 * node + 1 + bits[segment]
    return jnp.stack(path)


def _states(env: IcyRoad, depth: int) -> IcyRoadState:
    """A state for every history of one depth, in order."""
    within = np.arange(2**depth)
    bits = np.zeros((2**depth, env.segments), bool)
    for segment in range(depth):
        bits[:, segment] = (within >> (depth - 1 - segment)) & 1
    return IcyRoadState(jnp.full(2**depth, depth, jnp.int32), BernoulliField(jnp.zeros(2**depth), jnp.asarray(bits)))
