"""The level buffer Λ of prioritised level replay: at most K different levels, with scores and timestamps.

Everything is an array on the device. A batch is merged in one go, without a scan that recomputes the weights for each
level: see `merge`.
"""

import enum

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, UInt32

from samplr.envs.api import Level


class Prioritisation(enum.Enum):
    """How a score becomes a weight h(S)."""

    RANK = "rank"
    POWER = "power"


class LevelBuffer(eqx.Module):
    """Slots for K levels."""

    levels: Level
    fingerprint: UInt32[Array, "k 2"]
    score: Float[Array, " k"]
    best_return: Float[Array, " k"]
    timestamp: Int[Array, " k"]
    filled: Bool[Array, " k"]
    clock: Int[Array, ""]
    """How many levels have been presented so far."""

    @classmethod
    def empty(cls, example: Level, capacity: int) -> "LevelBuffer":
        """A buffer without levels.

        **Arguments:**

        - `example`: a level, or its shape, that says what levels look like.
        - `capacity`: K.
        """
        return cls(
            levels=jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), example),
            fingerprint=jnp.zeros((capacity, 2), jnp.uint32),
            score=jnp.zeros(capacity),
            best_return=jnp.full(capacity, -jnp.inf),
            timestamp=jnp.zeros(capacity, jnp.int32),
            filled=jnp.zeros(capacity, bool),
            clock=jnp.int32(0),
        )

    @property
    def capacity(self) -> int:
        """K."""
        return self.score.shape[0]


def score_weights(
    score: Float[Array, " k"],
    filled: Bool[Array, " k"],
    prioritisation: Prioritisation,
    temperature: Float[Array, ""] | float,
) -> Float[Array, " k"]:
    """P_S ∝ h(S)^(1/β), with h = 1/rank (1 for the highest score) or h = max(S, 0).

    Sums to 1 over the filled slots; uniform where all weights are zero.
    """
    if prioritisation is Prioritisation.RANK:
        order = jnp.argsort(jnp.where(filled, -score, jnp.inf))
        rank = jnp.zeros_like(order).at[order].set(jnp.arange(1, len(score) + 1))
        h = 1 / rank
    else:
        # Divided by the largest first, so that small temperatures neither overflow nor underflow.
        positive = jnp.where(filled, jnp.maximum(score, 0), 0)
        h = positive / jnp.maximum(jnp.max(positive), jnp.finfo(positive.dtype).tiny)
    return _normalised(h ** (1 / temperature), filled)


def staleness_weights(
    timestamp: Int[Array, " k"], clock: Int[Array, ""], filled: Bool[Array, " k"]
) -> Float[Array, " k"]:
    """P_C ∝ c − C_i; uniform over the filled slots where nothing is stale."""
    return _normalised((clock - timestamp).astype(jnp.float32), filled)


def replay_weights(
    buffer: LevelBuffer,
    prioritisation: Prioritisation,
    temperature: Float[Array, ""] | float,
    staleness: Float[Array, ""] | float,
) -> Float[Array, " k"]:
    """P_replay = (1 − ρ) P_S + ρ P_C."""
    by_score = score_weights(buffer.score, buffer.filled, prioritisation, temperature)
    by_age = staleness_weights(buffer.timestamp, buffer.clock, buffer.filled)
    return (1 - staleness) * by_score + staleness * by_age


def _normalised(weight: Float[Array, " k"], filled: Bool[Array, " k"]) -> Float[Array, " k"]:
    weight = jnp.where(filled, weight, 0)
    uniform = filled / jnp.maximum(jnp.sum(filled), 1)
    total = jnp.sum(weight)
    return jnp.where(total > 0, weight / jnp.where(total > 0, total, 1), uniform)


def draw(buffer: LevelBuffer, weights: Float[Array, " k"], count: int, *, key: PRNGKeyArray) -> Int[Array, " count"]:
    """Draw slots without replacement (Gumbel top-k); where fewer are filled, the draw begins again from its first."""
    noise = jax.random.gumbel(key, weights.shape)
    # A filled slot of weight zero still comes before an empty one.
    log_weight = jnp.log(jnp.maximum(weights, jnp.finfo(weights.dtype).tiny))
    ranked = jnp.argsort(jnp.where(buffer.filled, -(log_weight + noise), jnp.inf))
    available = jnp.maximum(jnp.sum(buffer.filled), 1)
    return ranked[jnp.arange(count) % jnp.minimum(available, count)]


def fingerprint(identity: PyTree) -> UInt32[Array, "2"]:
    """64 bits that stand for the bits of a pytree."""
    words = jnp.concatenate([_as_words(leaf) for leaf in jax.tree.leaves(identity)])
    place = jnp.arange(words.size, dtype=jnp.uint32)

    def hashed(seed: int) -> UInt32[Array, ""]:
        return _mix(jnp.sum(_mix(words ^ _mix(place * jnp.uint32(0x9E3779B9) + jnp.uint32(seed)))))

    return jnp.stack([hashed(0x243F6A88), hashed(0x85A308D3)])


