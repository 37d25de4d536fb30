"""What a study warns of: students that are lost, whose numbers it leaves out."""

import functools
import math
import warnings
from pathlib import Path

import equinox as eqx
import pytest

from reproduce.small import SMALL
from samplr.config import Config
from samplr.errors import GroundingWarning, SamplrWarning
from samplr.reproduce import command, pieces, reproduce
from samplr.reproduce.folder import StudyFolder
from samplr.reproduce.pieces import TrainingPiece
from samplr.reproduce.records import read_json
from samplr.student.networks import ActorCritic
from tiny import UPDATES

pytestmark = pytest.mark.usefixtures("shared_programs")


def test_a_seed_that_diverged_is_left_out_and_told(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a student plays on: with parameters that are no numbers it takes some action, too."""
    (study / "data" / "samplr" / "seeds-0-1" / "ground_truth.csv").unlink()
    load_students = pieces.load_students

    def second_is_lost_in_the_end(run: Path, update: int, config: Config) -> ActorCritic:
        networks = load_students(run, update, config)
        lost = networks.actor.weight.at[1].set(math.nan) if update == UPDATES else networks.actor.weight
        return eqx.tree_at(lambda networks: networks.actor.weight, networks, lost)

    monkeypatch.setattr(pieces, "load_students", second_is_lost_in_the_end)
    folder = StudyFolder.open(study, SMALL, None)
    reproduce_it = functools.partial(reproduce, SMALL, study, progress=False)
    with pytest.warns(SamplrWarning, match="samplr has diverged with seed 1: its numbers leave that out"):
        reproduce_it()
    with pytest.warns(SamplrWarning, match="samplr has diverged with seed 1: its numbers leave that out"):
        report = reproduce_it(only="report")
    data = folder.load()
    assert data.diverged == {"samplr": [1]}
    for name in ("training", "ground_truth", "fixed_rates"):
        assert {row["seed"] for row in data.of(name) if row["variant"] == "samplr"} == {0}
        assert {row["seed"] for row in data.of(name) if row["variant"] == "dr"} == {0, 1}
    assert report.results["diverged"] == read_json(study / "results.json")["diverged"] == {"samplr": [1]}


def test_a_study_warns_of_lost_students_and_not_of_shifts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(self: TrainingPiece, **_: object) -> None:
        warnings.warn("the curriculum has shifted the ice", GroundingWarning, stacklevel=1)
        warnings.warn("the run of seed 1 has diverged", SamplrWarning, stacklevel=1)
        self.folder.write(self.batch, self.name, [{"seed": 0, "update": UPDATES}], {})

    monkeypatch.setattr(TrainingPiece, "do", warn)
    monkeypatch.setattr(command, "_expected_seconds", lambda folder, missing, console: ([1.0] * len(missing), None))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        reproduce(SMALL, tmp_path / "out", methods=["dr"], only="train", progress=False)
    assert [str(warning.message) for warning in told] == ["the run of seed 1 has diverged"]
