"""Tiny runs for the tests of whole runs, and one compiled program for all that compute the same."""

import contextlib
import dataclasses
import functools
import io
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from samplr import run as run_module
from samplr.cli import main
from samplr.config import Config, default_config, validate
from samplr.run import MAY_CHANGE, _Progress
from samplr.shift import ShiftMonitor
from samplr.store import read_checkpoint, read_metrics
from samplr.training import Training, TrainState
from store.runs import assert_same, events

STEPS_PER_UPDATE = 8 * 12
UPDATES = 24
SIZES = {"workers": 8, "rollout": 12, "replay.capacity": 32, "student.hidden": 16, "seeds": 4}
BUDGET = {"steps": UPDATES * STEPS_PER_UPDATE, "log-every": 4, "checkpoint-seconds": 0.0}


def words(**options: Any) -> list[str]:
    """The options of a tiny run as the command line takes them; `options` change or add some, None leaves one out."""
    named = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
    given = {name: value for name, value in {**SIZES, **BUDGET, **named}.items() if value is not None}
    return [str(word) for name, value in given.items() for word in (f"--{name}", value)]


def tiny_config(env: Any = "icy_road", method: str = "samplr", **changes: Any) -> Config:
    """The configuration that the command line makes of `words()`."""
    fixed = {name.replace(".", "__").replace("-", "_"): value for name, value in {**SIZES, **BUDGET}.items()}
    return default_config(env, method, **{**fixed, "student__hidden": (SIZES["student.hidden"],), **changes})


_trainings: dict[Config, Training] = {}
_beginnings: dict[Config, TrainState] = {}


class SharedTraining(Training):
    """A `Training` that compiles nothing if one has that differs only in what a resumed run may change."""

    def __init__(self, config: Config) -> None:
        validate(config)
        defaults = {field.name: field.default for field in dataclasses.fields(Config)}
        self._same = dataclasses.replace(config, **{name: defaults[name] for name in MAY_CHANGE})
        if self._same not in _trainings:
            _trainings[self._same] = Training(self._same)
        vars(self).update(vars(_trainings[self._same]), config=config)

    def init(self) -> TrainState:
        if self._same not in _beginnings:
            _beginnings[self._same] = super().init()
        # A copy, for `advance` consumes it; through NumPy, as a resumed run gets it, so that types are equally strong.
        nothing_met = _Progress.fresh(self, template=True).shift
        return _Progress.restored(self, _Progress(_beginnings[self._same], nothing_met).arrays(), "").state


_monitor_of = functools.cache(ShiftMonitor.of)


@contextlib.contextmanager
def sharing_programs() -> Iterator[None]:
    """Runs begun in here compile what they compute only if no run before them did."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "Training", SharedTraining)
        patch.setattr(ShiftMonitor, "of", _monitor_of)
        yield


@dataclass(frozen=True)
class Said:
    """What a call of the command line came to."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be JSON and nothing else; NaN and Infinity are none."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


WARNINGS_OF_A_PROCESS: dict[type[Warning], Any] = {Warning: "default", DeprecationWarning: "ignore"}
"""What Python shows unless it is told otherwise; pytest tells it otherwise."""


def command(*arguments: Any) -> Said:
    """Run the command line in this process, with warnings as a process of its own would show them."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        for category, action in WARNINGS_OF_A_PROCESS.items():
            warnings.simplefilter(action, category)
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            status = ended.code
    return Said(status, out.getvalue(), err.getvalue())


def contents(path: Path) -> dict[str, bytes | None]:
    """All that is in a folder, byte for byte; folders are None."""
    return {str(file.relative_to(path)): file.read_bytes() if file.is_file() else None for file in path.rglob("*")}


def summary(path: Path) -> dict[str, Any]:
    """What a finished run says of itself, apart from how long it took, and on what."""
    told = json.loads((path / "summary.json").read_text())
    return {name: value for name, value in told.items() if name not in ("seconds", "device")}


def rows(path: Path) -> list[dict[str, Any]]:
    """The metrics of a run, apart from how long they took."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in read_metrics(path)]


def assert_same_run(actual: Path, expected: Path) -> None:
    """Two finished run folders hold the same run, bit for bit."""
    assert read_checkpoint(actual).update == read_checkpoint(expected).update
    assert_same(read_checkpoint(actual).arrays, read_checkpoint(expected).arrays)
    assert rows(actual) == rows(expected)
    assert summary(actual) == summary(expected)
    for run in range(len(summary(expected)["seeds"])):
        shown = [[event for event in events(path, run) if event[0] != "seconds"] for path in (actual, expected)]
        assert shown[0] == shown[1]
