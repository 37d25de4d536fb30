"""Metrics and events: each number once, at its run and step, whatever was dropped in between."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from samplr.errors import SamplrWarning
from samplr.store import RunFolder, read_metrics

from .runs import CONFIG, advance, events, row


def test_metrics_are_valid_json_flushed_as_they_are_written(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, resume=False) as folder:
        folder.log({"update": 1, "steps": 8, "loss": float("nan"), "returns": [1.5, None, float("inf")]})
        folder.log({"update": np.int32(2), "steps": 16, "loss": np.float32(0.5), "returns": np.array([1.0, np.nan])})
        lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    expected = [
        {"update": 1, "steps": 8, "loss": None, "returns": [1.5, None, None]},
        {"update": 2, "steps": 16, "loss": 0.5, "returns": [1.0, None]},
    ]
    assert [json.loads(line, parse_constant=pytest.fail) for line in lines] == expected == read_metrics(tmp_path)


def test_events_go_to_the_run_they_belong_to(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, resume=False) as folder:
        folder.log({"update": 1, "steps": 8, "loss": 0.5, "return": [1.5, None, float("nan")]})
        folder.log({"update": 2, "steps": 16, "loss": None, "return": [None, 2.5, 3.5]})
    assert events(tmp_path, 0) == [("loss", 8, 0.5), ("return", 8, 1.5)]
    assert events(tmp_path, 1) == [("return", 16, 2.5)]
    assert events(tmp_path, 2) == [("return", 16, 3.5)]
    assert sorted(os.listdir(tmp_path / "tensorboard")) == ["run_0", "run_1", "run_2"]


def test_a_row_that_is_being_written_is_not_read(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"update": 26, "st')
    assert read_metrics(run) == [row(10), row(20), row(25)]


def test_a_damaged_row_is_left_out_with_a_warning(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([lines[0], "\0\0", "7", *lines[1:], ""]))
    with pytest.warns(SamplrWarning, match="2 of 5 lines of .* are damaged"):
        assert read_metrics(run) == [row(10), row(20), row(25)]


def test_latest_drops_what_was_logged_after_the_checkpoint(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"update": 26, "st')
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        assert folder.latest().update == 20  # type: ignore[union-attr]
        assert read_metrics(run) == [row(10), row(20)]
        advance(folder, 25)
    assert (run / "metrics.jsonl").read_text() == "".join(json.dumps(row(update)) + "\n" for update in (10, 20, 25))
    assert events(run, 0) == [
        (name, 100 * update, value)
        for update in (10, 20, 25)
        for name, value in [("loss", update / 4), ("return", update + 0.5)]
    ]


def test_without_a_checkpoint_a_resumed_run_starts_from_nothing(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, resume=True) as folder:
        folder.log(row(0))
    with RunFolder.open(tmp_path, CONFIG, resume=True) as folder:
        assert folder.latest() is None
        assert read_metrics(tmp_path) == []
        folder.log(row(0))
    assert read_metrics(tmp_path) == [row(0)]
    assert events(tmp_path, 0) == [("loss", 0, 0.0), ("return", 0, 0.5)]
