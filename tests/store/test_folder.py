"""The run folder as a whole: who may write, in which order, and what readers are told."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samplr.errors import RunFolderError
from samplr.store import RunFolder, read_checkpoint, read_config, read_metrics
from samplr.store import folder as folder_module

from .runs import CONFIG, advance, assert_same, row, snapshot, state, updates


def test_a_folder_with_files_is_refused_without_resume(run: Path, tmp_path: Path) -> None:
    before = snapshot(run)
    with pytest.raises(RunFolderError, match="holds files already: choose another --out, or pass --resume"):
        RunFolder.open(run, CONFIG, resume=False)
    assert snapshot(run) == before

    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter.tex").write_text("precious")
    for resume, message in [(False, "holds files already"), (True, r"no config\.json")]:
        with pytest.raises(RunFolderError, match=message):
            RunFolder.open(other, CONFIG, resume=resume)
    assert snapshot(other) == {"chapter.tex": b"precious"}


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_is_refused(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(RunFolderError, match="is a file"):
        RunFolder.open(tmp_path / "file", CONFIG, resume=resume)
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("left", [None, {}, {".lock": "7\n"}, {".lock": "", ".config.json.7.tmp": '{"sam'}])
def test_a_run_killed_before_its_config_leaves_a_usable_folder(
    tmp_path: Path, left: dict[str, str] | None, resume: bool
) -> None:
    path = tmp_path / "run"
    if left is not None:
        path.mkdir()
        for name, text in left.items():
            (path / name).write_text(text)
    with RunFolder.open(path, CONFIG, resume=resume) as folder:
        assert folder.latest() is None
        advance(folder, 1)
    assert read_config(path) == CONFIG
    assert_same(read_checkpoint(path).arrays, state(1))


def test_a_second_writer_is_refused_until_the_first_is_killed(run: Path) -> None:
    program = (
        "import sys, time; from samplr.store import RunFolder\n"
        f"folder = RunFolder.open({str(run)!r}, {CONFIG!r}, resume=True)\n"
        "print('open', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == b"open\n"
            before = snapshot(run)
            with pytest.raises(RunFolderError, match=rf"written by another process \(pid {first.pid}\)"):
                RunFolder.open(run, {**CONFIG, "steps": 1}, resume=True, may_change=["steps"])
            assert snapshot(run) == before
            assert read_checkpoint(run).update == 20  # reading needs no lock
        finally:
            first.send_signal(signal.SIGKILL)
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        assert (run / ".lock").read_text() == f"{os.getpid()}\n"
        assert folder.latest() is not None


def test_the_lock_is_given_back_by_close_and_by_a_failed_open(run: Path) -> None:
    with pytest.raises(RunFolderError, match="another configuration") as failure:
        RunFolder.open(run, {}, resume=True)
    first = RunFolder.open(run, CONFIG, resume=True)
    del failure  # until here it held on to all that the failed open did not close
    with pytest.raises(RunFolderError, match=f"pid {os.getpid()}"):
        RunFolder.open(run, CONFIG, resume=True)
    first.close()
    first.close()
    RunFolder.open(run, CONFIG, resume=True).close()


def test_a_folder_filled_while_waiting_for_the_lock_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_lock = folder_module._take_lock

    def other_run_comes_first(path: Path) -> Any:
        (path / "config.json").write_text("theirs")
        return take_lock(path)

    monkeypatch.setattr(folder_module, "_take_lock", other_run_comes_first)
    with pytest.raises(RunFolderError, match="holds files already"):
        RunFolder.open(tmp_path / "run", CONFIG, resume=False)
    assert (tmp_path / "run" / "config.json").read_text() == "theirs"


def test_a_resumed_folder_is_not_written_before_it_is_rolled_back(run: Path) -> None:
    before = snapshot(run)
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        with pytest.raises(RuntimeError, match=r"call latest\(\) first"):
            folder.log(row(30))
        with pytest.raises(RuntimeError, match=r"call latest\(\) first"):
            folder.save(30, state(30))
    assert snapshot(run).keys() == before.keys()
    assert updates(run) == [10, 20, 25]


def test_the_summary_is_there_when_the_run_is_done_and_not_when_it_goes_on(run: Path) -> None:
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        folder.latest()
        folder.finish({"return": [1.5, float("nan")], "steps": np.int64(7)})
    assert json.loads((run / "summary.json").read_text()) == {"return": [1.5, None], "steps": 7}
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        folder.latest()
        assert (run / "summary.json").exists()  # it speaks for the newest checkpoint still
        advance(folder, 30)
        assert not (run / "summary.json").exists()


@pytest.mark.parametrize("read", [read_config, read_metrics, read_checkpoint])
def test_reading_what_is_not_a_run_folder_is_an_error(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    (tmp_path / "file").touch()
    for path in [tmp_path, tmp_path / "absent", tmp_path / "file"]:
        with pytest.raises(RunFolderError, match=rf"'{path}' is not a run folder"):
            read(path)
    assert os.listdir(tmp_path) == ["file"]


def test_reading_a_run_that_has_just_begun(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, resume=False):
        assert read_metrics(tmp_path) == []
        with pytest.raises(RunFolderError, match="holds no checkpoint yet"):
            read_checkpoint(tmp_path)


def test_importing_the_store_is_cheap() -> None:
    program = "import sys, samplr.store; print(sorted({'orbax', 'tensorboardX'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    loaded = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert loaded.stdout == b"[]\n"
