"""Run folders: what a batch of training runs leaves on disk, safe against being killed at any moment.

    config.json                   what was run, and with which versions
    metrics.jsonl                 one row of metrics a line
    tensorboard/run_<i>/          the same numbers for TensorBoard, one sub-folder per run of the batch
    checkpoints/<update>/         the whole state of the batch; the newest two are kept
    summary.json                  written when the batch is done
    .lock                         held by the process that writes here

Three rules make a kill harmless. A file or checkpoint takes its final name only when it is whole and on the
disk. A checkpoint carries the SHA-256 of each of its files, and is used only if they all agree. What was
logged after the checkpoint a run resumes from is dropped, because the resumed run logs it again.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import time
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from samplr.errors import RunFolderError, SamplrWarning
from samplr.version import __version__

Arrays = dict[str, np.ndarray]
"""The whole state of a batch of runs, flattened: a path in the state -> its array."""

Row = dict[str, Any]
"""One row of metrics: `update`, `steps`, numbers, and lists with one number or None per run."""

_CONFIG = "config.json"
_METRICS = "metrics.jsonl"
_SUMMARY = "summary.json"
_LOCK = ".lock"
_TENSORBOARD = "tensorboard"
_CHECKPOINTS = "checkpoints"

# Inside a checkpoint: Orbax's folder, the names of the arrays in it, and the checksums of all of that.
_ARRAYS = "arrays"
_INDEX = "index.json"
_MANIFEST = "manifest.json"

# What a checkpoint's folder is called when it is not, or no longer, a checkpoint.
_TEMPORARY = ".tmp"  # being written or deleted
_REPLACED = ".replaced"  # making way for a newer one of the same update
_DAMAGED = ".damaged"  # found not to agree with its manifest

_CHECKPOINTS_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """The state of a batch of runs after `update` updates."""

    update: int
    arrays: Arrays


class RunFolder:
    """The writing side of a run folder, open to one process at a time; a context manager.

    A training loop calls `latest` once, to learn where to start, and then `log` and `save` as it goes. A
    checkpoint covers the rows of its own update, so `log` comes before `save`.
    """

    def __init__(self, path: Path, lock: IO[str], *, resumed: bool) -> None:
        self.path = path
        self._lock = lock
        self._events = _Events(path / _TENSORBOARD)
        self._rolled_back = not resumed

    @classmethod
    def open(
        cls, path: str | Path, config: dict[str, Any], *, resume: bool, may_change: Collection[str] = ()
    ) -> Self:
        """Opens a run folder for writing, and holds its lock until `close`.

        Arguments:
            path: the folder; an absent one is created.
            config: what is run, as JSON would have it.
            resume: continue the run in the folder, if there is one; without it the folder has to be empty.
            may_change: the top-level keys of `config` in which a resumed run may differ from what it was.

        Returns:
            The open folder. If the folder cannot be used, a `RunFolderError` says why.
        """
        path = Path(path)
        with _explained("write to", path):
            _refuse_unusable(path, resume=resume)
            path.mkdir(parents=True, exist_ok=True)
            lock = _take_lock(path)
            try:
                # Once more: another process may have started, finished and let go of the lock since.
                _refuse_unusable(path, resume=resume)
                resumed = (path / _CONFIG).exists()
                _record_config(path, config, may_change)
                (path / _CHECKPOINTS).mkdir(exist_ok=True)
                _sync(path)
                _clear_leftovers(path / _CHECKPOINTS)
            except BaseException:
                lock.close()
                raise
        return cls(path, lock, resumed=resumed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def latest(self) -> Checkpoint | None:
        """Loads the newest whole checkpoint, and rolls the metrics and the TensorBoard events back to it.

        Returns:
            The checkpoint, or None if none has been written yet. If there are checkpoints and all are
            damaged, a `RunFolderError` says so: a run is never silently started again.
        """
        with _explained("write to", self.path):
            whole, damaged = _newest_whole(self.path)
            checkpoint = _load(whole) if whole else None
            for folder in damaged:
                _move_away(folder, _DAMAGED)
            rows = [row for row in _read_rows(self.path) if checkpoint and row["update"] <= checkpoint.update]
            _write_atomically(self.path / _METRICS, "".join(map(_as_line, rows)))
            self._events.replace(rows)
        self._rolled_back = True
        return checkpoint

    def log(self, row: Row) -> None:
        """Adds a row to metrics.jsonl and to the TensorBoard events.

        Arguments:
            row: `update` and `steps` (integers), numbers, and lists with one number or None per run. In
                TensorBoard a list's i-th number goes to run i, and a plain number to run 0. NaN and
                infinities are written as null.
        """
        self._refuse_before_latest()
        row = _as_json(row)
        with _explained("write to", self.path):
            with (self.path / _METRICS).open("a", encoding="utf-8") as metrics:
                metrics.write(_as_line(row))
            self._events.write(row)

    def save(self, update: int, arrays: Arrays) -> None:
        """Writes a checkpoint, and deletes all but the newest two.

        A process killed during this leaves either no trace of the new checkpoint or the whole of it.

        Arguments:
            update: how many updates the state has seen; a checkpoint of the same update is replaced.
            arrays: the whole state.
        """
        self._refuse_before_latest()
        final = self.path / _CHECKPOINTS / f"{update:09d}"
        with _explained("write to", self.path):
            self._events.flush()
            _sync_metrics(self.path)
            temporary = _make_temporary(final)
            _write_arrays(temporary, arrays)
            _write_manifest(temporary, update)
            _discard_summary(self.path)
            _publish(temporary, final)
            _delete_old_checkpoints(final.parent)

    def finish(self, summary: dict[str, Any]) -> None:
        """Writes summary.json, the sign that the batch is done.

        Arguments:
            summary: what to write; NaN and infinities become null.
        """
        with _explained("write to", self.path):
            _write_json(self.path / _SUMMARY, _as_json(summary))

    def close(self) -> None:
        """Closes the event files and gives the lock back."""
        try:
            self._events.close()
        finally:
            self._lock.close()

    def _refuse_before_latest(self) -> None:
        if not self._rolled_back:
            raise RuntimeError("call latest() first: the rows after the last checkpoint would be doubled")


def read_config(path: str | Path) -> dict[str, Any]:
    """Reads what was run in a run folder.

    Arguments:
        path: the run folder; another process may be writing to it.

    Returns:
        The configuration given to `RunFolder.open`.
    """
    with _explained("read", path):
        config: dict[str, Any] = _read_config_file(Path(path))["config"]
        return config


def read_metrics(path: str | Path) -> list[Row]:
    """Reads the metrics of a run folder.

    Arguments:
        path: the run folder; another process may be writing to it.

    Returns:
        The rows in the order in which they were logged, without one that is being written.
    """
    with _explained("read", path):
        _read_config_file(Path(path))
        return _read_rows(Path(path))


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Reads the newest whole checkpoint of a run folder.

    Arguments:
        path: the run folder; another process may be writing to it.

    Returns:
        The checkpoint.
    """
    with _explained("read", path):
        _read_config_file(Path(path))
        whole, _ = _newest_whole(Path(path))
        if whole is None:
            raise RunFolderError(f"'{path}' holds no checkpoint yet: let the run get to its first one")
        return _load(whole)


