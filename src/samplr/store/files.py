"""Files that are whole or not there, and what to say when the operating system refuses one."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from samplr.errors import RunFolderError


def temporary_name(name: str) -> str:
    """Name the file that is written before it is given the name `name`; no other process writes one of this name."""
    return f".{name}.{os.getpid()}.tmp"


def is_temporary(candidate: str, name: str) -> bool:
    """Whether this is what some process, perhaps long killed, wrote before giving it the name `name`."""
    return re.fullmatch(rf"\.{re.escape(name)}\.\d+\.tmp", candidate) is not None


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[BinaryIO]:
    """Write a file such that at any moment the old or the new one is there, whole, whoever else writes it."""
    temporary = file.with_name(temporary_name(file.name))
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync(file.parent)


def write_atomically(file: Path, text: str) -> None:
    """Write a text file that is whole at any moment."""
    with replacing(file) as stream:
        stream.write(text.encode())


def write_json(file: Path, value: Any) -> None:
    """Write a value as JSON, atomically."""
    write_atomically(file, json.dumps(value, indent=2) + "\n")


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process is in such a block for this folder. Nothing is left behind in it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Wait until a file's contents, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fingerprint(file: Path) -> dict[str, Any]:
    """Sum up a file by its size and its SHA-256."""
    with file.open("rb") as stream:
        return {"size": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


@contextlib.contextmanager
def explained(action: str, path: str | Path) -> Iterator[None]:
    """Turn what the operating system refuses into one sentence for the user.

    **Arguments:**

    - `action`: what is being done to the run folder, as in "cannot `action` the run folder".
    - `path`: the run folder.
    """
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"cannot {action} the run folder '{path}': {error.strerror or error}") from error
