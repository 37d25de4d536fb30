"""Checkpoints: the stages of a save, in any of which a process may die, and the search for a whole one."""

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from samplr.errors import RunFolderError, SamplrWarning
from samplr.store import files

Arrays = dict[str, np.ndarray]
"""The whole state of a batch of runs, flattened: a path in the state -> its array."""

_CHECKPOINTS = "checkpoints"
_KEPT = 2

# Inside a checkpoint: Orbax's folder, the names of the arrays in it, and the checksums of all of that.
_ARRAYS = "arrays"
_INDEX = "index.json"
_MANIFEST = "manifest.json"

# What a checkpoint's folder is called when it is not, or no longer, a checkpoint.
_TEMPORARY = ".tmp"  # being written or deleted
_REPLACED = ".replaced"  # making way for a newer one of the same update
_DAMAGED = ".damaged"  # found not to agree with its manifest


@dataclass(frozen=True)
class Checkpoint:
    """The state of a batch of runs after `update` updates."""

    update: int
    arrays: Arrays


# Before the first save.


def has_folder(path: Path) -> bool:
    """Whether a run folder was made ready, even if no checkpoint was written yet."""
    return (path / _CHECKPOINTS).is_dir()


def prepare(path: Path) -> None:
    """Make a run folder ready for checkpoints, whatever a process that was killed during a save has left."""
    (path / _CHECKPOINTS).mkdir(exist_ok=True)
    files.sync(path)
    _clear_leftovers(path / _CHECKPOINTS)


def _clear_leftovers(checkpoints: Path) -> None:
    for folder in checkpoints.glob(f"*{_REPLACED}"):
        # The kill came between the two renames of a replacement: the old checkpoint still stands.
        if not folder.with_suffix("").exists():
            os.rename(folder, folder.with_suffix(""))
        else:
            shutil.rmtree(folder)
    for folder in checkpoints.glob(f"*{_TEMPORARY}"):
        shutil.rmtree(folder)


# The stages of a save, in order. A process may die before, in or after any of them.


def make_temporary(path: Path, update: int) -> Path:
    """Make the folder in which the checkpoint of an update is written.

    **Arguments:**

    - `path`: the run folder.
    - `update`: how many updates the state has seen.

    **Returns:** the folder, empty.
    """
    temporary = path / _CHECKPOINTS / f"{update:09d}{_TEMPORARY}"
    if temporary.exists():  # of a save that failed in this process
        shutil.rmtree(temporary)
    temporary.mkdir()
    return temporary


def write_arrays(folder: Path, arrays: Arrays) -> None:
    """Write the arrays with Orbax, under their numbers in an index of names.

    That way any string can be a name. Orbax refuses arrays without elements: the index says all about them.
    """
    import orbax.checkpoint as ocp

    leaves = [np.asarray(array) for array in arrays.values()]
    index = [
        {"name": name, "dtype": leaf.dtype.name, "shape": leaf.shape} for name, leaf in zip(arrays, leaves, strict=True)
    ]
    files.write_json(folder / _INDEX, index)
    stored = {str(number): leaf for number, leaf in enumerate(leaves) if leaf.size}
    # Where the disk becomes full under Orbax, each of its threads prints a traceback of its own.
    if sum(leaf.nbytes for leaf in leaves) > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if stored:
        with _orbax_os_errors(), ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save((folder / _ARRAYS).absolute(), stored)
            checkpointer.wait_until_finished()


@contextlib.contextmanager
def _orbax_os_errors() -> Iterator[None]:
    """Raise what the operating system refused as an OSError; Orbax has it as text in a ValueError.

    Orbax also logs such errors, with the traceback of each of its threads. They are raised all the same.
    """
    log = logging.getLogger("absl")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    except ValueError as error:
        quoted = re.search(r"os_error_code='(\d+)'", str(error))
        if quoted is None:
            raise
        raise OSError(int(quoted[1]), os.strerror(int(quoted[1]))) from error
    finally:
        log.disabled = was_disabled


def write_manifest(folder: Path, update: int) -> None:
    """Put all files of a checkpoint on the disk, and write down what they must be to be trusted."""
    entries = sorted(folder.rglob("*"))
    for entry in entries:
        files.sync(entry)
    fingerprints = {
        entry.relative_to(folder).as_posix(): files.fingerprint(entry) for entry in entries if entry.is_file()
    }
    files.write_json(folder / _MANIFEST, {"update": update, "files": fingerprints})


def publish(temporary: Path) -> None:
    """Give a checkpoint its final name, which is the moment it comes into being."""
    final = temporary.with_suffix("")
    if final.exists():
        _move_away(final, _REPLACED)
    os.rename(temporary, final)
    files.sync(final.parent)


def delete_old(path: Path) -> None:
    """Delete all but the newest checkpoints of a run folder, and those set aside."""
    checkpoints = path / _CHECKPOINTS
    aside = [folder for suffix in (_REPLACED, _DAMAGED) for folder in checkpoints.glob(f"*{suffix}")]
    for folder in [*_folders(checkpoints)[:-_KEPT], *aside]:
        # Under its final name, a folder that is half deleted would look like a damaged checkpoint.
        shutil.rmtree(_move_away(folder, _TEMPORARY))


# Finding and loading.


def newest_whole(path: Path) -> tuple[Path | None, list[Path]]:
    """Find the newest whole checkpoint of a run folder; damaged ones after it are passed over with a warning.

    **Returns:** the checkpoint's folder, or None if there are no checkpoints at all, and the damaged ones.
    """
    folders = _folders(path / _CHECKPOINTS)
    damage: dict[Path, str] = {}
    for folder in reversed(folders):
        problem = _problem(folder)
        if problem is None:
            for damaged, what in damage.items():
                warnings.warn(
                    f"checkpoint '{damaged}' is damaged ({what}): '{folder.name}', before it, is used",
                    SamplrWarning,
                    stacklevel=2,
                )
            return folder, list(damage)
        damage[folder] = problem
    if folders:
        raise RunFolderError(
            f"none of the checkpoints in '{path}' is whole (the newest: {damage[folders[-1]]}): "
            "restore one, or start again with another --out"
        )
    return None, []


def load(folder: Path) -> Checkpoint:
    """Load a checkpoint that is whole."""
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


def set_aside(damaged: Path) -> None:
    """Take a damaged checkpoint out of the way of those to come; the next save deletes it."""
    _move_away(damaged, _DAMAGED)


def _move_away(folder: Path, suffix: str) -> Path:
    """Give a checkpoint's folder a name under which it is not taken for one."""
    target = folder.with_suffix(suffix)
    if target.exists():
        shutil.rmtree(target)
    os.rename(folder, target)
    return target


def _folders(checkpoints: Path) -> list[Path]:
    """List the checkpoints, whole or not, the oldest first."""
    if not checkpoints.exists():
        return []
    folders = [folder for folder in checkpoints.iterdir() if re.fullmatch(r"\d{9,}", folder.name)]
    return sorted(folders, key=lambda folder: int(folder.name))


def _problem(folder: Path) -> str | None:
    """Say in what a checkpoint differs from its manifest, or None if it is whole."""
    if not (folder / _MANIFEST).is_file():
        return f"{_MANIFEST} is missing"
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        if manifest["update"] != int(folder.name):
            return f"{_MANIFEST} is of another update"
        for name, fingerprint in manifest["files"].items():
            if not (folder / name).is_file():
                return f"{name} is missing"
            if files.fingerprint(folder / name) != fingerprint:
                return f"{name} has changed"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{_MANIFEST} is garbled"
    return None
