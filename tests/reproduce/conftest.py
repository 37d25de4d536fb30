"""A small study that is done, for the tests of this folder."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from reproduce.small import SMALL
from samplr.reproduce import command, reproduce
from samplr.reproduce.pieces import ExamPiece, TrainingPiece
from tiny import UPDATES, sharing_programs


@pytest.fixture
def shared_programs() -> Iterator[None]:
    """One compiled program for all small runs that compute the same."""
    with sharing_programs():
        yield


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small study that was done in one go, not to be changed."""
    out = tmp_path_factory.mktemp("study") / "out"
    with sharing_programs():
        reproduce(SMALL, out, progress=False)
    return out


@pytest.fixture
def study(finished: Path, tmp_path: Path) -> Path:
    """The same, for a test to change."""
    return Path(shutil.copytree(finished, tmp_path / "study"))


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pieces that are done while a test runs, and in place of each a few numbers."""
    found: list[str] = []

    def note(self: TrainingPiece | ExamPiece, **_: object) -> None:
        found.append(f"{self.batch.variant} {self.batch.name} {self.name}")
        self.folder.write(self.batch, self.name, [{"seed": s, "update": UPDATES} for s in self.batch.seeds], {})

    monkeypatch.setattr(TrainingPiece, "do", note)
    monkeypatch.setattr(ExamPiece, "do", note)
    monkeypatch.setattr(command, "_expected_seconds", lambda folder, missing, console: ([1.0] * len(missing), None))
    return found
