"""A study small enough for tests: icy road, tiny students, a few updates."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

from samplr.reproduce.exams import SuiteExam
from samplr.reproduce.studies import Data, Report, Study, Variant
from tiny import SIZES, STEPS_PER_UPDATE, UPDATES

SETTINGS: Mapping[str, Any] = {
    "workers": SIZES["workers"],
    "rollout": SIZES["rollout"],
    "replay.capacity": SIZES["replay.capacity"],
    "student.hidden": (SIZES["student.hidden"],),
    "checkpoint_seconds": 0.0,
}
STEPS = UPDATES * STEPS_PER_UPDATE


def count(data: Data) -> Report:
    """A report that counts rows."""
    results = {name: len(rows) for name, rows in data.rows.items()}
    return Report(results, [Table("rows")], [], {"empty": Figure(figsize=(1, 1))})


SMALL = Study(
    name="small",
    about="Whether anything happens at all.",
    env="icy_road",
    variants={"dr": Variant("dr", "DR"), "samplr": Variant("samplr", "SAMPLR")},
    exams=(SuiteExam("ground_truth", episodes=6), SuiteExam("fixed_rates", episodes=4, at="ends", together=5)),
    training_figures=("new/return", "replay/return", "shift/ice/real_mean"),
    report=count,
    steps=STEPS,
    seeds=2,
    batch=2,
    snapshots=2,
    settings=SETTINGS,
)


def files(root: Path) -> dict[str, bytes]:
    """The numbers of a study's folder, without how long they took."""
    found = {}
    for file in sorted((root / "data").rglob("*.csv")):
        lines = file.read_text().splitlines()
        header = lines[0].split(",")
        kept = [place for place, name in enumerate(header) if name != "seconds"]
        text = "\n".join(",".join(line.split(",")[place] for place in kept) for line in lines)
        found[str(file.relative_to(root))] = text.encode()
    return found
