"""Files: whole or not there, and one sentence when the operating system refuses."""

import json
import os
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from samplr.errors import RunFolderError
from samplr.store import RunFolder, files, read_checkpoint

from .runs import CONFIG, assert_same, killed_in, state


def test_json_files_are_never_half_written(run: Path) -> None:
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        folder.finish({"return": 1.0})
        with killed_in(os, "fsync"):
            folder.finish({"return": 2.0})
    assert json.loads((run / "summary.json").read_text()) == {"return": 1.0}


def test_two_processes_may_write_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.json"
    with files.replacing(file) as mine:
        mine.write(b"mine")
        monkeypatch.setattr(os, "getpid", lambda: 7)
        files.write_atomically(file, "theirs")
        assert file.read_text() == "theirs"
    assert file.read_text() == "mine"
    assert os.listdir(tmp_path) == [file.name]


def test_what_the_disk_refused_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomically(tmp_path / "file", "new")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_folder_that_cannot_be_created_or_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"cannot write to the run folder '.*file/run': Not a directory"):
        RunFolder.open(tmp_path / "file" / "run", CONFIG, resume=False)

    (tmp_path / "unlockable" / ".lock").mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"cannot write to the run folder '.*unlockable': Is a directory"):
        RunFolder.open(tmp_path / "unlockable", CONFIG, resume=False)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunFolderError, match=r"cannot write to the run folder '.*forbidden': Permission denied"):
        RunFolder.open(tmp_path / "forbidden", CONFIG, resume=True)
    assert not (tmp_path / "forbidden").exists()


def test_a_checkpoint_that_the_disk_has_no_room_for_is_not_begun(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = sum(array.nbytes for array in state(30).values())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        folder.latest()
        with pytest.raises(RunFolderError, match=r"cannot write to the run folder '.*': No space left on device"):
            folder.save(30, state(30))
        monkeypatch.undo()
        folder.save(30, state(30))
    assert_same(read_checkpoint(run).arrays, state(30))


def test_a_write_that_is_refused_is_one_sentence_and_costs_only_the_new_checkpoint(
    run: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    noise = np.random.default_rng(0).integers(0, 2**32, 2**19, dtype=np.uint32)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        folder.latest()
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
            with pytest.raises(RunFolderError, match=r"cannot write to the run folder '.*': File too large"):
                folder.save(30, {"noise": noise})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert capfd.readouterr() == ("", "")
        assert not caplog.records
        assert_same(read_checkpoint(run).arrays, state(20))
        folder.save(30, {"noise": noise})
    assert_same(read_checkpoint(run).arrays, {"noise": noise})
