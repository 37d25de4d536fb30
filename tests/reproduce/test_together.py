"""Several commands at work in one folder of a study."""

import dataclasses
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from reproduce.small import SMALL, STEPS, count
from samplr.errors import BusyError, RunFolderError, SamplrWarning
from samplr.reproduce import pieces, reproduce
from samplr.reproduce.folder import Batch, StudyFolder
from samplr.reproduce.pieces import ExamPiece, TrainingPiece
from samplr.reproduce.studies import Data, Report
from samplr.store import held
from samplr.store.files import alone_in
from tiny import UPDATES

pytestmark = pytest.mark.usefixtures("shared_programs")


class TestTwoCommandsAtOnce:
    @pytest.fixture
    def other(self, monkeypatch: pytest.MonkeyPatch, done: list[str]) -> Callable[[dict[str, list[str]]], None]:
        """Has another command be busy with pieces while this one comes to them, and do them meanwhile."""

        def busy(with_these: dict[str, list[str]]) -> None:
            def work(self: TrainingPiece | ExamPiece, **_: object) -> None:
                name = f"{self.batch.variant} {self.name}"
                meanwhile = with_these.pop(name, None)
                if meanwhile is not None:
                    done.append(f"{name} was busy")
                    for other in meanwhile:
                        self.folder.write(self.batch, other, [{"seed": 0, "update": UPDATES}], {})
                    raise BusyError("another process is at work")
                done.append(name)
                self.folder.write(self.batch, self.name, [{"seed": 0, "update": UPDATES}], {})

            monkeypatch.setattr(TrainingPiece, "do", work)
            monkeypatch.setattr(ExamPiece, "do", work)

        return busy

    DR = ("dr training", "dr ground_truth", "dr fixed_rates")
    SAMPLR = ("samplr training", "samplr ground_truth", "samplr fixed_rates")

    def test_what_the_other_does_comes_last(self, tmp_path: Path, other: Callable, done: list[str]) -> None:
        other({"dr training": []})
        reproduce(SMALL, tmp_path / "out", progress=False)
        assert done == ["dr training was busy", *self.SAMPLR, *self.DR]

    def test_what_the_other_has_done_meanwhile_is_not_done_again(
        self, tmp_path: Path, other: Callable, done: list[str]
    ) -> None:
        other({"dr training": ["training", "fixed_rates"]})
        reproduce(SMALL, tmp_path / "out", progress=False)
        assert done == ["dr training was busy", "dr ground_truth", *self.SAMPLR]

    def test_an_exam_that_the_other_takes_is_waited_for(self, study: Path, other: Callable, done: list[str]) -> None:
        for name in ("ground_truth", "fixed_rates"):
            (study / "data" / "dr" / "seeds-0-1" / f"{name}.csv").unlink()
        other({"dr ground_truth": ["ground_truth"]})
        reproduce(SMALL, study, progress=False)
        assert done == ["dr ground_truth was busy", "dr fixed_rates"]

    def test_what_it_is_busy_with_to_the_end_is_told_and_all_else_is_done(
        self, study: Path, monkeypatch: pytest.MonkeyPatch, done: list[str]
    ) -> None:
        shutil.rmtree(study / "data" / "dr" / "seeds-0-1")
        (study / "data" / "samplr" / "seeds-0-1" / "fixed_rates.csv").unlink()
        (study / "results.json").unlink()

        def busy(self: TrainingPiece, **_: object) -> None:
            raise BusyError("another process is at work")

        monkeypatch.setattr(TrainingPiece, "do", busy)
        left = "dr seeds-0-1: training, dr seeds-0-1: ground_truth, dr seeds-0-1: fixed_rates"
        with pytest.warns(SamplrWarning, match=f"another command is at work on {left}: run this one again"):
            reproduce(SMALL, study, progress=False)
        assert done == ["samplr seeds-0-1 fixed_rates"]
        assert (study / "results.json").exists()

    def test_seeds_that_the_other_begins_in_another_batch_are_not_trained_twice(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: list[str]
    ) -> None:
        folder = StudyFolder.open(tmp_path / "out", SMALL, None)

        def train(self: TrainingPiece, **_: object) -> None:
            folder.run(Batch("samplr", range(1))).mkdir(parents=True, exist_ok=True)  # as of `--seeds 1`
            done.append(f"{self.batch.variant} {self.batch.name}")
            self.folder.write(self.batch, self.name, [{"seed": s, "update": UPDATES} for s in self.batch.seeds], {})

        monkeypatch.setattr(TrainingPiece, "do", train)
        reproduce(SMALL, folder.root, only="train", progress=False)
        assert done == ["dr seeds-0-1", "samplr seeds-0-0", "samplr seeds-1-1"]

    def test_an_exam_keeps_others_from_the_run(self, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (study / "data" / "dr" / "seeds-0-1" / "fixed_rates.csv").unlink()
        run = study / "runs" / "dr" / "seeds-0-1"

        def examined(*_: object) -> None:
            with pytest.raises(BusyError, match="is being written by another process"), held(run):
                pass
            raise KeyboardInterrupt

        monkeypatch.setattr(pieces, "load_students", examined)
        with pytest.raises(KeyboardInterrupt):
            reproduce(SMALL, study, progress=False)
        with held(run):
            pass

    def test_a_study_that_the_other_has_begun_with_other_steps_is_refused(self, tmp_path: Path) -> None:
        late = StudyFolder.open(tmp_path, SMALL, STEPS)
        StudyFolder.open(tmp_path, SMALL, 2 * STEPS).register(SMALL.variants)
        with pytest.raises(RunFolderError, match=r"have 4,608 steps each, not 2,304"):
            late.register(SMALL.variants)

    def test_reports_are_written_one_after_the_other(self, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The other command's report waits until this one's is written, and so its numbers are the later ones."""
        order: list[str] = []

        def second() -> None:
            with alone_in(study):
                order.append("second")

        thread = threading.Thread(target=second)

        def report(data: Data) -> Report:
            thread.start()
            thread.join(0.2)
            order.append("first")
            return count(data)

        reproduce(dataclasses.replace(SMALL, report=report), study, only="report", progress=False)
        thread.join()
        assert order == ["first", "second"]