def _as_words(leaf: Array) -> UInt32[Array, " words"]:
    flat = jnp.ravel(leaf)
    if flat.dtype == bool or flat.dtype.itemsize < 4:
        return flat.astype(jnp.float32 if jnp.issubdtype(flat.dtype, jnp.floating) else jnp.int32).view(jnp.uint32)
    return jax.lax.bitcast_convert_type(flat, jnp.uint32).ravel()


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """The finaliser of MurmurHash3: every input bit changes half of the output bits."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


class Candidates(eqx.Module):
    """A batch of levels just presented, matched against a buffer."""

    levels: Level
    fingerprint: UInt32[Array, "n 2"]
    slot: Int[Array, " n"]
    """The slot that holds an equal level, or K."""
    same: Float[Array, "n n"]
    """1 where two of the batch are equal levels."""

    @classmethod
    def match(cls, buffer: LevelBuffer, levels: Level, identities: PyTree) -> "Candidates":
        """Find out which levels are in the buffer already."""
        prints = jax.vmap(fingerprint)(identities)
        stored = jnp.all(prints[:, None] == buffer.fingerprint, axis=-1) & buffer.filled
        slot = jnp.where(jnp.any(stored, axis=1), jnp.argmax(stored, axis=1), buffer.capacity)
        same = jnp.all(prints[:, None] == prints, axis=-1)
        return cls(levels, prints, slot, same.astype(jnp.float32))

    def best_return(self, buffer: LevelBuffer, seen: Float[Array, " n"]) -> Float[Array, " n"]:
        """The running maximum: over the batch's equal levels, and over what the buffer remembers."""
        in_batch = jnp.max(jnp.where(self.same > 0, seen, -jnp.inf), axis=1)
        remembered = buffer.best_return.at[self.slot].get(mode="fill", fill_value=-jnp.inf)
        return jnp.maximum(in_batch, remembered)


def merge(
    buffer: LevelBuffer,
    candidates: Candidates,
    score: Float[Array, " n"],
    best_return: Float[Array, " n"],
    prioritisation: Prioritisation,
    temperature: Float[Array, ""] | float,
    staleness: Float[Array, ""] | float,
) -> LevelBuffer:
    """Take in a batch of scored levels.

    A level that is stored already is updated in place; equal levels of one batch count once, with the mean of their
    scores. The others meet the slots of least P_replay (empty ones first), the best candidate the least of all, and
    replace them where their score is strictly higher. For one level this is Algorithm 3 of the paper.
    """
    nowhere = buffer.capacity
    score = jnp.matmul(candidates.same, score, precision="highest") / jnp.sum(candidates.same, axis=1)
    # Of equal levels only the first is written, so that the result does not depend on the order of a scatter.
    first = ~jnp.any(jnp.tril(candidates.same, k=-1) > 0, axis=1)
    buffer = eqx.tree_at(lambda b: b.clock, buffer, buffer.clock + len(score))
    buffer = _write(buffer, jnp.where(first, candidates.slot, nowhere), candidates, score, best_return)

    new = first & (candidates.slot == nowhere)
    weights = replay_weights(buffer, prioritisation, temperature, staleness)
    count = min(len(score), buffer.capacity)
    _, victims = jax.lax.top_k(jnp.where(buffer.filled, -weights, jnp.inf), count)
    best_first = jnp.argsort(jnp.where(new, -score, jnp.inf))[:count]
    inserted = new[best_first] & (~buffer.filled[victims] | (buffer.score[victims] < score[best_first]))
    slot = jnp.full(len(score), nowhere).at[best_first].set(jnp.where(inserted, victims, nowhere))
    return _write(buffer, slot, candidates, score, best_return)


def _write(
    buffer: LevelBuffer,
    slot: Int[Array, " n"],
    candidates: Candidates,
    score: Float[Array, " n"],
    best_return: Float[Array, " n"],
) -> LevelBuffer:
    """Write candidates to their slots; slot K is nowhere."""

    def put(stored: Array, value: Array) -> Array:
        return stored.at[slot].set(value, mode="drop")

    return LevelBuffer(
        levels=jax.tree.map(put, buffer.levels, candidates.levels),
        fingerprint=put(buffer.fingerprint, candidates.fingerprint),
        score=put(buffer.score, score),
        best_return=put(buffer.best_return, best_return),
        timestamp=buffer.timestamp.at[slot].set(buffer.clock, mode="drop"),
        filled=buffer.filled.at[slot].set(True, mode="drop"),
        clock=buffer.clock,
    )
