"""Runs for the tests of run folders: what is put in, what is there, and how a process dies."""

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from samplr.store import Arrays, RunFolder, read_metrics

CONFIG = {"env": "icy_road", "steps": 1000, "student": {"learning_rate": 1e-3, "sizes": [32, 32]}}


class Killed(BaseException):
    """Stands for the death of the process: nothing in the code under test catches it."""


@contextlib.contextmanager
def killed_in(owner: Any, name: str, *, after: bool = False) -> Iterator[None]:
    """The process dies when it calls `owner.name`, before or after that has done its work."""
    function = getattr(owner, name)

    def dies(*args: Any, **kwargs: Any) -> None:
        if after:
            function(*args, **kwargs)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, dies)
        with pytest.raises(Killed):
            yield


def state(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "params/dense[0].weight": rng.standard_normal((3, 4)).astype(np.float32),
        "params/dense[0].bias": rng.standard_normal(4).astype(ml_dtypes.bfloat16),
        "buffer.scores": np.array([np.nan, -np.inf, -0.0, rng.random()]),
        "buffer.empty": np.zeros((2, 0), np.int8),
        "key": rng.integers(0, 2**32, 2, dtype=np.uint32),
        "count": np.array(seed, np.int32),
        "done": np.array(True),
    }


def row(update: int) -> dict[str, Any]:
    return {"update": update, "steps": 100 * update, "loss": update / 4, "return": [update + 0.5, None]}


def assert_same(actual: Arrays, expected: Arrays) -> None:
    assert list(actual) == list(expected)
    for name, array in expected.items():
        assert isinstance(actual[name], np.ndarray), name
        assert (actual[name].dtype, actual[name].shape) == (array.dtype, array.shape), name
        assert actual[name].tobytes() == array.tobytes(), name


def advance(folder: RunFolder, update: int) -> None:
    folder.log(row(update))
    folder.save(update, state(update))


def snapshot(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def checkpoint_names(path: Path) -> list[str]:
    return sorted(os.listdir(path / "checkpoints"))


def updates(path: Path) -> list[int]:
    return [row["update"] for row in read_metrics(path)]


def events(path: Path, run: int) -> list[tuple[str, int, float]]:
    """All scalars in the event files of a run, as (tag, step, value)."""
    from tensorboardX.proto.event_pb2 import Event

    scalars = []
    for file in sorted((path / "tensorboard" / f"run_{run}").iterdir()):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            scalars += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            data = data[16 + length :]
    return scalars


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)
