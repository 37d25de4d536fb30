"""What can go wrong with a simulator is told in one sentence, and costs no more than what came after the checkpoint."""

import dataclasses
import multiprocessing
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import samplr
from gym_icy_road import FaultyIcyRoad, NoCopyIcyRoad
from samplr.errors import LevelError, SamplrError
from samplr.host.training import HostTraining
from samplr.store import read_checkpoint, read_metrics
from samplr.training import Training
from store.runs import assert_same

SIZES = {"workers": 4, "rollout": 12, "replay__capacity": 8, "student__hidden": (8,), "log_every": 1}
STEPS_PER_UPDATE = 4 * 12


def config(env: Any, method: str = "samplr", *, updates: int = 2, **changes: Any) -> samplr.Config:
    once = {"student__epochs": 1, "student__minibatches": 1, "checkpoint_seconds": 0.0}
    return samplr.default_config(
        env, method, **SIZES, **once, **{"steps": updates * STEPS_PER_UPDATE, "processes": 0, **changes}
    )


@pytest.fixture(autouse=True)
def _no_process_is_left_behind():
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("fault", "error", "sentence"),
    [
        ("level", LevelError, "FaultySimulator refuses a level: the road is too short"),
        (
            "state",
            SamplrError,
            "the state of FaultySimulator cannot be copied: cannot copy a handle; mend get_state or set_state, or "
            "choose grounding 'none' or 'naive'",
        ),
        (
            "observation",
            SamplrError,
            "FaultySimulator gave an observation of shape (17,), and its observation_space says (18,)",
        ),
        ("reward", SamplrError, "FaultySimulator gave the reward nan, which is not a finite number"),
        (
            "forgets",
            SamplrError,
            "FaultySimulator does not keep what was revealed: after get_state, set_state and substitute the evidence "
            "is another",
        ),
        ("crash", SamplrError, "a simulator of FaultyIcyRoad failed: the engine broke"),
    ],
)
def test_a_simulator_at_fault_is_told_in_one_sentence(fault: str, error: type[SamplrError], sentence: str) -> None:
    with pytest.raises(SamplrError) as caught:
        samplr.train(config(FaultyIcyRoad(fault=fault)))
    assert type(caught.value) is error
    assert str(caught.value) == sentence


def test_the_sentence_is_the_same_from_a_worker_process() -> None:
    with pytest.raises(LevelError, match=r"^FaultySimulator refuses a level: the road is too short$"):
        samplr.train(config(FaultyIcyRoad(fault="level"), processes=2))


def test_a_simulator_that_copies_no_state_is_refused_for_fictitious_alone() -> None:
    with pytest.raises(SamplrError) as caught:
        HostTraining(config(NoCopyIcyRoad()))
    assert str(caught.value) == (
        "NoCopySimulator has no evidence, substitute, get_state, set_state, so it cannot be trained with grounding "
        "'fictitious': choose 'none' or 'naive', or give it what samplr.envs.gymnasium.GroundedSimulator asks for"
    )
    for method in ("robust_plr", "naive"):
        assert samplr.train(config(NoCopyIcyRoad(), method)).summary["updates"] == 2


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on which nothing went wrong."""
    path = tmp_path_factory.mktemp("unharmed") / "run"
    samplr.train(config(FaultyIcyRoad(), updates=4), path)
    return path


@pytest.mark.parametrize(
    ("fault", "patience", "sentence"),
    [
        ("killed", 60.0, "a worker process died (by signal 9): "),
        ("hung", 5.0, "a worker process has not answered for 5 s (--patience-seconds): "),
    ],
)
def test_a_worker_that_dies_or_hangs_costs_what_came_after_the_checkpoint(
    fault: str, patience: float, sentence: str, tmp_path: Path, unharmed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, run = tmp_path / "flag", tmp_path / "run"
    wanted = config(FaultyIcyRoad(fault=fault, flag=str(flag)), updates=4, processes=2, patience_seconds=patience)
    advance, advanced = HostTraining.advance, []

    def struck_at_the_third(self: Training, *arguments: Any) -> Any:
        advanced.append(1)
        if len(advanced) == 3:
            flag.touch()
        return advance(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(HostTraining, "advance", struck_at_the_third)
        with pytest.raises(SamplrError) as caught:
            samplr.train(wanted, run)
    assert str(caught.value) == sentence + "the last checkpoint is intact, and --resume goes on from it"
    assert multiprocessing.active_children() == []
    assert read_checkpoint(run).update == 2
    assert [row["update"] for row in read_metrics(run)] == [1, 2]
    assert not os.path.exists(flag)

    samplr.train(dataclasses.replace(wanted, processes=0), run, resume=True)
    assert [row["update"] for row in read_metrics(run)] == [1, 2, 3, 4]
    assert_same(read_checkpoint(run).arrays, read_checkpoint(unharmed).arrays)


def test_a_world_that_worker_processes_cannot_import_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = types.ModuleType("nowhere")
    lost = type("Lost", (FaultyIcyRoad,), {"__module__": "nowhere"})
    monkeypatch.setitem(sys.modules, "nowhere", nowhere)
    monkeypatch.setattr(nowhere, "Lost", lost, raising=False)
    with pytest.raises(
        SamplrError, match=r"^a worker process died while it started: the environment must be in a module"
    ):
        samplr.train(config(lost(), processes=2))
