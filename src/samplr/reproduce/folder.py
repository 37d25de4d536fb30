"""The folder of a study.

    study.json                            which study, and for how many steps
    runs/<variant>/seeds-0-9/             a batch of runs: an ordinary run folder, with the students along training
    data/<variant>/variant.json           what was trained
    data/<variant>/seeds-0-9/<name>.csv   the numbers of its `training` and of each exam: there when that is done
    data/<variant>/seeds-0-9/<name>.json  how long that took, and on which device
    policies/<variant>.npz                its student of seed 0, for `samplr eval` and `samplr film`
    results.json, figures/                the report, a function of `data`

All but `runs` is small. Whoever has `data` alone can rebuild the report, and add seeds.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from samplr.config import Config, from_json, to_json
from samplr.errors import RunFolderError
from samplr.reproduce.learned import with_learned
from samplr.reproduce.records import Row, as_csv, by_variant, is_finite, read_csv, read_json, write_json
from samplr.reproduce.studies import OWN_SETTINGS, Data, Study, Variant
from samplr.store.files import alone_in, is_temporary, write_atomically
from samplr.store.record import first_difference

TRAINING = "training"
"""The name of the rows that training gives; the others have their exam's."""

_NOT_COMPARED = (*OWN_SETTINGS, "checkpoint_seconds", "processes", "patience_seconds")


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some seeds of a variant, trained side by side."""

    variant: str
    seeds: range

    @property
    def name(self) -> str:
        """Of its folders."""
        return f"seeds-{self.seeds.start}-{self.seeds.stop - 1}"


@dataclasses.dataclass(frozen=True)
class WorkDone:
    """A piece of a study that is done."""

    is_training: bool
    """Otherwise it is an exam."""
    seeds: int
    device: str
    seconds: float


class StudyFolder:
    """Where a study keeps its runs and numbers."""

    def __init__(self, root: Path, study: Study, steps: int) -> None:
        self.root, self.study, self.steps = root, study, steps

    @classmethod
    def open(cls, root: Path, study: Study, steps: int | None) -> "StudyFolder":
        """Open a folder for a study, or refuse one that holds something else. Nothing is written yet.

        **Arguments:**

        - `steps`: of each run; by default as in the folder, or else the study's own.
        """
        file = root / "study.json"
        if root.exists() and not root.is_dir():
            raise RunFolderError(f"'{root}' is a file: choose another --out")
        # Listed first: who begins the study meanwhile writes its file before any other.
        others = [held for held in root.iterdir() if not is_temporary(held.name, file.name)] if root.exists() else []
        if not file.exists():
            if others:
                raise RunFolderError(f"'{root}' holds files but no study: choose another --out")
            return cls(root, study, steps or study.steps)
        return cls(root, study, _known_steps(file, study, steps))

    @property
    def is_begun(self) -> bool:
        """Whether anything was ever done here."""
        return (self.root / "study.json").exists()

    def register(self, variants: Mapping[str, Variant]) -> None:
        """Write down what is about to be done; refuse a variant that was trained otherwise before."""
        configs = {name: self._recorded(to_json(self.config(variant))) for name, variant in variants.items()}
        for name, config in configs.items():
            file = self.root / "data" / name / "variant.json"
            if file.exists():
                self._refuse_other(name, read_json(file)["config"], config)
        self.root.mkdir(parents=True, exist_ok=True)
        with alone_in(self.root):
            if self.is_begun:  # perhaps since it was opened, by another command
                _known_steps(self.root / "study.json", self.study, self.steps)
            else:
                write_json(self.root / "study.json", {"study": self.study.name, "steps": self.steps})
        for name, variant in variants.items():
            about = {**dataclasses.asdict(variant), "config": configs[name]}
            write_json(self.root / "data" / name / "variant.json", about)

    def config(self, variant: Variant, seeds: Sequence[int] = (0,)) -> Config:
        """The configuration of some seeds of a variant."""
        return self.study.config(variant, steps=self.steps, seeds=len(seeds), first_seed=seeds[0])

    def _recorded(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in config.items() if name not in _NOT_COMPARED}

    def _refuse_other(self, name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        # Read as a configuration, for fields that have come up since have had their default then.
        difference = first_difference(self._recorded(to_json(from_json(before))), dict(now))
        if difference:
            field, there, here = difference
            raise RunFolderError(
                f"'{self.root}' holds {name} with another configuration: {field} is {there!r} there and {here!r} "
                "here; choose another --out"
            )

    def run(self, batch: Batch) -> Path:
        """The run folder of a batch."""
        return self.root / "runs" / batch.variant / batch.name

    def policy(self, variant: str) -> Path:
        """The first student of a variant, as one small file."""
        return self.root / "policies" / f"{variant}.npz"

    def is_done(self, batch: Batch, name: str) -> bool:
        """Whether a batch has been trained (`training`), or has taken an exam."""
        return self._file(batch, name, "csv").exists()

    def write(self, batch: Batch, name: str, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
        """Keep the numbers of a piece of work that is done; the table comes last, whole."""
        text = as_csv(rows)
        write_json(self._file(batch, name, "json"), {**about, "sha256": digest(text)})
        write_atomically(self._file(batch, name, "csv"), text)

    def read(self, batch: Batch, name: str) -> list[dict[str, Any]]:
        """The numbers of a piece of work: all of them, or none."""
        file = self._file(batch, name, "csv")
        if digest(file.read_text(encoding="utf-8")) != read_json(self._file(batch, name, "json")).get("sha256"):
            raise RunFolderError(f"'{file}' is not as samplr wrote it: restore it, or delete it to have it made again")
        return read_csv(file)

    def _file(self, batch: Batch, name: str, kind: str) -> Path:
        return self.root / "data" / batch.variant / batch.name / f"{name}.{kind}"

    def batches(self, variant: str) -> list[Batch]:
        """The batches that were begun."""
        names = {
            folder.name
            for part in ("runs", "data")
            if (self.root / part / variant).is_dir()
            for folder in (self.root / part / variant).iterdir()
        }
        found = [match for name in sorted(names) if (match := re.fullmatch(r"seeds-(\d+)-(\d+)", name))]
        return [Batch(variant, range(int(match[1]), int(match[2]) + 1)) for match in found]

    def batches_with(self, variant: str, seeds: Iterable[int]) -> list[Batch]:
        """Batches that hold all of these seeds: those that were begun, and new ones for the rest."""
        wanted = sorted(seeds)
        begun = [batch for batch in self.batches(variant) if set(batch.seeds) & set(wanted)]
        missing = [seed for seed in wanted if not any(seed in batch.seeds for batch in begun)]
        new: list[range] = []
        for seed in missing:
            if new and new[-1].stop == seed and len(new[-1]) < self.study.batch:
                new[-1] = range(new[-1].start, seed + 1)
            else:
                new.append(range(seed, seed + 1))
        return sorted([*begun, *(Batch(variant, part) for part in new)], key=lambda batch: batch.seeds.start)

    def timings(self, name: str) -> list[dict[str, Any]]:
        """How long the work of a name took, each with its `variant`, `device`, `work` and `seconds`."""
        files = sorted((self.root / "data").glob(f"*/seeds-*/{name}.json"))
        return [{"variant": file.parents[1].name, **read_json(file)} for file in files]

    def work_done(self, variant: str) -> list[WorkDone]:
        """The pieces of a variant that are done."""
        names = (TRAINING, *(exam.name for exam in self.study.exams))
        found = []
        for batch, name in ((batch, name) for batch in self.batches(variant) for name in names):
            if self.is_done(batch, name):
                about = read_json(self._file(batch, name, "json"))
                found.append(WorkDone(name == TRAINING, len(batch.seeds), about["device"], about["seconds"]))
        return found

    def load(self) -> Data:
        """All the numbers there are."""
        variants = {}
        # In the study's own order, others after their likes.
        order = list(self.study.variants)
        for file in sorted((self.root / "data").glob("*/variant.json")):
            about = read_json(file)
            variants[file.parent.name] = Variant(**{k: about[k] for k in ("method", "title", "changes", "base")})
        in_order = sorted(variants, key=lambda name: (bool(variants[name].base), _place(order, name, variants[name])))
        told: dict[str, list[Row]] = {
            name: [
                {"variant": variant, **row}
                for variant in in_order
                for batch in self.batches(variant)
                if self.is_done(batch, name)
                for row in self._told(batch, name, variants[variant])
            ]
            for name in (TRAINING, *(exam.name for exam in self.study.exams))
        }
        diverged = _diverged(told)
        rows = {
            name: [row for row in of if row["seed"] not in diverged.get(row["variant"], ())]
            for name, of in told.items()
        }
        return Data({name: variants[name] for name in in_order}, rows, diverged)

    def _told(self, batch: Batch, name: str, variant: Variant) -> Sequence[Row]:
        """The numbers of a piece of work, and with those of training what was learned from."""
        rows = self.read(batch, name)
        return with_learned(rows, self.config(variant)) if name == TRAINING else rows


def _known_steps(file: Path, study: Study, steps: int | None) -> int:
    """The steps of the runs in a folder, or an error if it holds another study, or runs of another length."""
    root, known = file.parent, read_json(file)
    if known.get("study") != study.name:
        raise RunFolderError(f"'{root}' holds the study {known.get('study')}, not {study.name}: choose another --out")
    if steps not in (None, known["steps"]):
        raise RunFolderError(
            f"the runs in '{root}' have {known['steps']:,} steps each, not {steps:,}: choose another --out"
        )
    return int(known["steps"])


def digest(text: str) -> str:
    """The SHA-256 of a table, however its lines end."""
    return hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()


def _diverged(told: Mapping[str, Iterable[Row]]) -> dict[str, list[int]]:
    """By variant, the seeds with numbers that are not finite."""
    lost = [row for of in told.values() for row in of if not is_finite(row)]
    return {name: sorted({row["seed"] for row in of}) for name, of in by_variant(lost).items()}


def _place(order: list[str], name: str, variant: Variant) -> tuple[int, str]:
    own = variant.base or name
    return (order.index(own) if own in order else len(order), name)
