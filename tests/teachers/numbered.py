"""Levels that are nothing but a number, and buffers written down slot by slot."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from samplr.compiling import jit
from samplr.envs.api import Level, Origin
from samplr.teachers.buffer import Candidates, LevelBuffer, Prioritisation, fingerprint, merge

RANK, POWER = Prioritisation.RANK, Prioritisation.POWER


def numbered(ids: Sequence[int] | Array) -> Level:
    """A level for each number, stacked."""
    aleatoric = jnp.asarray(ids, jnp.int32)
    return Level(None, aleatoric, jnp.full(aleatoric.shape, Origin.PRIOR, jnp.int32))


def empty(capacity: int) -> LevelBuffer:
    return LevelBuffer.empty(jax.eval_shape(lambda: Level(None, jnp.int32(0), jnp.int32(0))), capacity)


def buffer_of(
    ids: Sequence[int],
    score: Sequence[float],
    *,
    timestamp: Sequence[int] | None = None,
    clock: int = 0,
    best_return: Sequence[float] | None = None,
    capacity: int | None = None,
) -> LevelBuffer:
    """A buffer whose first slots hold these levels; any slots beyond are empty."""
    slots = len(ids) if capacity is None else capacity

    def padded(values: Sequence[float], filling: float) -> np.ndarray:
        return np.concatenate([values, np.full(slots - len(ids), filling)])

    levels = numbered(padded(ids, 0))
    return LevelBuffer(
        levels=levels,
        fingerprint=jax.vmap(fingerprint)((levels.layout, levels.aleatoric)),
        score=jnp.asarray(padded(score, 0), jnp.float32),
        best_return=jnp.asarray(padded([0.0] * len(ids) if best_return is None else best_return, -np.inf), jnp.float32),
        timestamp=jnp.asarray(padded([clock] * len(ids) if timestamp is None else timestamp, 0), jnp.int32),
        filled=jnp.arange(slots) < len(ids),
        clock=jnp.int32(clock),
    )


@functools.partial(jit, runs_once=True, static_argnames="prioritisation")
def _present(
    buffer: LevelBuffer,
    levels: Level,
    score: Array,
    seen: Array,
    temperature: Array,
    staleness: Array,
    *,
    prioritisation: Prioritisation,
) -> LevelBuffer:
    candidates = Candidates.match(buffer, levels, (levels.layout, levels.aleatoric))
    best_return = candidates.best_return(buffer, seen)
    return merge(buffer, candidates, score, best_return, prioritisation, temperature, staleness)


def present(
    buffer: LevelBuffer,
    ids: Sequence[int],
    score: Sequence[float],
    *,
    seen: Sequence[float] | None = None,
    prioritisation: Prioritisation = POWER,
    temperature: float = 1.0,
    staleness: float = 0.0,
) -> LevelBuffer:
    """Show a batch of scored levels to a buffer, as a teacher does; `seen` are their returns in this rollout."""
    return _present(
        buffer,
        numbered(ids),
        jnp.asarray(score, jnp.float32),
        jnp.asarray([0.0] * len(ids) if seen is None else seen, jnp.float32),
        jnp.float32(temperature),
        jnp.float32(staleness),
        prioritisation=prioritisation,
    )


def ids_of(buffer: LevelBuffer) -> list[int | None]:
    """The number in each slot, `None` for an empty one."""
    return [
        int(level) if filled else None
        for level, filled in zip(buffer.levels.aleatoric, np.asarray(buffer.filled), strict=True)
    ]
