"""Metrics: rows in metrics.jsonl, and the same numbers as TensorBoard events."""

import json
import math
import shutil
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from samplr.errors import SamplrWarning
from samplr.store import files

Row = dict[str, Any]
"""One row of metrics: `update`, `steps`, numbers, and lists with one number or None per run."""

_METRICS = "metrics.jsonl"
_TENSORBOARD = "tensorboard"


class Metrics:
    """The writing side of a run folder's metrics."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._events = _Events(path / _TENSORBOARD)

    def log(self, row: Row) -> None:
        """Add a row."""
        row = as_json(row)
        with (self._path / _METRICS).open("a", encoding="utf-8") as stream:
            stream.write(_as_line(row))
        self._events.write(row)

    def roll_back(self, update: int | None) -> None:
        """Drop the rows after an update; None drops them all."""
        rows = [row for row in read_rows(self._path) if update is not None and row["update"] <= update]
        files.write_atomically(self._path / _METRICS, "".join(map(_as_line, rows)))
        self._events.replace(rows)

    def sync(self) -> None:
        """Put the rows that a checkpoint covers on the disk before it: nobody would log them again."""
        self._events.flush()
        if (self._path / _METRICS).exists():
            files.sync(self._path / _METRICS)

    def close(self) -> None:
        """Close the event files."""
        self._events.close()


def read_rows(path: Path) -> list[Row]:
    """Read metrics.jsonl; damaged lines (a disk's work, not a kill's) are left out, with a warning.

    **Arguments:**

    - `path`: the run folder.

    **Returns:** the rows, in the order in which they were logged.
    """
    file = path / _METRICS
    if not file.exists():
        return []
    # What follows the last line's end is nothing, or a row that was being written.
    *lines, _ = file.read_bytes().split(b"\n")
    rows = [row for line in lines if (row := _parse_row(line)) is not None]
    if len(rows) < len(lines):
        warnings.warn(
            f"{len(lines) - len(rows)} of {len(lines)} lines of '{file}' are damaged and left out",
            SamplrWarning,
            stacklevel=2,
        )
    return rows


def as_json(value: Any) -> Any:
    """Replace arrays by lists, and NaN and infinities, for which JSON has no word, by None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _as_line(row: Row) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def _parse_row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not all(isinstance(row.get(key), int) for key in ("update", "steps")):
        return None
    return row


def _numbers_by_run(row: Row) -> dict[int, dict[str, float]]:
    """Sort the numbers of a row by the run they belong to; those of the whole batch count as run 0's."""
    numbers: dict[int, dict[str, float]] = defaultdict(dict)
    for name, value in row.items():
        if name in ("update", "steps"):
            continue
        for run, number in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(number, int | float):
                numbers[run][name] = number
    return numbers


class _Events:
    """TensorBoard events, one file per run of the batch, each begun when there is something to put in it.

    This writes through tensorboardX's `EventsWriter`, not its `SummaryWriter`: the latter has a queue between
    processes and two threads for each run, and takes 20 times as long to rebuild the events of a resumed run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[int, Any] = {}

    def write(self, row: Row) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        for run, numbers in _numbers_by_run(row).items():
            values = [Summary.Value(tag=name, simple_value=number) for name, number in numbers.items()]
            event = Event(wall_time=time.time(), step=row["steps"], summary=Summary(value=values))
            self._writer(run).write_event(event)

    def replace(self, rows: Iterable[Row]) -> None:
        """Delete all events, and write those of `rows`."""
        self.close()
        if self._folder.exists():
            shutil.rmtree(self._folder)
        for row in rows:
            self.write(row)
        self.flush()

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _writer(self, run: int) -> Any:
        from tensorboardX.event_file_writer import EventsWriter

        if run not in self._writers:
            folder = self._folder / f"run_{run}"
            folder.mkdir(parents=True, exist_ok=True)
            self._writers[run] = EventsWriter(str(folder / "events"))
        return self._writers[run]
