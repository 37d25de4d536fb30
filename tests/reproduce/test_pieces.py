"""Studies in pieces: stopped, resumed and added to, and nothing done twice."""

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from reproduce.small import SMALL, STEPS, files
from samplr.config import Config
from samplr.errors import RunFolderError, SamplrError, UnknownNameError
from samplr.evaluation import evaluate, suite_named
from samplr.reproduce import pieces, reproduce
from samplr.reproduce.command import _by_experience, _duration
from samplr.reproduce.folder import TRAINING, Batch, StudyFolder
from samplr.reproduce.pieces import ExamPiece, TrainingPiece, fewest_gradient_updates
from samplr.reproduce.records import read_csv, read_json, write_json
from samplr.reproduce.students import load_students, saved_updates
from samplr.reproduce.studies import Examiner
from samplr.run import load
from samplr.settings import parse_settings
from samplr.statistics import cvar
from samplr.training import TrainState
from tiny import UPDATES

BOTH = ("dr", "samplr")

pytestmark = pytest.mark.usefixtures("shared_programs")


def read(root: Path, name: str, variant: str = "samplr", seeds: str = "seeds-0-1") -> list[dict]:
    return read_csv(root / "data" / variant / seeds / f"{name}.csv")


class TestAFinishedStudy:
    def test_every_batch_has_its_numbers(self, finished: Path) -> None:
        assert set(files(finished)) == {
            f"data/{variant}/seeds-0-1/{name}.csv"
            for variant in BOTH
            for name in ("training", "ground_truth", "fixed_rates")
        }
        assert read_json(finished / "study.json") == {"study": "small", "steps": STEPS}
        assert (finished / "figures" / "empty.png").read_bytes().startswith(b"\x89PNG")

    def test_training_has_a_row_for_each_seed_and_line(self, finished: Path) -> None:
        rows = read(finished, "training")
        assert [row["seed"] for row in rows[:3]] == [0, 1, 0]
        assert sorted({row["update"] for row in rows}) == [3, 6, 9, 12, 15, 18, 21, 24]
        assert len(rows) == 16
        metrics = load(finished / "runs" / "samplr" / "seeds-0-1").metrics
        assert rows[-1]["replay/return"] == pytest.approx(metrics[-1]["replay/return"][1], rel=1e-6)
        assert all(row["replay/return"] is None for row in read(finished, "training", "dr"))

    def test_students_are_kept_along_training(self, finished: Path) -> None:
        run = finished / "runs" / "samplr" / "seeds-0-1"
        assert saved_updates(run, [0, 1]) == [15, UPDATES]
        loaded = load(run)
        kept = load_students(run, UPDATES, loaded.config)
        for ours, theirs in zip(jax.tree.leaves(kept), jax.tree.leaves(loaded.networks), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        early = load_students(run, 15, loaded.config)
        assert not np.array_equal(early.actor.weight, kept.actor.weight)

    def test_the_first_student_of_each_variant_is_one_file(self, finished: Path) -> None:
        assert {file.stem for file in (finished / "policies").iterdir()} == set(SMALL.variants)
        policy = load(finished / "policies" / "samplr.npz")
        run = load(finished / "runs" / "samplr" / "seeds-0-1")
        assert (policy.config.seeds, policy.config.method) == (1, "samplr")
        for ours, theirs in zip(jax.tree.leaves(policy.networks), jax.tree.leaves(run.networks), strict=True):
            np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-3, atol=1e-6)

    def test_an_exam_is_what_evaluate_says(self, finished: Path) -> None:
        run = load(finished / "runs" / "samplr" / "seeds-0-1")
        for name, episodes in (("ground_truth", 6), ("fixed_rates", 4)):
            expected = evaluate(run.env, run.networks, suite_named(run.env, name), episodes=episodes)
            rows = [row for row in read(finished, name) if row["update"] == UPDATES]
            assert len(rows) == 2 * len(expected)
            for row in rows:
                returns = expected[row["condition"]].figures["return"][row["seed"]]
                assert row["return"] == pytest.approx(returns.mean(), rel=1e-6)
                assert row["return_cvar"] == pytest.approx(cvar(returns), rel=1e-6)
                assert row["episodes"] == episodes

    def test_exams_along_training_are_taken_by_all_that_were_kept(self, finished: Path) -> None:
        assert sorted({row["update"] for row in read(finished, "ground_truth")}) == [15, UPDATES]

    def test_other_exams_also_where_gradient_updates_are_equal(self, finished: Path) -> None:
        config = SMALL.config(SMALL.variants["dr"], steps=STEPS)
        fewest = fewest_gradient_updates(config)
        assert fewest == read(finished, "training")[-1]["gradient_updates"]  # samplr has a robust teacher
        assert abs(15 - fewest) < abs(UPDATES - fewest)
        assert sorted({row["update"] for row in read(finished, "fixed_rates", "dr")}) == [15, UPDATES]
        assert {row["update"] for row in read(finished, "fixed_rates")} == {UPDATES}

    def test_it_is_not_repeated(self, study: Path, done: list[str]) -> None:
        before = files(study)
        reproduce(SMALL, study, progress=False)
        reproduce(SMALL, study, seeds=1, first_seed=1, progress=False)
        assert done == []
        assert files(study) == before


