"""Checkpoints: what is saved comes back bit for bit, or is known to be damaged."""

import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from samplr.errors import RunFolderError, SamplrWarning
from samplr.store import Arrays, RunFolder, read_checkpoint

from .runs import CONFIG, advance, assert_same, checkpoint_names, events, snapshot, state, truncate, updates

DTYPES = [np.float32, np.float64, np.int8, np.int32, np.uint32, np.bool_, ml_dtypes.bfloat16]


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    size = int(np.prod(shape)) * dtype.itemsize
    data = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    return (data & 1 if dtype == np.bool_ else data).view(dtype).reshape(shape)


@settings(max_examples=12, deadline=None)
@given(st.dictionaries(st.text(max_size=12), arrays(), max_size=5))
def test_any_arrays_come_back_bit_for_bit(saved: Arrays) -> None:
    with tempfile.TemporaryDirectory() as path:
        with RunFolder.open(path, CONFIG, resume=False) as folder:
            folder.save(7, saved)
        checkpoint = read_checkpoint(path)
    assert checkpoint.update == 7
    assert_same(checkpoint.arrays, saved)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_all_types_and_layouts_come_back_bit_for_bit(tmp_path: Path, dtype: Any) -> None:
    numbers = np.arange(6).reshape(2, 3)
    saved = {
        "": numbers.astype(dtype),
        "transposed": numbers.astype(dtype).T,
        "strided": numbers.astype(dtype)[:, ::2],
        "scalar": np.array(1, dtype),
        "empty/..": np.zeros((0, 3), dtype),
    }
    with RunFolder.open(tmp_path, CONFIG, resume=False) as folder:
        folder.save(0, saved)
    assert_same(read_checkpoint(tmp_path).arrays, saved)


def test_loading_a_checkpoint_unpickles_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in [(pickle, "load"), (pickle, "loads"), (np, "load")]:
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("unpickled"))
    assert_same(read_checkpoint(run).arrays, state(20))


def test_the_newest_two_checkpoints_are_kept(run: Path) -> None:
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        folder.latest()
        advance(folder, 999_999_998)
        assert checkpoint_names(run) == ["000000020", "999999998"]
        advance(folder, 999_999_999)
        advance(folder, 1_000_000_000)  # the newest, though not the last in alphabetical order
    assert checkpoint_names(run) == ["1000000000", "999999999"]
    assert_same(read_checkpoint(run).arrays, state(1_000_000_000))


def test_saving_an_update_again_replaces_it(run: Path) -> None:
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        folder.latest()
        folder.save(20, state(99))
    assert checkpoint_names(run) == ["000000010", "000000020"]
    assert_same(read_checkpoint(run).arrays, state(99))


def damaged_copies(checkpoint: Path, damage: Callable[[Path], None]) -> Iterator[str]:
    """Damages one file of a checkpoint after the other, and mends each again; yields their names."""
    files = [file for file in sorted(checkpoint.rglob("*")) if file.is_file()]
    assert len(files) > 5
    for file in files:
        whole = file.read_bytes()
        damage(file)
        yield file.relative_to(checkpoint).as_posix()
        file.write_bytes(whole)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [truncate, empty, flip_a_bit, Path.unlink])
def test_damage_to_any_file_is_reported_and_the_checkpoint_before_used(
    run: Path, damage: Callable[[Path], None]
) -> None:
    for name in damaged_copies(run / "checkpoints" / "000000020", damage):
        with pytest.warns(SamplrWarning, match="000000020' is damaged .*'000000010'") as caught:
            checkpoint = read_checkpoint(run)
        assert len(caught) == 1, name
        # What a manifest says of another file may be what the damage has changed.
        assert name in str(caught[0].message) or name == "manifest.json"
        assert checkpoint.update == 10, name
        assert_same(checkpoint.arrays, state(10))
    assert read_checkpoint(run).update == 20


@pytest.mark.parametrize("manifest", ["[]", "{}", '{"update": 20, "files": 3}', '{"update": 10, "files": {}}', "\0"])
def test_a_garbled_manifest_is_damage(run: Path, manifest: str) -> None:
    (run / "checkpoints" / "000000020" / "manifest.json").write_text(manifest)
    with pytest.warns(SamplrWarning, match=r"manifest\.json is"):
        assert read_checkpoint(run).update == 10


def test_a_run_resumed_before_a_damaged_checkpoint_leaves_it_behind(run: Path) -> None:
    truncate(run / "checkpoints" / "000000020" / "index.json")
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        with pytest.warns(SamplrWarning, match=r"is damaged \(index\.json has changed\)"):
            checkpoint = folder.latest()
        assert checkpoint is not None
        assert_same(checkpoint.arrays, state(10))
        assert updates(run) == [10]
        assert [step for _, step, _ in events(run, 0)] == [1000, 1000]
        advance(folder, 15)
    # Were the damaged one counted among the newest two, the whole one before it would be gone.
    assert checkpoint_names(run) == ["000000010", "000000015"]
    assert_same(read_checkpoint(run).arrays, state(15))


def test_a_damaged_checkpoint_that_was_set_aside_does_not_come_back(run: Path) -> None:
    truncate(run / "checkpoints" / "000000020" / "index.json")
    with RunFolder.open(run, CONFIG, resume=True) as folder, pytest.warns(SamplrWarning, match="is damaged"):
        folder.latest()
    # The process dies before its next save; the one after it finds the same whole checkpoint, and nothing to warn of.
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        assert_same(folder.latest().arrays, state(10))
    assert "000000020" not in checkpoint_names(run)


def test_a_run_is_not_silently_restarted_when_no_checkpoint_is_whole(run: Path) -> None:
    for name in checkpoint_names(run):
        truncate(run / "checkpoints" / name / "index.json")
    before = snapshot(run)
    with pytest.raises(RunFolderError, match=r"none of the checkpoints in .* is whole"):
        read_checkpoint(run)
    with (
        RunFolder.open(run, CONFIG, resume=True) as folder,
        pytest.raises(RunFolderError, match=r"none of the checkpoints in .* is whole"),
    ):
        folder.latest()
    assert {**snapshot(run), ".lock": b""} == {**before, ".lock": b""}
