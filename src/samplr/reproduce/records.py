"""The numbers of a study as CSV files, small enough to be kept: everything shown is a function of them."""

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from samplr.errors import RunFolderError
from samplr.store import files

Row = Mapping[str, Any]
"""Named values of one run at one time: words, numbers, or None for what is unknown."""


def as_csv(rows: Sequence[Row]) -> str:
    """Rows as a table, under the names of the first."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _word(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Read a table that `as_csv` made."""
    with path.open(newline="", encoding="utf-8") as stream:
        return [{name: _value(word) for name, word in row.items()} for row in csv.DictReader(stream)]


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, data)


def read_json(path: Path) -> Any:
    """Read a JSON file of a study."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"'{path}' is not as samplr wrote it: restore it, or choose another --out") from error


def _word(value: Any) -> Any:
    """Seven digits are more than a mean over episodes has, and keep the files small."""
    return f"{value:.7g}" if isinstance(value, float) else value


def _value(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word or None


def is_finite(row: Row) -> bool:
    """Whether all of its numbers are; those of a student that has diverged are not."""
    return all(math.isfinite(value) for value in row.values() if isinstance(value, float))


def pick(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def at_the_end(rows: Sequence[Row]) -> list[Row]:
    """The rows of every variant's last update."""
    last = {name: max(row["update"] for row in of) for name, of in by_variant(rows).items()}
    return [row for row in rows if row["update"] == last[row["variant"]]]


def at_equal_updates(rows: Sequence[Row]) -> list[Row]:
    """The rows of every variant when it had learned from as many rollouts as the slowest learner has in the end."""
    variants = by_variant(rows)
    target = min((max(row["gradient_updates"] for row in of) for of in variants.values()), default=0)
    chosen = {
        name: min({row["update"]: row for row in of}.values(), key=lambda row: abs(row["gradient_updates"] - target))
        for name, of in variants.items()
    }
    return [row for row in rows if row["update"] == chosen[row["variant"]]["update"]]


def by_variant(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows sorted by their variant."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["variant"]].append(row)
    return dict(found)


def scores(rows: Iterable[Row], figure: str) -> dict[int, float]:
    """A score for each seed: the mean of a figure over its rows, unknown ones left out."""
    found: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row.get(figure) is not None:
            found[row["seed"]].append(row[figure])
    return {seed: float(np.mean(values)) for seed, values in sorted(found.items())}


def score_matrix(rows: Sequence[Row], figure: str, task: str) -> np.ndarray:
    """Scores of run × task; a run without a score in every task is left out."""
    tasks = sorted({row[task] for row in rows})
    cells = {(row["seed"], row[task]): row[figure] for row in rows if row.get(figure) is not None}
    seeds = sorted({row["seed"] for row in rows})
    whole = [seed for seed in seeds if all((seed, name) in cells for name in tasks)]
    return np.array([[cells[seed, name] for name in tasks] for seed in whole]).reshape(len(whole), len(tasks))


def curve(rows: Iterable[Row], figure: str, along: str) -> tuple[np.ndarray, np.ndarray]:
    """A figure along training: where, and the values there of every seed that has come so far (place × seed)."""
    found: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.get(figure) is not None:
            found[row[along]][row["seed"]].append(row[figure])
    most = max((len(seeds) for seeds in found.values()), default=0)
    places = sorted(place for place, seeds in found.items() if len(seeds) == most)
    values = [[np.mean(of_seed) for _, of_seed in sorted(found[place].items())] for place in places]
    return np.array(places, float), np.array(values, float).reshape(len(places), most)