class TestMore:
    def test_seeds(self, study: Path, done: list[str]) -> None:
        reproduce(SMALL, study, seeds=5, methods=["dr"], only="train", progress=False)
        assert done == ["dr seeds-2-3 training", "dr seeds-4-4 training"]

    def test_seeds_from_another_first_one(self, study: Path, done: list[str]) -> None:
        reproduce(SMALL, study, seeds=3, first_seed=1, methods=["dr"], only="train", progress=False)
        assert done == ["dr seeds-2-3 training"]

    def test_a_batch_that_was_begun_goes_on_as_it_was(self, study: Path, done: list[str]) -> None:
        shutil.rmtree(study / "data" / "dr" / "seeds-0-1")
        reproduce(SMALL, study, seeds=1, methods=["dr"], progress=False)
        assert done == [f"dr seeds-0-1 {name}" for name in ("training", "ground_truth", "fixed_rates")]

    def test_an_exam(self, study: Path, done: list[str]) -> None:
        (study / "data" / "dr" / "seeds-0-1" / "ground_truth.csv").unlink()
        reproduce(SMALL, study, only="evaluate", progress=False)
        assert done == ["dr seeds-0-1 ground_truth"]

    def test_only_what_was_trained_is_evaluated(self, study: Path, done: list[str]) -> None:
        reproduce(SMALL, study, seeds=4, only="evaluate", progress=False)
        assert done == []

    def test_settings_make_a_variant_of_its_own(self, study: Path, done: list[str]) -> None:
        settings = parse_settings(["student.learning_rate=3e-4", "fictitious.trace=matched"])
        reproduce(SMALL, study, methods=["samplr"], settings=settings, only="train", progress=False)
        name = "samplr-student.learning_rate-0.0003-fictitious.trace-matched"
        assert done == [f"{name} seeds-0-1 training"]
        about = read_json(study / "data" / name / "variant.json")
        assert about["base"] == "samplr"
        assert about["title"] == "SAMPLR, learning_rate=0.0003, trace=matched"
        assert about["config"]["student"]["learning_rate"] == 3e-4
        assert about["config"]["fictitious"]["trace"] == "matched"


