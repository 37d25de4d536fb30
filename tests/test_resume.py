"""A run that is stopped, killed or extended, and resumed, is bit for bit the run that was not."""

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

import samplr
from samplr.store import RunFolder, read_checkpoint, read_config, read_metrics
from samplr.training import Training
from store.runs import Killed, assert_same
from tiny import (
    SIZES,
    STEPS_PER_UPDATE,
    UPDATES,
    assert_same_run,
    command,
    contents,
    rows,
    sharing_programs,
    summary,
    tiny_config,
    words,
)


@pytest.fixture(autouse=True)
def _shared_programs() -> Iterator[None]:
    with sharing_programs():
        yield


def train(path: Path, **changes: Any) -> None:
    samplr.train(tiny_config(**changes), path, resume=True)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to; not to be changed."""
    path = tmp_path_factory.mktemp("uninterrupted") / "run"
    with sharing_programs():
        train(path)
    assert [row["update"] for row in read_metrics(path)] == [4, 8, 12, 16, 20, 24]
    return path


def test_a_checkpoint_holds_the_whole_run(uninterrupted: Path) -> None:
    """What the comparisons of this file compare."""
    names = " ".join(read_checkpoint(uninterrupted).arrays)
    for part in ("network.actor.weight", "opt_state", "teacher", "scale", ".key", ".update", "real"):
        assert part in names


# Interrupted.


def interrupting(at_update: int, times: int) -> samplr.run.Watch:
    """Presses Ctrl-C when a line of metrics has been computed."""

    def watch(row: dict[str, Any], _: Any) -> None:
        for _ in range(times if row["update"] == at_update else 0):
            signal.raise_signal(signal.SIGINT)

    return watch


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["", "in the background"])
def _interrupts(request: pytest.FixtureRequest) -> Iterator[None]:
    """What an interrupt does to begin with; nothing in a job that a script started in the background."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    assert signal.getsignal(signal.SIGINT) is request.param
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupts")
def test_an_interrupt_saves_what_was_computed(uninterrupted: Path, tmp_path: Path) -> None:
    config = tiny_config(checkpoint_seconds=3600.0)
    with pytest.raises(KeyboardInterrupt):
        samplr.train(config, tmp_path / "run", watch=interrupting(at_update=8, times=1))
    assert read_checkpoint(tmp_path / "run").update == 8
    train(tmp_path / "run", checkpoint_seconds=3600.0)
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.usefixtures("_interrupts")
def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    config = tiny_config(checkpoint_seconds=3600.0)
    with pytest.raises(KeyboardInterrupt):
        samplr.train(config, tmp_path / "run", watch=interrupting(at_update=8, times=2))
    assert not checkpoints_of(tmp_path / "run")


def test_an_interrupt_after_the_last_update_comes_too_late(tmp_path: Path) -> None:
    samplr.train(tiny_config(), tmp_path / "run", watch=interrupting(at_update=UPDATES, times=1))
    assert summary(tmp_path / "run")["updates"] == UPDATES


# Killed in this process.


@contextlib.contextmanager
def killed_in_call(method: str, number: int, *, after: bool) -> Iterator[None]:
    """The process dies when it calls a method of `RunFolder` for the n-th time, before or after its work is done."""
    function, calls = getattr(RunFolder, method), itertools.count(1)

    def dies(*args: Any) -> None:
        last = next(calls) == number
        if last and not after:
            raise Killed
        function(*args)
        if last:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, method, dies)
        yield


@pytest.mark.parametrize(
    ("method", "number", "after", "killed_at"),
    [
        pytest.param("log", 2, False, [4, 8, 12, 16, 20], id="before_a_line_is_written"),
        pytest.param("save", 2, False, [4, 8, 12, 16, 20], id="between_a_line_and_its_checkpoint"),
        pytest.param("save", 1, True, [4, 8, 12, 16, 20, 24], id="after_a_checkpoint"),
    ],
)
def test_a_run_killed_again_and_again_is_the_run_that_was_not(
    tmp_path: Path, uninterrupted: Path, method: str, number: int, after: bool, killed_at: list[int]
) -> None:
    """Every process gets one checkpoint further than the one before it, so that every line sees a kill."""
    for update in killed_at:
        with killed_in_call(method, number, after=after), pytest.raises(Killed):
            train(tmp_path)
        assert read_checkpoint(tmp_path).update == update
        assert not (tmp_path / "summary.json").exists()
    with killed_in_call(method, number, after=after):
        train(tmp_path)
    assert_same_run(tmp_path, uninterrupted)


