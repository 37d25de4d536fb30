"""What a curriculum ended on."""

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.config import Config, default_config
from samplr.posteriors import BernoulliField
from samplr.reproduce import curricula
from samplr.reproduce.curricula import ICE, REVEALED, CurriculumExam
from samplr.run import Run
from samplr.student.networks import ActorCritic
from samplr.teachers.buffer import LevelBuffer
from samplr.teachers.dr import sample_levels
from samplr.training import build_student

WORKERS, ROLLOUTS = 2, 3


def configured(method: str) -> Config:
    return default_config(
        "black_ice",
        method,
        workers=WORKERS,
        rollout=6,
        steps=WORKERS * 6 * 2,
        log_every=2,
        env__smoothing=1,
        env__cell=2.0,
        replay__capacity=4,
        replay__fill=0.25,
        student__epochs=1,
        student__minibatches=1,
    )


@pytest.fixture(scope="module")
def trained() -> Run:
    """As if trained: a student, and a teacher that remembers as many levels as it can."""
    config = configured("robust_plr")

    def begin(key: jax.Array) -> tuple[ActorCritic, LevelBuffer]:
        levels = sample_levels(config.env, config.replay.capacity, key=key)
        buffer = LevelBuffer.empty(jax.tree.map(lambda leaf: leaf[0], levels), config.replay.capacity)
        filled = jnp.ones_like(buffer.filled)
        buffer = eqx.tree_at(
            lambda b: (b.levels, b.score, b.filled), buffer, (levels, jnp.ones_like(buffer.score), filled)
        )
        return build_student(config, key=key), buffer

    networks, buffers = jit(jax.vmap(begin), runs_once=True)(jax.random.split(jax.random.key(0), 1))
    return Run(config, networks, [], {}, None, buffers)


def examined(monkeypatch: pytest.MonkeyPatch, run: Run) -> list[dict[str, Any]]:
    monkeypatch.setattr(curricula, "load", lambda path: run)
    examine = CurriculumExam(rollouts=ROLLOUTS).prepare(run.config, Path())
    return [dict(row) for row in examine(run.networks, lambda: None)]


def with_ice(run: Run, icy: bool) -> Run:
    """The same run, whose teachers remember levels that are icy all over, or not at all."""
    ice = run.teacher.levels.aleatoric
    bits = jnp.full_like(ice.bits, icy)
    buffers = eqx.tree_at(lambda b: b.levels.aleatoric, run.teacher, BernoulliField(ice.rate, bits))
    return dataclasses.replace(run, teacher=buffers)


@pytest.mark.parametrize("icy", [False, True])
def test_the_ice_that_a_teacher_remembers_is_met_and_the_posterior_is_surprised(
    monkeypatch: pytest.MonkeyPatch, trained: Run, icy: bool
) -> None:
    rows = examined(monkeypatch, with_ice(trained, icy))
    assert {row["ice_from"] for row in rows} == {ICE[-1] if icy else 0.0}
    assert sum(row["levels"] for row in rows) == ROLLOUTS * WORKERS
    tiles = sum(row["tiles"] for row in rows)
    assert tiles > 0
    assert sum(row["icy"] for row in rows) == (tiles if icy else 0)
    first = [row for row in rows if row["revealed_from"] == REVEALED[0] and row["tiles"]]
    for row in first:
        # Beta(1, 15) before anything is known.
        assert row["fictitious"] == pytest.approx(row["tiles"] / 16)


def test_naive_grounding_redraws_the_ice(monkeypatch: pytest.MonkeyPatch, trained: Run) -> None:
    frozen = with_ice(trained, True)
    rows = examined(monkeypatch, dataclasses.replace(frozen, config=configured("naive")))
    assert sum(row["icy"] for row in rows) < 0.5 * sum(row["tiles"] for row in rows)


def test_domain_randomisation_has_no_memory_and_takes_part(monkeypatch: pytest.MonkeyPatch, trained: Run) -> None:
    rows = examined(monkeypatch, dataclasses.replace(trained, config=configured("dr"), teacher=None))
    assert sum(row["levels"] for row in rows) == ROLLOUTS * WORKERS


@pytest.mark.parametrize(("number", "begins"), [(0, 0), (1, 1), (3, 2), (255, 128), (256, 256), (468, 256)])
def test_bins_begin_where_they_say(number: int, begins: int) -> None:
    place = np.asarray(jax.jit(lambda n: curricula._one_hot(n, REVEALED))(jnp.int32(number)))
    assert place.sum() == 1
    assert REVEALED[place.argmax()] == begins