def test_a_study_that_was_stopped_goes_on_to_the_same_numbers(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = pieces.save_students

    def stop_at_the_end(run: Path, update: int, *rest: object) -> None:
        if update == UPDATES:
            raise KeyboardInterrupt
        keep(run, update, *rest)

    out = tmp_path / "out"
    monkeypatch.setattr(pieces, "save_students", stop_at_the_end)
    with pytest.raises(KeyboardInterrupt):
        reproduce(SMALL, out, methods=["samplr"], progress=False)
    assert files(out) == {}
    folder = StudyFolder.open(out, SMALL, None)
    piece = TrainingPiece(folder, SMALL.variants["samplr"], Batch("samplr", range(2)))
    assert 0 < piece.share_done <= 1
    monkeypatch.setattr(pieces, "save_students", keep)
    reproduce(SMALL, out, methods=["samplr"], progress=False)
    assert files(out) == {name: data for name, data in files(finished).items() if "samplr" in name}


def test_the_report_needs_the_numbers_alone(study: Path) -> None:
    shutil.rmtree(study / "runs")
    shutil.rmtree(study / "figures")
    report = reproduce(SMALL, study, only="report", progress=False)
    # 8 lines × 2 seeds × 2 variants; 2 times × 2 seeds × 2; 5 conditions × 2 seeds × (2 + 1) times.
    assert report.results == {"training": 32, "ground_truth": 8, "fixed_rates": 30}
    assert (study / "figures" / "empty.png").exists()


@pytest.mark.parametrize(
    "damage", [lambda text: text[: len(text) // 2], lambda text: text.replace("1", "2"), lambda _: ""]
)
def test_numbers_that_are_not_all_there_are_refused(study: Path, damage: Callable[[str], str]) -> None:
    file = study / "data" / "dr" / "seeds-0-1" / "fixed_rates.csv"
    file.write_text(damage(file.read_text()))
    with pytest.raises(RunFolderError, match=rf"'{file}' is not as samplr wrote it: restore it, or delete it"):
        reproduce(SMALL, study, only="report", progress=False)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunFolderError, match=r"cannot write to the run folder '.*out': Permission denied"):
        reproduce(SMALL, tmp_path / "out", progress=False)


@pytest.mark.parametrize("name", ["env", "method"])
def test_a_study_keeps_its_world_and_its_methods(tmp_path: Path, name: str) -> None:
    with pytest.raises(SamplrError, match=f"--set {name}: a study has its own"):
        reproduce(SMALL, tmp_path / "out", settings={name: "plr"}, progress=False)


def test_a_damaged_student_is_named(study: Path) -> None:
    student = max((study / "runs" / "dr" / "seeds-0-1" / "students").glob("*/seed-1.npz"))
    student.write_bytes(student.read_bytes()[:100])
    (study / "data" / "dr" / "seeds-0-1" / "fixed_rates.csv").unlink()
    with pytest.raises(RunFolderError, match=rf"'{student}' is damaged: delete the folder"):
        reproduce(SMALL, study, progress=False)


def test_what_has_numbers_but_no_students_cannot_take_an_exam(study: Path) -> None:
    shutil.rmtree(study / "runs")
    (study / "data" / "dr" / "seeds-0-1" / "fixed_rates.csv").unlink()
    with pytest.raises(RunFolderError, match="does not hold the students of dr: bring that folder back"):
        reproduce(SMALL, study, progress=False)


class TestRefusals:
    @pytest.fixture(autouse=True)
    def _nothing_is_done(self, done: list[str]) -> Iterator[None]:
        yield
        assert done == []

    def test_another_study(self, study: Path) -> None:
        other = dataclasses.replace(SMALL, name="other")
        with pytest.raises(RunFolderError, match="holds the study small, not other: choose another --out"):
            reproduce(other, study, progress=False)

    def test_another_length(self, study: Path) -> None:
        with pytest.raises(RunFolderError, match=r"have 2,304 steps each, not 5,000: choose another --out"):
            reproduce(SMALL, study, steps=5000, progress=False)

    def test_another_configuration(self, study: Path) -> None:
        other = dataclasses.replace(SMALL, settings={**SMALL.settings, "student.clip": 0.3})
        with pytest.raises(RunFolderError, match=r"student.clip is 0.2 there and 0.3 here; choose another --out"):
            reproduce(other, study, progress=False)

    def test_a_field_that_was_not_there_then_had_its_default(self, study: Path) -> None:
        file = study / "data" / "dr" / "variant.json"
        about = read_json(file)
        del about["config"]["student"]["clip"]
        write_json(file, about)
        reproduce(SMALL, study, progress=False)

    def test_a_folder_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("precious")
        with pytest.raises(RunFolderError, match="holds files but no study"):
            reproduce(SMALL, tmp_path, progress=False)
        with pytest.raises(RunFolderError, match="is a file"):
            reproduce(SMALL, tmp_path / "thesis.tex", progress=False)

    def test_a_folder_that_another_process_begins(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # Half-way through writing the study's file …
        (tmp_path / ".study.json.4711.tmp").write_text("{")
        assert StudyFolder.open(tmp_path, SMALL, STEPS).steps == STEPS
        # … and done with it while this one looks around.
        other, listed = StudyFolder.open(tmp_path, SMALL, STEPS), Path.iterdir

        def register_first(folder: Path) -> Iterator[Path]:
            other.register(SMALL.variants)
            return listed(folder)

        monkeypatch.setattr(Path, "iterdir", register_first)
        assert StudyFolder.open(tmp_path, SMALL, None).is_begun

    def test_a_report_of_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(SamplrError, match="holds no numbers yet"):
            reproduce(SMALL, tmp_path / "new", only="report", progress=False)
        assert not (tmp_path / "new").exists()

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"seeds": 0}, "--seeds must be at least 1, not 0"),
            ({"steps": -5}, "--steps must be at least 1, not -5"),
            ({"first_seed": -1}, "--first-seed must not be negative, and is -1"),
            ({"settings": {"steps": 3}}, "--set steps: the study sets this itself"),
        ],
    )
    def test_impossible_numbers(self, tmp_path: Path, options: dict, says: str) -> None:
        with pytest.raises(SamplrError, match=says):
            reproduce(SMALL, tmp_path / "new", progress=False, **options)
        assert not (tmp_path / "new").exists()

    def test_unknown_names(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownNameError, match="unknown method of small 'paired': choose one of dr, samplr"):
            reproduce(SMALL, tmp_path / "new", methods=["paired"], progress=False)
        with pytest.raises(UnknownNameError, match=r"student\.learning"):
            reproduce(SMALL, tmp_path / "new", settings={"student.learning": 1}, progress=False)
        assert not (tmp_path / "new").exists()