@pytest.mark.parametrize("method", ["log", "save"], ids=["before_any_line", "before_any_checkpoint"])
def test_a_run_killed_before_its_first_checkpoint_starts_again(
    tmp_path: Path, uninterrupted: Path, method: str
) -> None:
    with killed_in_call(method, 1, after=False), pytest.raises(Killed):
        train(tmp_path)
    train(tmp_path)
    assert_same_run(tmp_path, uninterrupted)


def test_a_run_killed_far_from_its_last_checkpoint_does_the_rest_again(tmp_path: Path, uninterrupted: Path) -> None:
    """With checkpoints far apart many lines are written again, not doubled."""
    with killed_in_call("save", 1, after=True), pytest.raises(Killed):
        train(tmp_path)
    with killed_in_call("log", 4, after=True), pytest.raises(Killed):
        train(tmp_path, checkpoint_seconds=3600.0)
    assert [row["update"] for row in read_metrics(tmp_path)] == [4, 8, 12, 16, 20]
    assert read_checkpoint(tmp_path).update == 4
    train(tmp_path, checkpoint_seconds=3600.0)
    assert_same_run(tmp_path, uninterrupted)


def test_a_run_stopped_by_ctrl_c_goes_on(tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, stopped = RunFolder.log, []

    def interrupted_once(*args: Any) -> None:
        log(*args)
        if len(read_metrics(tmp_path)) == 3 and not stopped:
            stopped.append(True)
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "log", interrupted_once)
    arguments = ["train", "icy_road", *words(), "--out", tmp_path, "--resume", "--json"]
    first = command(*arguments)
    assert (first.status, first.out) == (130, "")
    assert first.err == "samplr: stopped; --resume goes on from here\n"
    second = command(*arguments)
    assert (second.status, second.err) == (0, "")
    assert second.json == summary(tmp_path)
    assert_same_run(tmp_path, uninterrupted)


# Killed as the operating system kills.


KILLED_UPDATES = 60