# Opening a folder: may it be used, and by this process?


@contextlib.contextmanager
def _explained(action: str, path: str | Path) -> Iterator[None]:
    """Turns what the operating system refuses into one sentence for the user."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"cannot {action} the run folder '{path}': {error.strerror or error}") from error


def _refuse_unusable(path: Path, *, resume: bool) -> None:
    """Refuses a folder that holds something other than the run to continue; changes nothing."""
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"'{path}' is a file: choose another --out")
    # A run killed before its config.json was written leaves these two, and nothing worth keeping.
    contents = set(os.listdir(path) if path.exists() else ()) - {_LOCK, _temporary_name(_CONFIG)}
    if contents and not resume:
        raise RunFolderError(
            f"'{path}' holds files already: choose another --out, or pass --resume to continue the run in it"
        )
    if contents and _CONFIG not in contents:
        raise RunFolderError(
            f"'{path}' holds files but no {_CONFIG}, so no run to resume: choose another --out"
        )


def _take_lock(path: Path) -> IO[str]:
    """Locks a run folder; closing the file, or the death of this process, frees it.

    The file itself stays: were it deleted, two processes could hold locks on two files of that name.
    """
    lock = (path / _LOCK).open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        pid = lock.read().strip() or "unknown"
        lock.close()
        raise RunFolderError(
            f"'{path}' is being written by another process (pid {pid}): wait for it, or choose another --out"
        ) from None
    except OSError:
        lock.close()
        raise
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


# config.json: what was run, and with which versions.


class _Absent:
    """Stands for the value of a field that a configuration does not have."""

    def __repr__(self) -> str:
        return "absent"


def _record_config(path: Path, config: dict[str, Any], may_change: Collection[str]) -> None:
    """Writes config.json; over an existing one, only if it is of the same run."""
    record = {
        "samplr": __version__,
        "versions": {
            "python": platform.python_version(),
            "jax": importlib.metadata.version("jax"),
            "jaxlib": importlib.metadata.version("jaxlib"),
        },
        "config": json.loads(json.dumps(config)),  # as it will be read back, to compare: tuples are lists
    }
    if (path / _CONFIG).exists():
        before = _read_config_file(path)
        _refuse_other_run(path, before["config"], record["config"], may_change)
        _warn_of_other_versions(path, _versions(before), _versions(record))
    _write_json(path / _CONFIG, record)


def _read_config_file(path: Path) -> dict[str, Any]:
    """Reads the whole of config.json, versions and all."""
    file = path / _CONFIG
    if not file.is_file():
        raise RunFolderError(f"'{path}' is not a run folder: it has no {_CONFIG}")
    try:
        record: dict[str, Any] = json.loads(file.read_bytes())
        readable = isinstance(record["config"], dict) and isinstance(_versions(record), dict)
    except (ValueError, KeyError, TypeError):
        readable = False
    if not readable:
        raise RunFolderError(f"'{file}' is not as samplr wrote it: restore it, or choose another folder")
    return record


def _versions(record: dict[str, Any]) -> dict[str, str]:
    return {"samplr": record["samplr"], **record["versions"]}


def _refuse_other_run(
    path: Path, before: dict[str, Any], now: dict[str, Any], may_change: Collection[str]
) -> None:
    fixed_before, fixed_now = (
        {key: value for key, value in config.items() if key not in may_change} for config in (before, now)
    )
    difference = _first_difference(fixed_before, fixed_now)
    if difference:
        field, value_before, value_now = difference
        raise RunFolderError(
            f"'{path}' holds a run with another configuration: {field} is {value_before!r} there and "
            f"{value_now!r} here; resume it as it was, or choose another --out"
        )


def _first_difference(before: Any, now: Any, field: str = "") -> tuple[str, Any, Any] | None:
    """Finds the first field, as a dotted path, in which two configurations differ, with both values."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return None if before == now else (field, before, now)
    for key in now | before:
        inner = f"{field}.{key}" if field else key
        difference = _first_difference(before.get(key, _Absent()), now.get(key, _Absent()), inner)
        if difference:
            return difference
    return None


