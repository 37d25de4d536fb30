"""Host environments on the command line: trained, killed, resumed bit for bit, evaluated."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from samplr.store import read_checkpoint, read_metrics
from store.runs import assert_same
from tiny import command

TESTS = Path(__file__).parents[1]
WORLD = "gym_icy_road:HostIcyRoad"
UPDATES = 40


def words(out: Path, **options: Any) -> list[str]:
    sizes = {"workers": 4, "rollout": 12, "replay.capacity": 8, "student.hidden": 8, "student.epochs": 1}
    budget = {"steps": UPDATES * 48, "log-every": 1, "checkpoint-seconds": 0.0, "seeds": 2}
    named = {**sizes, "student.minibatches": 1, **budget, **{k.replace("_", "-"): v for k, v in options.items()}}
    return ["train", WORLD, "--out", str(out), *(str(word) for k, v in named.items() for word in (f"--{k}", v))]


def children(process: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def until(condition: Any, what: str, seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.02)


def logged(run: Path) -> int:
    rows = run / "metrics.jsonl"
    return rows.read_text().count("\n") if rows.exists() else 0


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_killed_training_leaves_no_process_behind_and_is_resumed_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(TESTS)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    program = [sys.executable, "-c", "import sys; from samplr.cli import main; sys.exit(main(sys.argv[1:]))"]
    with subprocess.Popen([*program, *words(killed)], cwd=TESTS, stderr=subprocess.DEVNULL) as training:
        until(lambda: logged(killed) >= 2 or training.poll() is not None, "the second line, after a checkpoint")
        workers = children(training.pid)
        os.kill(training.pid, signal.SIGKILL)
    assert len(workers) >= 2
    until(lambda: not any(map(alive, workers)), "the workers to end", 30.0)
    assert read_checkpoint(killed).update < UPDATES, "it was killed in time"

    resumed = command(*words(killed, processes=0), "--resume", "--json")
    assert resumed.status == 0, resumed.err
    assert command(*words(whole, processes=0), "--json").status == 0
    assert_same(read_checkpoint(killed).arrays, read_checkpoint(whole).arrays)
    assert [row["update"] for row in read_metrics(killed)] == list(range(1, UPDATES + 1))

    evaluated = command("eval", whole, "--suite", "fixed_rates", "--episodes", 3, "--json")
    assert evaluated.status == 0, evaluated.err
    assert evaluated.json["q=0"]["length"]["per_run"] == [12.0, 12.0]


@pytest.mark.slow
def test_a_film_is_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TESTS)
    assert command(*words(tmp_path / "run", processes=0, steps=48), "--json").status == 0
    said = command("film", tmp_path / "run", "--out", tmp_path / "film.gif")
    assert said.status == 2
    assert "HostIcyRoad is simulated on the host: it can be trained, evaluated and put through" in said.err