class TestHowLong:
    def test_by_what_was_measured_of_the_same_variant(self, study: Path) -> None:
        folder = StudyFolder.open(study, SMALL, None)
        for variant, seconds in (("dr", 10.0), ("samplr", 30.0)):
            write_json(
                study / "data" / variant / "seeds-0-1" / "training.json",
                {"device": pieces.device(), "seconds": seconds, "work": 2.0 * STEPS},
            )
        of_samplr = TrainingPiece(folder, SMALL.variants["samplr"], Batch("samplr", range(2, 6)))
        assert _by_experience(folder, of_samplr) == pytest.approx(60)
        of_another = TrainingPiece(folder, SMALL.variants["samplr"], Batch("new", range(2)))
        assert _by_experience(folder, of_another) == pytest.approx(20)

    def test_not_by_another_device(self, study: Path) -> None:
        folder = StudyFolder.open(study, SMALL, None)
        for variant in BOTH:
            file = study / "data" / variant / "seeds-0-1" / "training.json"
            write_json(file, {**read_json(file), "device": "abacus"})
        assert _by_experience(folder, TrainingPiece(folder, SMALL.variants["dr"], Batch("dr", range(2, 3)))) is None

    def test_else_by_timing_a_few_updates(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        reproduce(SMALL, tmp_path / "out", methods=["dr"], only="train")
        said = capsys.readouterr().err
        assert "timing a few updates of dr" in said
        assert "dr seeds-0-1: training, about" in " ".join(said.split())

    @pytest.mark.parametrize(
        ("seconds", "words"),
        [(None, "time unknown"), (0.2, "about 1 s"), (99, "about 99 s"), (100, "about 2 min"), (7200, "about 2.0 h")],
    )
    def test_in_words(self, seconds: float | None, words: str) -> None:
        assert _duration(seconds) == words


class Marks:
    """An exam that everybody passes with the number of their place."""

    name, at = "marks", "last"

    def parts(self, config: Config) -> int:
        return 3

    def prepare(self, config: Config, run: Path) -> Examiner:
        return lambda students, tick: [{"seed": place, "mark": float(10 + place)} for place in range(2)]


class TestAnExam:
    BATCH = Batch("dr", range(4, 6))

    @pytest.fixture
    def piece(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExamPiece:
        """Of students with seeds 4 and 5, who were trained for 24 updates and kept at two of them."""
        folder = StudyFolder.open(tmp_path, SMALL, None)
        times = [{"update": u, "steps": u * 96, "gradient_updates": u} for u in (15, UPDATES)]
        folder.write(self.BATCH, TRAINING, [{"seed": s, **at} for at in times for s in self.BATCH.seeds], {})
        folder.run(self.BATCH).mkdir(parents=True)
        monkeypatch.setattr(pieces, "load_students", lambda run, update, config: update)
        monkeypatch.setattr(pieces, "are_finite", lambda students: [True, True])
        monkeypatch.setattr(pieces, "saved_updates", lambda run, seeds: [15, UPDATES])
        return ExamPiece(folder, SMALL.variants["dr"], self.BATCH, Marks())

    def test_is_written_down_by_seed_and_taken_by_the_last(self, piece: ExamPiece) -> None:
        piece.do(progress=False)
        rows = piece.folder.read(self.BATCH, "marks")
        assert [(row["seed"], row["update"], row["mark"]) for row in rows] == [(4, UPDATES, 10), (5, UPDATES, 11)]

    @pytest.mark.parametrize("kept", [[], [15], [UPDATES]])
    def test_is_refused_where_not_all_students_were_kept(
        self, piece: ExamPiece, monkeypatch: pytest.MonkeyPatch, kept: list[int]
    ) -> None:
        monkeypatch.setattr(pieces, "saved_updates", lambda run, seeds: kept)
        with pytest.raises(RunFolderError, match="does not hold the students of dr"):
            piece.do(progress=False)

    @pytest.mark.parametrize(("method", "times"), [("dr", 2), ("samplr", 1)])
    def test_at_both_ends_is_twice_the_work_but_for_the_slowest_learner(
        self, piece: ExamPiece, method: str, times: int
    ) -> None:
        exam = SMALL.exams[1]
        assert exam.at == "ends"
        asked = dataclasses.replace(piece, variant=SMALL.variants[method], exam=exam)
        assert asked.work == exam.parts(asked.config) * 2 * times


def test_the_share_done_is_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = StudyFolder.open(tmp_path, SMALL, None)
    piece = TrainingPiece(folder, SMALL.variants["dr"], Batch("dr", range(2)))
    assert piece.share_done == 0
    folder.run(piece.batch).mkdir(parents=True)
    (folder.run(piece.batch) / "config.json").touch()
    monkeypatch.setattr(pieces, "read_metrics", lambda run: [{"update": 6, "steps": STEPS // 4}])
    assert piece.share_done == 0.25


@pytest.mark.parametrize(("first", "saved"), [(0, ["dr"]), (2, [])])
def test_only_the_first_batch_leaves_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, saved: list[str]
) -> None:
    found: list[str] = []
    line = {"update": UPDATES, "steps": STEPS, "gradient_updates": UPDATES, "seconds": 1.0}
    run = SimpleNamespace(metrics=[line], save_policies=lambda path, students: found.append(path.stem))
    monkeypatch.setattr(pieces, "train", lambda *_, **__: run)
    folder = StudyFolder.open(tmp_path, SMALL, None)
    TrainingPiece(folder, SMALL.variants["dr"], Batch("dr", range(first, first + 2))).do(progress=False)
    assert found == saved


def test_timing_tells_compiling_from_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    # A program that takes 10 s to compile and 2 s for an update of 96 steps of 4 runs.
    now = [0.0]

    class Program:
        steps_per_update, config = 96, SimpleNamespace(seeds=4)

        def init(self) -> TrainState:
            return TrainState(None, 0)

        def total_updates(self) -> int:
            return 24

        def advance(self, state: TrainState, updates: int) -> tuple[TrainState, None]:
            now[0] += 2.0 * updates + (10.0 if state.update == 0 else 0.0)
            return state, None

    monkeypatch.setattr(pieces.time, "monotonic", lambda: now[0])
    timing = pieces.time_training(Program())
    assert timing.compile == pytest.approx(10)
    assert timing.per_step == pytest.approx(2 / (96 * 4))