def _warn_of_other_versions(path: Path, before: dict[str, str], now: dict[str, str]) -> None:
    changed = [f"{name} {before.get(name)} -> {now[name]}" for name in now if before.get(name) != now[name]]
    if changed:
        _warn(
            f"'{path}' is resumed under other versions ({', '.join(changed)}): "
            "the result may differ in the last bits"
        )


def _warn(message: str) -> None:
    warnings.warn(message, SamplrWarning, stacklevel=2)


# Metrics and TensorBoard events.


def _as_json(value: Any) -> Any:
    """Replaces arrays by lists, and what is not a finite number by None, which JSON has a word for."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: _as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _as_line(row: Row) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def _read_rows(path: Path) -> list[Row]:
    """Reads metrics.jsonl; damaged lines (a disk's work, not a kill's) are left out, with a warning."""
    if not (path / _METRICS).exists():
        return []
    # What follows the last line's end is nothing, or a row that was being written.
    *lines, _ = (path / _METRICS).read_bytes().split(b"\n")
    rows = [row for line in lines if (row := _parse_row(line)) is not None]
    if len(rows) < len(lines):
        _warn(
            f"{len(lines) - len(rows)} of {len(lines)} lines of '{path / _METRICS}' are damaged and left out"
        )
    return rows


def _parse_row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not all(isinstance(row.get(key), int) for key in ("update", "steps")):
        return None
    return row


def _numbers_by_run(row: Row) -> dict[int, dict[str, float]]:
    """Sorts the numbers of a row by the run they belong to; those of the whole batch count as run 0's."""
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
        """Deletes all events, and writes those of `rows`."""
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