@pytest.fixture(scope="module")
def long_uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that logs every update."""
    path = tmp_path_factory.mktemp("long") / "run"
    with sharing_programs():
        train(path, steps=KILLED_UPDATES * STEPS_PER_UPDATE, log_every=1, checkpoint_seconds=3600.0)
    return path


def killed_process(arguments: list[str], path: Path, cache: Path, *, lines: int, pause: float) -> int:
    """Start the command in a process of its own, and kill it when it has written so many lines and a little later.

    **Returns:** the update of the last checkpoint that it left.
    """
    program = "from samplr.cli import main; raise SystemExit(main())"
    # The second process need not compile what the first has compiled.
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    log, metrics = path.with_suffix(".log"), path / "metrics.jsonl"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], env=environment, stdout=output, stderr=output
        )
    try:
        give_up = time.monotonic() + 300
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= lines and checkpoints_of(path)):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < give_up
            time.sleep(0.005)
        time.sleep(pause)
    finally:
        process.send_signal(signal.SIGKILL)
        status = process.wait()
    assert status == -signal.SIGKILL
    assert not (path / "summary.json").exists()
    return read_checkpoint(path).update


def checkpoints_of(path: Path) -> list[str]:
    folder = path / "checkpoints"
    return [entry.name for entry in folder.iterdir() if entry.name.isdigit()] if folder.exists() else []


def test_a_process_killed_twice_at_a_random_moment_is_resumed_to_the_same_bits(
    tmp_path: Path, long_uninterrupted: Path
) -> None:
    chance = random.Random(20220711)
    path, cache = tmp_path / "run", tmp_path / "cache"
    options = words(steps=KILLED_UPDATES * STEPS_PER_UPDATE, log_every=1)
    arguments = ["train", "icy_road", "--method", "samplr", *options, "--out", str(path)]
    first = killed_process(arguments, path, cache, lines=chance.randint(2, 15), pause=chance.uniform(0, 0.1))
    assert 0 < first < KILLED_UPDATES
    lines = first + chance.randint(2, 15)
    second = killed_process([*arguments, "--resume"], path, cache, lines=lines, pause=chance.uniform(0, 0.1))
    assert first < second < KILLED_UPDATES
    said = command(*arguments, "--resume", "--json")
    assert (said.status, said.err) == (0, "")
    assert_same_run(path, long_uninterrupted)


# Finished runs.


def test_resuming_a_finished_run_trains_nothing_and_changes_nothing(
    tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    monkeypatch.setattr(Training, "advance", lambda *_: pytest.fail("trained"))
    said = command("train", "icy_road", *words(), "--out", path, "--resume", "--json")
    assert (said.status, said.err) == (0, "")
    assert said.json == summary(uninterrupted)
    # The events are written anew, with the time of day; `assert_same_run` compares what they say.
    assert_same_run(path, uninterrupted)
    untimed = [
        {name: data for name, data in contents(of).items() if "tensorboard" not in name and name != "summary.json"}
        for of in (path, uninterrupted)
    ]
    assert untimed[0] == untimed[1]


def test_resuming_a_finished_run_does_not_forget_how_long_it_took(tmp_path: Path, uninterrupted: Path) -> None:
    path = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    train(path)
    assert seconds(path) >= seconds(uninterrupted)


def seconds(path: Path) -> float:
    return json.loads((path / "summary.json").read_text())["seconds"]


def test_an_extended_run_is_the_longer_run(tmp_path: Path, uninterrupted: Path) -> None:
    half = UPDATES // 2 * STEPS_PER_UPDATE
    arguments = ["train", "icy_road", "--out", tmp_path, "--resume", "--json"]
    assert command(*arguments, *words(steps=half)).json["updates"] == UPDATES // 2
    said = command(*arguments, *words())
    assert (said.status, said.err) == (0, "")
    assert said.json == summary(uninterrupted)
    assert read_config(tmp_path) == read_config(uninterrupted)
    assert_same_run(tmp_path, uninterrupted)


def test_how_long_a_run_is_need_not_be_said_again(tmp_path: Path, uninterrupted: Path) -> None:
    path = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    sizes = [word for name, value in SIZES.items() for word in (f"--{name}", str(value))]
    said = command("train", "icy_road", "--out", path, "--resume", "--json", *sizes)
    assert said.json == summary(uninterrupted)
    assert read_config(path) == read_config(uninterrupted)
    assert_same_run(path, uninterrupted)


def test_a_run_whose_checkpoints_are_gone_is_not_begun_again(tmp_path: Path, uninterrupted: Path) -> None:
    path = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    shutil.rmtree(path / "checkpoints")
    before = contents(path)
    said = command("train", "icy_road", "--out", path, "--resume", *words())
    assert said.status == 2
    assert "are gone: restore them" in said.err
    assert contents(path) == before


def test_a_run_cannot_be_made_shorter(tmp_path: Path, uninterrupted: Path) -> None:
    path = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    before = contents(path)
    said = command("train", "icy_road", "--out", path, "--resume", *words(steps=UPDATES // 2 * STEPS_PER_UPDATE))
    assert said.status == 2
    assert f"has {UPDATES * STEPS_PER_UPDATE:,} steps" in said.err
    assert "resume it with at least as many" in said.err
    assert contents(path) == before


def test_a_run_extended_in_the_middle_of_a_line_computes_the_same(tmp_path: Path, uninterrupted: Path) -> None:
    """What is logged where depends on where the run stopped; what is computed does not."""
    train(tmp_path, steps=10 * STEPS_PER_UPDATE)
    train(tmp_path)
    assert [row["update"] for row in read_metrics(tmp_path)] == [4, 8, 10, 14, 18, 22, 24]
    assert rows(tmp_path)[:2] == rows(uninterrupted)[:2]
    states = [
        {name: array for name, array in read_checkpoint(path).arrays.items() if name.startswith("[0]")}
        for path in (tmp_path, uninterrupted)
    ]
    assert len(states[0]) > 20
    assert_same(states[0], states[1])


def test_how_often_a_run_logs_does_not_change_what_it_computes(uninterrupted: Path, tmp_path: Path) -> None:
    train(tmp_path, log_every=1, checkpoint_seconds=3600.0)
    assert [row["update"] for row in read_metrics(tmp_path)] == list(range(1, UPDATES + 1))
    one, four = (
        {name: array for name, array in read_checkpoint(path).arrays.items() if name.startswith("[0]")}
        for path in (tmp_path, uninterrupted)
    )
    assert_same(one, four)


@pytest.mark.gpu
@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize("world", ["icy_road", "black_ice", "fruit_choice"])
def test_another_process_goes_on_to_the_same_bits_on_a_gpu(world: str, tmp_path: Path) -> None:
    """There kernels are picked by timing them, by every process anew."""
    lengths = {"whole": [8], "halves": [4, 8]}
    for name, updates in lengths.items():
        for until in updates:
            sizes = f"--workers 16 --rollout 32 --replay.capacity 32 --seeds 2 --log-every 4 --steps {until * 16 * 32}"
            arguments = ["train", world, "--out", str(tmp_path / name), "--resume", *sizes.split()]
            program = "import sys; from samplr.cli import main; sys.exit(main())"
            subprocess.run([sys.executable, "-c", program, *arguments], check=True)
    assert_same(*(read_checkpoint(tmp_path / name).arrays for name in lengths))
