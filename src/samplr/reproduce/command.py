"""`samplr reproduce`: find out what is missing, say how long it will take, do it, and report."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from samplr.errors import BusyError, GroundingWarning, SamplrError, SamplrWarning, UnknownNameError
from samplr.reproduce.folder import TRAINING, StudyFolder
from samplr.reproduce.pieces import ExamPiece, Piece, TrainingPiece, device, program_of, time_training
from samplr.reproduce.records import write_json
from samplr.reproduce.studies import Report, Study, Variant, with_settings
from samplr.store.files import alone_in, explained, replacing
from samplr.store.metrics import as_json
from samplr.training import Training

Part = Literal["train", "evaluate", "report"]


def reproduce(
    study: Study,
    out: Path,
    *,
    seeds: int | None = None,
    first_seed: int = 0,
    methods: Sequence[str] = (),
    steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
    only: Part | None = None,
    progress: bool = True,
) -> Report:
    """Do what is missing of a study, and report on all that is there.

    **Arguments:**

    - `out`: the study's folder; what is done there already is not done again.
    - `seeds`, `first_seed`: which seeds of each variant; by default as many as the study has.
    - `methods`: some of the study's variants; by default all of them.
    - `steps`: of each run; by default the study's.
    - `settings`: dotted names of configuration fields and their values, which make variants of their own.
    - `only`: do only this part.
    - `progress`: whether to say what is going on, on standard error.
    """
    for option, number in {"--seeds": seeds, "--steps": steps}.items():
        if number is not None and number < 1:
            raise SamplrError(f"{option} must be at least 1, not {number}")
    if first_seed < 0:
        raise SamplrError(f"--first-seed must not be negative, and is {first_seed}")
    for method in methods:
        if method not in study.variants:
            raise UnknownNameError(f"method of {study.name}", method, study.variants)
    folder = StudyFolder.open(Path(out), study, steps)
    if only == "evaluate" and not folder.is_begun:
        raise SamplrError(f"'{folder.root}' holds no runs yet: train first")
    chosen = with_settings({name: study.variants[name] for name in methods or study.variants}, settings or {})
    wanted = range(first_seed, first_seed + (seeds or study.seeds))
    with explained("write to", folder.root):
        if only != "report":
            folder.register(chosen)
            _work(folder, lambda: _missing(folder, chosen, wanted, only), progress=progress)
        report = _report(folder)
    if progress:
        Console(stderr=True).print(f"Written: {folder.root}/results.json and {len(report.figures)} figures")
    return report


def _missing(folder: StudyFolder, variants: Mapping[str, Variant], wanted: range, only: Part | None) -> list[Piece]:
    """What is not done yet: every batch is trained and then examined, before the next one."""
    pieces: list[Piece] = []
    for name, variant in variants.items():
        for batch in folder.batches_with(name, wanted):
            trained = folder.is_done(batch, TRAINING)
            if not trained and only != "evaluate":
                pieces.append(TrainingPiece(folder, variant, batch))
            if only == "train" or (only == "evaluate" and not trained):
                continue
            exams = [exam for exam in folder.study.exams if not folder.is_done(batch, exam.name)]
            pieces += [ExamPiece(folder, variant, batch, exam) for exam in exams]
    return pieces


def _work(folder: StudyFolder, missing: Callable[[], list[Piece]], *, progress: bool) -> None:
    console = Console(stderr=True, quiet=not progress, highlight=False)
    pieces = missing()
    if not pieces:
        console.print(f"There is nothing to do in {folder.root}.")
        return
    per_piece, program = _expected_seconds(folder, pieces, console)
    console.print(f"{len(pieces)} pieces are missing in {folder.root}, on {device()}:")
    for piece, seconds in zip(pieces, per_piece, strict=True):
        begun = f" ({piece.share_done:.0%} done)" if piece.share_done else ""
        console.print(f"  {_title(piece)}{begun}, {_duration(seconds)}")
    known = [seconds for seconds in per_piece if seconds is not None]
    more = ", and what was never measured here" if len(known) < len(pieces) else ""
    console.print(f"All of it: {_duration(sum(known))}{more}. Stop at any time; the same command goes on from there.")
    busy = _do_all(missing, {_title(pieces[0]): program}, progress=progress)
    if busy:
        told = f"another command is at work on {', '.join(busy)}: run this one again when it is done"
        warnings.warn(told, SamplrWarning, stacklevel=3)


def _title(piece: Piece) -> str:
    return f"{piece.batch.variant} {piece.batch.name}: {piece.name}"


def _do_all(missing: Callable[[], list[Piece]], programs: dict[str, Training | None], *, progress: bool) -> list[str]:
    """Do what is missing, piece by piece, and at the end once more what other commands were at work on.

    Before each piece it is asked anew what is missing: others may have done or begun it, perhaps with other seeds.

    **Returns:** what others are still at work on.
    """
    busy: list[str] = []
    for _ in range(2):
        tried: set[str] = set()
        busy = []
        while piece := next((piece for piece in missing() if _title(piece) not in tried), None):
            title = _title(piece)
            tried.add(title)
            if not _do(piece, programs.pop(title, None), progress=progress):
                busy.append(title)
        if not busy:
            break
    return busy


def _do(piece: Piece, program: Training | None, *, progress: bool) -> bool:
    """Do a piece, and tell whether it is done: not if another command is at work on it."""
    if isinstance(piece, ExamPiece) and not piece.folder.is_done(piece.batch, TRAINING):
        return False
    # That hidden things are shifted is what a study is about: no need to warn of it for each piece.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GroundingWarning)
        try:
            if isinstance(piece, TrainingPiece):
                piece.do(progress=progress, program=program)
            else:
                piece.do(progress=progress)
        except BusyError:
            return False
    return True


def _expected_seconds(
    folder: StudyFolder, pieces: Sequence[Piece], console: Console
) -> tuple[list[float | None], Training | None]:
    """How long each piece will take: by what was measured on this device before, or else by a few updates now.

    **Returns:** the seconds, None where nobody knows, and the program of the first piece if it was compiled for this.
    """
    expected = [_by_experience(folder, piece) for piece in pieces]
    first = pieces[0]
    if not isinstance(first, TrainingPiece) or expected[0] is not None:
        return expected, None
    console.print(
        f"Nothing was trained on this {device()} yet: compiling, and timing a few updates of {first.batch.variant}"
    )
    program = program_of(first)
    timing = time_training(program)
    for place, piece in enumerate(pieces):
        if isinstance(piece, TrainingPiece):
            compiling = timing.compile if piece is not first else 0.0
            expected[place] = compiling + timing.per_step * piece.work * (1 - piece.share_done)
    return expected, program


def _by_experience(folder: StudyFolder, piece: Piece) -> float | None:
    """By earlier pieces of the same kind on this device: of the same variant, or else of all."""
    known = [timing for timing in folder.timings(piece.name) if timing["device"] == device()]
    known = [timing for timing in known if timing["variant"] == piece.batch.variant] or known
    work = sum(timing["work"] for timing in known)
    if not work:
        return None
    return float(sum(timing["seconds"] for timing in known) / work * piece.work * (1 - piece.share_done))


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "time unknown"
    if seconds < 100:
        return f"about {max(1, round(seconds))} s"
    minutes = math.ceil(seconds / 60)
    return f"about {minutes} min" if minutes < 100 else f"about {seconds / 3600:.1f} h"


def _report(folder: StudyFolder) -> Report:
    """Write the report of all the numbers there are."""
    if not folder.is_begun:
        raise SamplrError(f"'{folder.root}' holds no numbers yet: train and evaluate first")
    # From reading on, so that whoever writes last knows the most.
    with alone_in(folder.root):
        data = folder.load()
        if not any(data.rows.values()):
            raise SamplrError(f"'{folder.root}' holds no numbers yet: train and evaluate first")
        report = folder.study.report(data)
        if data.diverged:
            report.results["diverged"] = data.diverged
        report = dataclasses.replace(report, results=as_json(report.results))
        write_json(folder.root / "results.json", report.results)
        (folder.root / "figures").mkdir(exist_ok=True)
        for name, figure in report.figures.items():
            with replacing(folder.root / "figures" / f"{name}.png") as stream:
                figure.savefig(stream, format="png", dpi=160)
    for name, seeds in data.diverged.items():
        told = ", ".join(map(str, seeds))
        warnings.warn(f"{name} has diverged with seed {told}: its numbers leave that out", SamplrWarning, stacklevel=2)
    return report
