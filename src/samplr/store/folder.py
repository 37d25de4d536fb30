"""The run folder as a whole: who may write to it, what a training loop puts in, and what others read."""

import contextlib
import fcntl
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, Self

from samplr.errors import BusyError, RunFolderError
from samplr.store import checkpoints, files, record
from samplr.store.checkpoints import Arrays, Checkpoint
from samplr.store.metrics import Metrics, Row, as_json, read_rows

_SUMMARY = "summary.json"
_LOCK = ".lock"


class RunFolder:
    """The writing side of a run folder, open to one process at a time; a context manager.

    A training loop calls `latest` once, to learn where to start, and then `log` and `save` as it goes. A
    checkpoint covers the rows of its own update, so `log` comes before `save`.
    """

    def __init__(self, path: Path, lock: IO[str], *, resumed: bool) -> None:
        self.path = path
        self._lock = lock
        self._metrics = Metrics(path)
        self._rolled_back = not resumed

    @classmethod
    def open(cls, path: str | Path, config: dict[str, Any], *, resume: bool, may_change: Collection[str] = ()) -> Self:
        """Open a run folder for writing, and hold its lock until `close`.

        **Arguments:**

        - `path`: the folder; an absent one is created.
        - `config`: what is run, as JSON would have it.
        - `resume`: continue the run in the folder, if there is one; without it the folder has to be empty.
        - `may_change`: the top-level keys of `config` in which a resumed run may differ from what it was.

        **Returns:** the open folder. If the folder cannot be used, a `RunFolderError` says why.
        """
        path = Path(path)
        with files.explained("write to", path):
            _refuse_unusable(path, resume=resume)
            path.mkdir(parents=True, exist_ok=True)
            lock = _take_lock(path)
            try:
                # Once more: another process may have started, finished and let go of the lock since.
                _refuse_unusable(path, resume=resume)
                resumed = (path / record.CONFIG).exists()
                if resumed and not checkpoints.has_folder(path) and read_rows(path):
                    raise RunFolderError(f"the checkpoints of '{path}' are gone: restore them, or choose another --out")
                record.write_record(path, config, may_change)
                checkpoints.prepare(path)
            except BaseException:
                lock.close()
                raise
        return cls(path, lock, resumed=resumed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def latest(self) -> Checkpoint | None:
        """Load the newest whole checkpoint, and roll the metrics and the TensorBoard events back to it.

        **Returns:** the checkpoint, or None if none has been written yet. If there are checkpoints and all
        are damaged, a `RunFolderError` says so: a run is never silently started again.
        """
        with files.explained("write to", self.path):
            whole, damaged = checkpoints.newest_whole(self.path)
            checkpoint = checkpoints.load(whole) if whole else None
            for folder in damaged:
                checkpoints.set_aside(folder)
            self._metrics.roll_back(checkpoint.update if checkpoint else None)
        self._rolled_back = True
        return checkpoint

    def log(self, row: Row) -> None:
        """Add a row to metrics.jsonl and to the TensorBoard events.

        **Arguments:**

        - `row`: `update` and `steps` (integers), numbers, and lists with one number or None per run. In
          TensorBoard a list's i-th number goes to run i, and a plain number to run 0. NaN and infinities are
          written as null.
        """
        self._refuse_before_latest()
        with files.explained("write to", self.path):
            self._metrics.log(row)

    def save(self, update: int, arrays: Arrays) -> None:
        """Write a checkpoint, and delete all but the newest two.

        A process killed during this leaves either no trace of the new checkpoint or the whole of it.

        **Arguments:**

        - `update`: how many updates the state has seen; a checkpoint of the same update is replaced.
        - `arrays`: the whole state.
        """
        self._refuse_before_latest()
        with files.explained("write to", self.path):
            self._metrics.sync()
            temporary = checkpoints.make_temporary(self.path, update)
            checkpoints.write_arrays(temporary, arrays)
            checkpoints.write_manifest(temporary, update)
            _discard_summary(self.path)
            checkpoints.publish(temporary)
            checkpoints.delete_old(self.path)

    @property
    def finished(self) -> bool:
        """Whether there is a summary of the newest checkpoint."""
        return (self.path / _SUMMARY).exists()

    def finish(self, summary: dict[str, Any]) -> None:
        """Write summary.json, the sign that the batch is done.

        **Arguments:**

        - `summary`: what to write; NaN and infinities become null.
        """
        with files.explained("write to", self.path):
            files.write_json(self.path / _SUMMARY, as_json(summary))

    def close(self) -> None:
        """Close the event files and give the lock back."""
        try:
            self._metrics.close()
        finally:
            self._lock.close()

    def _refuse_before_latest(self) -> None:
        if not self._rolled_back:
            raise RuntimeError("call latest() first: the rows after the last checkpoint would be doubled")


def read_config(path: str | Path) -> dict[str, Any]:
    """Read what was run in a run folder.

    **Arguments:**

    - `path`: the run folder; another process may be writing to it.

    **Returns:** the configuration given to `RunFolder.open`.
    """
    with files.explained("read", path):
        config: dict[str, Any] = record.read_record(Path(path))["config"]
        return config


def read_summary(path: str | Path) -> dict[str, Any] | None:
    """Read the summary of a run folder.

    **Arguments:**

    - `path`: the run folder; another process may be writing to it.

    **Returns:** what was given to `RunFolder.finish`, or None if the batch is not done.
    """
    file = Path(path) / _SUMMARY
    with files.explained("read", path):
        try:
            summary: dict[str, Any] | None = json.loads(file.read_bytes()) if file.exists() else None
            if not isinstance(summary, dict | None):
                raise ValueError("no object")
        except ValueError as error:
            raise RunFolderError(f"'{file}' is not as samplr wrote it: restore it, or delete it") from error
    return summary


def read_metrics(path: str | Path) -> list[Row]:
    """Read the metrics of a run folder.

    **Arguments:**

    - `path`: the run folder; another process may be writing to it.

    **Returns:** the rows in the order in which they were logged, without one that is being written.
    """
    with files.explained("read", path):
        record.read_record(Path(path))
        return read_rows(Path(path))


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read the newest whole checkpoint of a run folder.

    **Arguments:**

    - `path`: the run folder; another process may be writing to it.

    **Returns:** the checkpoint.
    """
    with files.explained("read", path):
        record.read_record(Path(path))
        whole, _ = checkpoints.newest_whole(Path(path))
        if whole is None:
            raise RunFolderError(f"'{path}' holds no checkpoint yet: let the run get to its first one")
        return checkpoints.load(whole)


def _refuse_unusable(path: Path, *, resume: bool) -> None:
    """Refuse a folder that holds something other than the run to continue; change nothing."""
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"'{path}' is a file: choose another --out")
    # A run killed before its config.json was written leaves these two, and nothing worth keeping.
    contents = {
        name
        for name in (os.listdir(path) if path.exists() else ())
        if name != _LOCK and not files.is_temporary(name, record.CONFIG)
    }
    if contents and not resume:
        raise RunFolderError(
            f"'{path}' holds files already: choose another --out, or pass --resume to continue the run in it"
        )
    if contents and record.CONFIG not in contents:
        raise RunFolderError(f"'{path}' holds files but no {record.CONFIG}, so no run to resume: choose another --out")


@contextlib.contextmanager
def held(path: str | Path) -> Iterator[None]:
    """Keep other processes from writing a run folder meanwhile, or say who does."""
    with files.explained("write to", path), contextlib.closing(_take_lock(Path(path))):
        yield


def _take_lock(path: Path) -> IO[str]:
    """Lock a run folder; closing the file, or the death of this process, frees it.

    The file itself stays: were it deleted, two processes could hold locks on two files of that name.
    """
    lock = (path / _LOCK).open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        pid = lock.read().strip() or "unknown"
        lock.close()
        raise BusyError(
            f"'{path}' is being written by another process (pid {pid}): wait for it, or choose another --out"
        ) from None
    except OSError:
        lock.close()
        raise
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _discard_summary(path: Path) -> None:
    """Delete the summary of a run that was done and goes on: it must not speak for a newer checkpoint."""
    (path / _SUMMARY).unlink(missing_ok=True)