# The stages of a save, in order. A process may die before, in or after any of them.


def _sync_metrics(path: Path) -> None:
    """Puts the rows that the checkpoint covers on the disk before it: nobody would log them again."""
    if (path / _METRICS).exists():
        _sync(path / _METRICS)


def _make_temporary(final: Path) -> Path:
    temporary = final.with_suffix(_TEMPORARY)
    if temporary.exists():  # of a save that failed in this process
        shutil.rmtree(temporary)
    temporary.mkdir()
    return temporary


def _write_arrays(folder: Path, arrays: Arrays) -> None:
    """Writes the arrays with Orbax, under their numbers in an index of names.

    That way any string can be a name. Orbax refuses arrays without elements: the index says all about them.
    """
    import orbax.checkpoint as ocp

    leaves = [np.asarray(array) for array in arrays.values()]
    index = [
        {"name": name, "dtype": leaf.dtype.name, "shape": leaf.shape}
        for name, leaf in zip(arrays, leaves, strict=True)
    ]
    _write_json(folder / _INDEX, index)
    stored = {str(number): leaf for number, leaf in enumerate(leaves) if leaf.size}
    if stored:
        with _orbax_os_errors(), ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save((folder / _ARRAYS).absolute(), stored)
            checkpointer.wait_until_finished()


@contextlib.contextmanager
def _orbax_os_errors() -> Iterator[None]:
    """Raises what the operating system refused as an OSError; Orbax has it as text in a ValueError."""
    try:
        yield
    except ValueError as error:
        quoted = re.search(r"os_error_code='(\d+)'", str(error))
        if quoted is None:
            raise
        raise OSError(int(quoted[1]), os.strerror(int(quoted[1]))) from error


def _write_manifest(folder: Path, update: int) -> None:
    """Puts all files of a checkpoint on the disk, and writes down what they must be to be trusted."""
    entries = sorted(folder.rglob("*"))
    for entry in entries:
        _sync(entry)
    files = {file.relative_to(folder).as_posix(): _fingerprint(file) for file in entries if file.is_file()}
    _write_json(folder / _MANIFEST, {"update": update, "files": files})


def _discard_summary(path: Path) -> None:
    """Deletes the summary of a run that was done and goes on: it must not speak for a newer checkpoint."""
    (path / _SUMMARY).unlink(missing_ok=True)


def _publish(temporary: Path, final: Path) -> None:
    """Gives a checkpoint its final name, which is the moment it comes into being."""
    if final.exists():
        _move_away(final, _REPLACED)
    os.rename(temporary, final)
    _sync(final.parent)


def _delete_old_checkpoints(checkpoints: Path) -> None:
    """Deletes all but the newest checkpoints, and those set aside."""
    aside = [folder for suffix in (_REPLACED, _DAMAGED) for folder in checkpoints.glob(f"*{suffix}")]
    for folder in [*_checkpoint_folders(checkpoints)[:-_CHECKPOINTS_KEPT], *aside]:
        # Under its final name, a folder that is half deleted would look like a damaged checkpoint.
        shutil.rmtree(_move_away(folder, _TEMPORARY))


