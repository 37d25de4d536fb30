"""The pieces of a study: each trains or examines one batch of seeds, and is done once.

A piece that was stopped is taken up again where it was; a piece that is done is not repeated.
"""

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from samplr.config import Config
from samplr.errors import RunFolderError
from samplr.progress import progress_bar
from samplr.reproduce.folder import TRAINING, Batch, StudyFolder
from samplr.reproduce.records import Row
from samplr.reproduce.students import load_students, save_students, saved_updates
from samplr.reproduce.studies import LINES_PER_SNAPSHOT, Exam, Variant
from samplr.run import train, training_of
from samplr.store import held, read_metrics
from samplr.student.networks import ActorCritic, are_finite
from samplr.training import Training, TrainState, build_teacher


@dataclasses.dataclass(frozen=True)
class TrainingPiece:
    """Train one batch."""

    folder: StudyFolder
    variant: Variant
    batch: Batch

    name = TRAINING

    @property
    def config(self) -> Config:
        """What is trained."""
        return self.folder.config(self.variant, self.batch.seeds)

    @property
    def work(self) -> float:
        """The steps of all runs together."""
        return float(self.folder.steps * len(self.batch.seeds))

    @property
    def share_done(self) -> float:
        """How much of it an earlier call has done."""
        run = self.folder.run(self.batch)
        rows = read_metrics(run) if (run / "config.json").exists() else []
        return min(1.0, rows[-1]["steps"] / self.folder.steps) if rows else 0.0

    def do(self, *, progress: bool, program: Training | None = None) -> None:
        """Train, keep students along the way, and write down the metrics."""
        config, seeds, out = self.config, self.batch.seeds, self.folder.run(self.batch)

        def keep(row: Mapping[str, Any], networks: ActorCritic) -> None:
            if is_snapshot(config, row["update"]):
                save_students(out, row["update"], networks, seeds)

        run = train(config, out, resume=True, progress=progress, watch=keep, program=program)
        rows = list(_rows_by_seed(run.metrics, seeds, self.folder.study.training_figures))
        about = {"device": device(), "seconds": run.metrics[-1]["seconds"], "work": self.work}
        if seeds[0] == 0:
            # One of each variant is enough to look at.
            run.save_policies(self.folder.policy(self.batch.variant), students=1)
        self.folder.write(self.batch, TRAINING, rows, about)


@dataclasses.dataclass(frozen=True)
class ExamPiece:
    """Let one batch take one exam."""

    folder: StudyFolder
    variant: Variant
    batch: Batch
    exam: Exam

    @property
    def name(self) -> str:
        """Of the exam."""
        return self.exam.name

    @property
    def config(self) -> Config:
        """What was trained."""
        return self.folder.config(self.variant, self.batch.seeds)

    @property
    def work(self) -> float:
        """Parts of the exam, for all students and times."""
        match self.exam.at:
            case "every":
                times = self.folder.study.snapshots
            case "ends":
                times = 2 - _learns_least(self.config)
            case "last":
                times = 1
        return float(self.exam.parts(self.config) * len(self.batch.seeds) * times)

    share_done = 0.0

    def do(self, *, progress: bool) -> None:
        """Examine the students, and write down how they did."""
        run, seeds, config = self.folder.run(self.batch), self.batch.seeds, self.config
        times = {row["update"]: row for row in self.folder.read(self.batch, TRAINING)}
        updates = self._updates(config, times, saved_updates(run, seeds))
        began, rows = time.monotonic(), []
        with held(run), progress_bar("parts", shown=progress) as bar:
            total = len(updates) * self.exam.parts(config)
            task = bar.add_task(f"{self.batch.variant} × {len(seeds)}: {self.name}", total=total, note="")
            examine = self.exam.prepare(config, run)
            for update in updates:
                at = {name: times[update][name] for name in ("update", "steps", "gradient_updates")}
                students = load_students(run, update, config)
                sound = np.asarray(are_finite(students))
                for row in examine(students, lambda: bar.advance(task)):
                    figures = {name: value for name, value in row.items() if name != "seed"}
                    told = figures if sound[row["seed"]] else _unknown(figures)
                    rows.append({"seed": seeds[row["seed"]], **at, **told})
        about = {"device": device(), "seconds": round(time.monotonic() - began, 3), "work": self.work}
        self.folder.write(self.batch, self.name, rows, about)

    def _updates(self, config: Config, times: Mapping[int, Row], kept: Sequence[int]) -> list[int]:
        """Which students take the exam."""
        if set(kept) != {update for update in times if is_snapshot(config, update)}:
            raise RunFolderError(
                f"'{self.folder.run(self.batch)}' does not hold the students of {self.batch.variant}: "
                "bring that folder back, or train other seeds with --first-seed"
            )
        if self.exam.at == "every":
            return list(kept)
        if self.exam.at == "last":
            return [kept[-1]]
        wanted = fewest_gradient_updates(config)
        matched = min(kept, key=lambda update: abs(times[update]["gradient_updates"] - wanted))
        return sorted({matched, kept[-1]})


Piece = TrainingPiece | ExamPiece


def _unknown(figures: Row) -> Row:
    """What there is to say of a student that has diverged, for it may play on as if nothing had happened."""
    return {name: math.nan if isinstance(value, float) else value for name, value in figures.items()}


def is_snapshot(config: Config, update: int) -> bool:
    """Whether students are kept as they are after an update."""
    return update == config.updates or update % (LINES_PER_SNAPSHOT * config.log_every) == 0


def fewest_gradient_updates(config: Config) -> int:
    """How many rollouts PLR⊥ would learn from in as many steps: all methods are compared there as well."""
    robust = build_teacher(dataclasses.replace(config, teacher="robust_plr"))
    return int(robust.learns(config.updates).sum())


def _learns_least(config: Config) -> bool:
    return config.teacher == "robust_plr"


def device() -> str:
    """What this process computes on."""
    return str(jax.devices()[0].device_kind)


def _rows_by_seed(lines: Sequence[Row], seeds: Sequence[int], figures: Sequence[str]) -> Iterable[Row]:
    """Lines of metrics with a list for all runs, as rows with a number for one."""
    for line in lines:
        at = {name: line[name] for name in ("update", "steps", "gradient_updates", "seconds")}
        for place, seed in enumerate(seeds):
            # A method without some phase has no figures of it.
            yield {"seed": seed, **at, **{name: line[name][place] if name in line else None for name in figures}}


@dataclasses.dataclass(frozen=True)
class Timing:
    """How long training takes: once to compile, and for each step of each run."""

    compile: float
    per_step: float


def time_training(training: Training) -> Timing:
    """Compile a program, and time a few of its updates."""

    def advance(state: TrainState, updates: int) -> tuple[TrainState, float]:
        began = time.monotonic()
        state = jax.block_until_ready(training.advance(state, updates)[0])
        return state, time.monotonic() - began

    # First some new levels, so that there is something to replay; then on from the middle of the schedule, where new
    # and replayed levels come in their usual mix.
    state, compiling = advance(training.init(), 2)
    state, spent = advance(TrainState(state.runs, jnp.int32(training.total_updates() // 2)), TIMED_UPDATES)
    steps = TIMED_UPDATES * training.steps_per_update * training.config.seeds
    return Timing(max(0.0, compiling - 2 * spent / TIMED_UPDATES), spent / steps)


TIMED_UPDATES = 6


def program_of(piece: TrainingPiece) -> Training:
    """The program that a piece trains with."""
    return training_of(piece.config)
