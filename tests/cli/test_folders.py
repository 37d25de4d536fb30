"""Run folders that are in use, of another run, not to be written to, or damaged, and what the command says of them."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from samplr.store import checkpoints, read_checkpoint, read_metrics
from store.runs import truncate
from tiny import STEPS_PER_UPDATE, UPDATES, Said, assert_same_run, command, contents, words

from .conftest import assert_refused


def newest(run: Path, back: int = 0) -> Path:
    return sorted((run / "checkpoints").iterdir())[-1 - back]


def test_a_folder_that_holds_a_run_is_not_trained_over(run: Path) -> None:
    before = contents(run)
    said = command("train", "icy_road", *words(), "--out", run)
    assert_refused(said, f"'{run}' holds files already: choose another --out, or pass --resume")
    assert contents(run) == before


@pytest.mark.parametrize(
    ("resume", "told"), [([], "holds files already"), (["--resume"], "holds files but no config.json")]
)
def test_a_folder_that_holds_other_files_is_not_trained_into(tmp_path: Path, resume: list[str], told: str) -> None:
    (tmp_path / "chapter.tex").write_text("precious")
    assert_refused(command("train", "icy_road", *words(), "--out", tmp_path, *resume), told)
    assert contents(tmp_path) == {"chapter.tex": b"precious"}


@pytest.fixture
def lock_elsewhere() -> Iterator[Callable[[Path], int]]:
    """Lets another process lock a folder as a run does, and gives its pid."""
    program = (
        "import fcntl, os, sys; lock = open(sys.argv[1], 'w'); fcntl.flock(lock, fcntl.LOCK_EX);"
        "print(os.getpid(), file=lock, flush=True); print('locked', flush=True); sys.stdin.read()"
    )
    others: list[subprocess.Popen[bytes]] = []

    def lock(folder: Path) -> int:
        other = subprocess.Popen(
            [sys.executable, "-c", program, folder / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        others.append(other)
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        return other.pid

    yield lock
    for other in others:
        other.communicate()


@pytest.mark.parametrize("begun", [True, False], ids=["a_run_to_resume", "a_run_that_just_begins"])
def test_a_folder_in_use_by_another_process_is_refused(
    run: Path, tmp_path: Path, lock_elsewhere: Callable[[Path], int], begun: bool
) -> None:
    if not begun:
        run = tmp_path / "fresh"
        run.mkdir()
    pid = lock_elsewhere(run)
    before = contents(run)
    said = command("train", "icy_road", *words(steps=5000), "--out", run, *(["--resume"] if begun else []))
    assert_refused(said, f"'{run}' is being written by another process (pid {pid})")
    assert contents(run) == before


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"student__hidden": 8}, "student.hidden is [16] there and [8] here"),
        ({"env__beta": 14.0}, "env.beta is 15.0 there and 14.0 here"),
        ({"method": "dr", "replay__capacity": None}, "teacher is 'robust_plr' there and 'dr' here"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_run_is_not_resumed_with_another_configuration(run: Path, options: dict[str, Any], difference: str) -> None:
    before = contents(run)
    said = command("train", "icy_road", *words(**options), "--out", run, "--resume")
    assert_refused(said, f"'{run}' holds a run with another configuration: {difference}")
    assert contents(run) == before


def test_a_run_goes_on_as_it_was_begun_without_any_option_but_its_folder(run: Path) -> None:
    """Seeds, sizes and all else are in the folder."""
    before = read_metrics(run)
    said = command("train", "icy_road", "--out", run, "--resume", "--steps", 2 * UPDATES * STEPS_PER_UPDATE, "--json")
    assert said.status == 0, said.err
    assert len(said.json["seeds"]) == 4
    after = read_metrics(run)
    assert after[: len(before)] == before
    assert after[-1]["update"] == 2 * UPDATES


def test_a_run_of_another_environment_is_not_resumed(run: Path, worlds: str) -> None:
    before = contents(run)
    said = command("train", f"{worlds}:Guess", *words(method="dr", replay__capacity=None), "--out", run, "--resume")
    assert_refused(said, "env.name is 'icy_road' there and 'my_worlds:Guess' here")
    assert contents(run) == before


@pytest.mark.parametrize("arguments", [["train", "icy_road", *words()], ["demo"]], ids=["train", "demo"])
@pytest.mark.parametrize("below", ["", "below"], ids=["a_file", "below_a_file"])
def test_an_output_folder_that_cannot_be_made_is_told(tmp_path: Path, arguments: list[str], below: str) -> None:
    (tmp_path / "file").write_text("precious")
    out = tmp_path / "file" / below
    assert_refused(command(*arguments, "--out", out), f"'{out}'")
    assert contents(tmp_path) == {"file": b"precious"}


def test_a_disk_that_fills_up_is_told_and_costs_no_checkpoint(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = contents(run)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_arrays", full)
        said = command("train", "icy_road", *words(steps=5000), "--out", run, "--resume", "--json")
    assert_refused(said, f"cannot write to the run folder '{run}': No space left on device")
    after = contents(run)
    kept = {name for name in before if name.startswith("checkpoints/") or name == "summary.json"}
    assert len(kept) > 10
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert read_checkpoint(run).update == UPDATES


# Damaged checkpoints.


def assert_one_warning(said: Said, *parts: str) -> None:
    assert said.status == 0
    assert said.err.startswith("samplr: warning: ")
    assert said.err.count("\n") == 1
    for part in parts:
        assert part in said.err


def truncate_largest_file(checkpoint: Path) -> None:
    truncate(max((file for file in checkpoint.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size))


def test_a_truncated_checkpoint_is_reported_and_the_one_before_it_played(run: Path) -> None:
    truncate_largest_file(newest(run))
    before = contents(run)
    said = command("eval", run, "--episodes", 3)
    assert_one_warning(
        said, f"checkpoint '{newest(run)}' is damaged", f"'{newest(run, back=1).name}', before it, is used"
    )
    assert "ground_truth" in said.out
    assert contents(run) == before


def test_a_truncated_checkpoint_is_reported_and_trained_again(run: Path, trained: Path) -> None:
    damaged = newest(run)
    truncate_largest_file(damaged)
    said = command("train", "icy_road", *words(), "--out", run, "--resume", "--json")
    assert_one_warning(said, f"checkpoint '{damaged}' is damaged")
    assert_same_run(run, trained)


@pytest.mark.parametrize("resume", [True, False], ids=["train", "eval"])
def test_without_a_whole_checkpoint_nothing_is_done(run: Path, resume: bool) -> None:
    for back in (0, 1):
        truncate_largest_file(newest(run, back))
    before = contents(run)
    said = command("train", "icy_road", *words(), "--out", run, "--resume") if resume else command("eval", run)
    assert_refused(said, f"none of the checkpoints in '{run}' is whole")
    assert contents(run) == before