# Finding and loading checkpoints.


def _checkpoint_folders(checkpoints: Path) -> list[Path]:
    """Lists the checkpoints, whole or not, the oldest first."""
    if not checkpoints.exists():
        return []
    folders = [folder for folder in checkpoints.iterdir() if re.fullmatch(r"\d{9,}", folder.name)]
    return sorted(folders, key=lambda folder: int(folder.name))


def _clear_leftovers(checkpoints: Path) -> None:
    """Brings a folder to order in which a process was killed during a save."""
    for folder in checkpoints.glob(f"*{_REPLACED}"):
        # The kill came between the two renames of a replacement: the old checkpoint still stands.
        if not folder.with_suffix("").exists():
            os.rename(folder, folder.with_suffix(""))
        else:
            shutil.rmtree(folder)
    for folder in checkpoints.glob(f"*{_TEMPORARY}"):
        shutil.rmtree(folder)


def _newest_whole(path: Path) -> tuple[Path | None, list[Path]]:
    """Finds the newest whole checkpoint (None if there are none at all) and the damaged ones after it."""
    folders = _checkpoint_folders(path / _CHECKPOINTS)
    damage: dict[Path, str] = {}
    for folder in reversed(folders):
        problem = _problem(folder)
        if problem is None:
            for damaged, what in damage.items():
                _warn(f"checkpoint '{damaged}' is damaged ({what}): '{folder.name}', before it, is used")
            return folder, list(damage)
        damage[folder] = problem
    if folders:
        raise RunFolderError(
            f"none of the checkpoints in '{path}' is whole (the newest: {damage[folders[-1]]}): "
            "restore one, or start again with another --out"
        )
    return None, []


def _problem(folder: Path) -> str | None:
    """Says in what a checkpoint differs from its manifest, or None if it is whole."""
    if not (folder / _MANIFEST).is_file():
        return f"{_MANIFEST} is missing"
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        if manifest["update"] != int(folder.name):
            return f"{_MANIFEST} is of another update"
        for name, fingerprint in manifest["files"].items():
            if not (folder / name).is_file():
                return f"{name} is missing"
            if _fingerprint(folder / name) != fingerprint:
                return f"{name} has changed"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{_MANIFEST} is garbled"
    return None


def _load(folder: Path) -> Checkpoint:
    """Loads a checkpoint that is whole."""
    import orbax.checkpoint as ocp

    index = json.loads((folder / _INDEX).read_bytes())
    # Templates, so that Orbax gives NumPy arrays of these types; one without elements is final already.
    leaves = {str(number): np.empty(leaf["shape"], leaf["dtype"]) for number, leaf in enumerate(index)}
    stored = {number: leaf for number, leaf in leaves.items() if leaf.size}
    if stored:
        with ocp.StandardCheckpointer() as checkpointer:
            leaves |= checkpointer.restore((folder / _ARRAYS).absolute(), stored)
    arrays = {leaf["name"]: leaves[str(number)] for number, leaf in enumerate(index)}
    return Checkpoint(int(folder.name), arrays)


# Files that are whole or not there.


def _temporary_name(name: str) -> str:
    return f".{name}{_TEMPORARY}"


def _write_atomically(file: Path, text: str) -> None:
    temporary = file.with_name(_temporary_name(file.name))
    with temporary.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, file)
    _sync(file.parent)


def _write_json(file: Path, value: Any) -> None:
    _write_atomically(file, json.dumps(value, indent=2) + "\n")


def _sync(path: Path) -> None:
    """Waits until a file's contents, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"size": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def _move_away(folder: Path, suffix: str) -> Path:
    """Gives a checkpoint's folder a name under which it is not taken for one."""
    target = folder.with_suffix(suffix)
    if target.exists():
        shutil.rmtree(target)
    os.rename(folder, target)
    return target
