"""A process that dies, anywhere in opening, rolling back or saving, costs nothing but its last steps."""

import inspect
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from samplr.store import RunFolder, checkpoints, files, read_checkpoint, read_config, read_metrics, record
from samplr.store import folder as folder_module
from samplr.store.metrics import Metrics

from .runs import CONFIG, advance, assert_same, checkpoint_names, events, killed_in, row, state, updates


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (folder_module, "_take_lock"),
        (record, "write_record"),
        (checkpoints, "prepare"),
        (checkpoints, "_clear_leftovers"),
    ],
)
def test_a_kill_while_a_fresh_folder_is_opened_is_harmless(tmp_path: Path, owner: Any, name: str) -> None:
    with killed_in(owner, name):
        RunFolder.open(tmp_path / "run", CONFIG, resume=True)
    with RunFolder.open(tmp_path / "run", CONFIG, resume=True) as folder:
        assert folder.latest() is None
    assert read_config(tmp_path / "run") == CONFIG


@pytest.mark.parametrize(
    ("owner", "name"),
    [(checkpoints, "load"), (files, "write_atomically"), (os, "replace"), (shutil, "rmtree")],
)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_while_rolling_back_is_harmless(run: Path, owner: Any, name: str, after: bool) -> None:
    with RunFolder.open(run, CONFIG, resume=True) as folder, killed_in(owner, name, after=after):
        folder.latest()
    assert updates(run) in ([10, 20, 25], [10, 20])
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        checkpoint = folder.latest()
    assert checkpoint is not None
    assert_same(checkpoint.arrays, state(20))
    assert read_metrics(run) == [row(10), row(20)]
    assert [step for _, step, _ in events(run, 0)] == [1000, 1000, 2000, 2000]


# Read off the code, so that a new stage is tested too.
STAGES = [
    (owner, name)
    for name in RunFolder.save.__code__.co_names
    for owner in (Metrics, checkpoints, folder_module)
    if inspect.isfunction(getattr(owner, name, None))
]
# Called inside the stages: the process dies in the first such call.
INNER = [(files, "sync"), (files, "write_json"), (files, "fingerprint"), (checkpoints, "_move_away")]


def test_the_stages_of_a_save_are_known() -> None:
    assert STAGES[0] == (Metrics, "sync")
    assert STAGES[-2:] == [(checkpoints, "publish"), (checkpoints, "delete_old")]
    assert len(STAGES) == 7


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "stage"), [*STAGES, *INNER])
@pytest.mark.parametrize("update", [30, 20], ids=["new", "again"])
def test_a_kill_at_any_stage_of_a_save_leaves_a_whole_checkpoint(
    run: Path, update: int, owner: Any, stage: str, after: bool
) -> None:
    # When a new update is saved, the first to be moved away is an old checkpoint; otherwise the one replaced.
    published = (stage, after) == ("publish", True) or stage == "delete_old"
    published |= stage == "_move_away" and update == 30
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        folder.latest()
        folder.log(row(30))
        with killed_in(owner, stage, after=after):
            folder.save(update, state(99))

    with RunFolder.open(run, CONFIG, resume=True) as folder:
        checkpoint = folder.latest()
        assert checkpoint is not None
        assert checkpoint.update == (update if published else 20)
        assert_same(checkpoint.arrays, state(99 if published else 20))
        assert updates(run) == ([10, 20, 30] if checkpoint.update == 30 else [10, 20])
        advance(folder, 40)
    assert checkpoint_names(run) == [f"{checkpoint.update:09d}", "000000040"]
    assert_same(read_checkpoint(run).arrays, state(40))
    assert updates(run)[-1] == 40


def test_all_that_a_checkpoint_needs_is_on_the_disk_before_it_takes_its_name(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, Path]] = []
    fsync, rename = os.fsync, os.rename

    def recorded_fsync(descriptor: int) -> None:
        fsync(descriptor)
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))

    def recorded_rename(source: Path, target: Path) -> None:
        rename(source, target)
        done.append(("rename", Path(target)))

    final = run / "checkpoints" / "000000030"
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        folder.latest()
        folder.log(row(30))
        monkeypatch.setattr(os, "fsync", recorded_fsync)
        monkeypatch.setattr(os, "rename", recorded_rename)
        folder.save(30, state(30))

    named = done.index(("rename", final))
    assert ("sync", run / "metrics.jsonl") in done[:named]
    temporary = final.with_suffix(".tmp")
    needed = {temporary / entry.relative_to(final) for entry in final.rglob("*")} | {temporary}
    needed ^= {temporary / name for name in ("manifest.json", files.temporary_name("manifest.json"))}
    assert needed <= {path for action, path in done[:named] if action == "sync"}
    assert ("sync", final.parent) in done[named:]


def test_a_kill_in_the_only_checkpoints_replacement_keeps_it(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, resume=False) as folder:
        folder.save(0, state(1))
        with killed_in(checkpoints, "_move_away", after=True):
            folder.save(0, state(2))
    assert checkpoint_names(tmp_path) == ["000000000.replaced", "000000000.tmp"]
    with RunFolder.open(tmp_path, CONFIG, resume=True) as folder:
        assert checkpoint_names(tmp_path) == ["000000000"]
        assert_same(folder.latest().arrays, state(1))  # type: ignore[union-attr]


def test_a_save_that_failed_can_be_repeated_by_the_same_process(run: Path) -> None:
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        folder.latest()
        with killed_in(checkpoints, "write_manifest"):
            folder.save(30, state(99))
        folder.save(30, state(30))
    assert_same(read_checkpoint(run).arrays, state(30))
