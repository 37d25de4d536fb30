"""Training in the real game: DR, PLR⊥ and naive; `fictitious` is refused, because a game cannot be copied."""

import multiprocessing
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nle")
pytest.importorskip("minihack")

import samplr
from samplr.envs.fruit_choice.host import FruitChoiceNetHack
from samplr.envs.fruit_choice.world import FruitChoice

ENV = FruitChoiceNetHack(max_rooms=1, step_limit=12)


def config(method: str, **changes: Any) -> samplr.Config:
    sizes = {"workers": 2, "rollout": 16, "replay__capacity": 2, "replay__fill": 1.0, "replay__rate": 1.0}
    student = {"encoder": "mlp", "hidden": (8,), "memory": 0, "epochs": 1}
    named = {f"student__{name}": value for name, value in student.items()}
    return samplr.default_config(ENV, method, **sizes, **named, steps=3 * 2 * 16, **changes)


def test_it_looks_and_is_played_as_our_own_game() -> None:
    ours = FruitChoice()
    assert ENV.action_space == ours.action_space
    shapes = [{name: box.shape for name, box in env.observation_space.items()} for env in (ENV, ours)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    "method", [pytest.param("dr", marks=pytest.mark.slow), pytest.param("robust_plr", marks=pytest.mark.slow), "naive"]
)
def test_a_student_trains_in_the_real_game(method: str) -> None:
    run = samplr.train(config(method, processes=2 if method == "naive" else 0))
    assert run.summary["updates"] == 3
    phase = "new" if method == "dr" else "replay"
    assert np.isfinite(run.metrics[-1]["student/policy"]).all()
    assert run.metrics[-1][f"{phase}/rooms"] == [1.0], "an episode of 12 steps ended in every rollout of 16"
    assert multiprocessing.active_children() == []


def test_fictitious_is_refused() -> None:
    with pytest.raises(samplr.SamplrError, match=r"FruitChoiceSimulator has no evidence.*choose 'none' or 'naive'"):
        samplr.train(config("samplr"))
