"""Run folders: what is written can be read, whatever happens to the process or to the disk in between."""

import contextlib
import inspect
import json
import os
import pickle
import platform
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from samplr import store
from samplr.errors import RunFolderError, SamplrWarning
from samplr.store import Arrays, RunFolder, read_checkpoint, read_config, read_metrics

CONFIG = {"env": "icy_road", "steps": 1000, "student": {"learning_rate": 1e-3, "sizes": [32, 32]}}
DTYPES = [np.float32, np.float64, np.int8, np.int32, np.uint32, np.bool_, ml_dtypes.bfloat16]


class Killed(BaseException):
    """Stands for the death of the process: nothing in the code under test catches it."""


@contextlib.contextmanager
def killed_in(module: ModuleType, name: str, *, after: bool = False) -> Iterator[None]:
    """The process dies when it calls a function, before or after the function has done its work."""
    function = getattr(module, name)

    def dies(*args: Any, **kwargs: Any) -> None:
        if after:
            function(*args, **kwargs)
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, name, dies)
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


@pytest.fixture(scope="session")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run killed after its checkpoints at 10 and 20, when it had also logged update 25."""
    path = tmp_path_factory.mktemp("store") / "run"
    with RunFolder.open(path, CONFIG, resume=False) as folder:
        advance(folder, 10)
        advance(folder, 20)
        folder.log(row(25))
    return path


@pytest.fixture
def run(two_checkpoints: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_checkpoints, tmp_path / "run"))


# Opening.


def test_a_fresh_folder_records_what_is_run_and_with_what(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "deep" / "run", CONFIG, resume=False) as folder:
        assert folder.latest() is None
    record = json.loads((tmp_path / "deep" / "run" / "config.json").read_text())
    assert record["config"] == CONFIG == read_config(tmp_path / "deep" / "run")
    assert set(record) == {"samplr", "versions", "config"}
    assert set(record["versions"]) == {"python", "jax", "jaxlib"}
    assert record["versions"]["python"] == platform.python_version()


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
@pytest.mark.parametrize("left", [None, {}, {".lock": "7\n"}, {".lock": "", ".config.json.tmp": '{"sam'}])
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


@pytest.mark.parametrize("dies_in", ["_take_lock", "_record_config", "_clear_leftovers"])
def test_a_kill_while_a_fresh_folder_is_opened_is_harmless(tmp_path: Path, dies_in: str) -> None:
    with killed_in(store, dies_in):
        RunFolder.open(tmp_path / "run", CONFIG, resume=True)
    with RunFolder.open(tmp_path / "run", CONFIG, resume=True) as folder:
        assert folder.latest() is None
    assert read_config(tmp_path / "run") == CONFIG


def test_a_resumed_run_may_differ_only_where_it_is_allowed_to(run: Path) -> None:
    longer = {**CONFIG, "steps": 2000}
    with pytest.raises(RunFolderError, match="steps is 1000 there and 2000 here"):
        RunFolder.open(run, longer, resume=True)
    assert read_config(run) == CONFIG
    with RunFolder.open(run, longer, resume=True, may_change=["steps"]):
        pass
    assert read_config(run) == longer


@pytest.mark.parametrize(
    ("student", "message"),
    [
        (
            {"learning_rate": 2e-3, "sizes": [32, 32]},
            r"student\.learning_rate is 0\.001 there and 0\.002 here",
        ),
        (
            {"learning_rate": 1e-3, "sizes": [32, 64]},
            r"student\.sizes is \[32, 32\] there and \[32, 64\] here",
        ),
        ({"learning_rate": 1e-3}, r"student\.sizes is \[32, 32\] there and absent here"),
        ({**CONFIG["student"], "gamma": None}, r"student\.gamma is absent there and None here"),  # type: ignore[dict-item]
        (None, r"student is \{.*\} there and None here"),
    ],
)
def test_another_configuration_is_refused_by_the_name_of_a_field(
    run: Path, student: Any, message: str
) -> None:
    before = snapshot(run)
    with pytest.raises(RunFolderError, match=message):
        RunFolder.open(run, {**CONFIG, "student": student}, resume=True)
    del before[".lock"]  # it names the last process that held it
    assert {name: data for name, data in snapshot(run).items() if name != ".lock"} == before


def test_a_configuration_with_tuples_equals_itself_read_back(tmp_path: Path) -> None:
    for _ in range(2):
        with RunFolder.open(tmp_path, {"sizes": (32, 32), "clip": float("inf")}, resume=True):
            pass
    assert read_config(tmp_path) == {"sizes": [32, 32], "clip": float("inf")}


def test_resuming_under_other_versions_warns(run: Path) -> None:
    record = json.loads((run / "config.json").read_text())
    record["versions"]["jax"] = "0.0.1"
    (run / "config.json").write_text(json.dumps(record))
    with (
        pytest.warns(SamplrWarning, match=r"jax 0\.0\.1 -> .*may differ in the last bits") as caught,
        RunFolder.open(run, CONFIG, resume=True) as folder,
    ):
        assert folder.latest() is not None
    assert len(caught) == 1
    assert "python" not in str(caught[0].message)
    assert json.loads((run / "config.json").read_text())["versions"]["jax"] != "0.0.1"


@pytest.mark.parametrize("text", ["", "[]", '{"config": 3}', '{"config": {}}'])
def test_a_garbled_config_is_an_error(run: Path, text: str) -> None:
    (run / "config.json").write_text(text)
    with pytest.raises(RunFolderError, match="not as samplr wrote it"):
        read_config(run)
    with pytest.raises(RunFolderError, match="not as samplr wrote it"):
        RunFolder.open(run, CONFIG, resume=True)


# Who may write.


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
    with pytest.raises(RunFolderError, match="another configuration"):
        RunFolder.open(run, {}, resume=True)
    first = RunFolder.open(run, CONFIG, resume=True)
    with pytest.raises(RunFolderError, match=f"pid {os.getpid()}"):
        RunFolder.open(run, CONFIG, resume=True)
    first.close()
    first.close()
    RunFolder.open(run, CONFIG, resume=True).close()


def test_a_folder_filled_while_waiting_for_the_lock_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_lock = store._take_lock

    def other_run_comes_first(path: Path) -> Any:
        (path / "config.json").write_text("theirs")
        return take_lock(path)

    monkeypatch.setattr(store, "_take_lock", other_run_comes_first)
    with pytest.raises(RunFolderError, match="holds files already"):
        RunFolder.open(tmp_path / "run", CONFIG, resume=False)
    assert (tmp_path / "run" / "config.json").read_text() == "theirs"


def test_a_folder_that_cannot_be_created_or_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"cannot write to the run folder '.*file/run': Not a directory"):
        RunFolder.open(tmp_path / "file" / "run", CONFIG, resume=False)

    (tmp_path / "unlockable" / ".lock").mkdir(parents=True)
    with pytest.raises(
        RunFolderError, match=r"cannot write to the run folder '.*unlockable': Is a directory"
    ):
        RunFolder.open(tmp_path / "unlockable", CONFIG, resume=False)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(
        RunFolderError, match=r"cannot write to the run folder '.*forbidden': Permission denied"
    ):
        RunFolder.open(tmp_path / "forbidden", CONFIG, resume=True)
    assert not (tmp_path / "forbidden").exists()


# Metrics and events.


def test_metrics_are_valid_json_flushed_as_they_are_written(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, resume=False) as folder:
        folder.log({"update": 1, "steps": 8, "loss": float("nan"), "returns": [1.5, None, float("inf")]})
        folder.log(
            {"update": np.int32(2), "steps": 16, "loss": np.float32(0.5), "returns": np.array([1.0, np.nan])}
        )
        lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    expected = [
        {"update": 1, "steps": 8, "loss": None, "returns": [1.5, None, None]},
        {"update": 2, "steps": 16, "loss": 0.5, "returns": [1.0, None]},
    ]
    assert (
        [json.loads(line, parse_constant=pytest.fail) for line in lines] == expected == read_metrics(tmp_path)
    )


def test_events_go_to_the_run_they_belong_to(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, resume=False) as folder:
        folder.log(
            {"update": 1, "steps": 8, "loss": 0.5, "phase": "new", "return": [1.5, None, float("nan")]}
        )
        folder.log({"update": 2, "steps": 16, "loss": None, "return": [None, 2.5, 3.5]})
    assert events(tmp_path, 0) == [("loss", 8, 0.5), ("return", 8, 1.5)]
    assert events(tmp_path, 1) == [("return", 16, 2.5)]
    assert events(tmp_path, 2) == [("return", 16, 3.5)]
    assert sorted(os.listdir(tmp_path / "tensorboard")) == ["run_0", "run_1", "run_2"]


def test_a_row_that_is_being_written_is_not_read(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"update": 26, "st')
    assert read_metrics(run) == [row(10), row(20), row(25)]


def test_a_damaged_row_is_left_out_with_a_warning(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([lines[0], "\0\0", "7", *lines[1:], ""]))
    with pytest.warns(SamplrWarning, match="2 of 5 lines of .* are damaged"):
        assert read_metrics(run) == [row(10), row(20), row(25)]


def test_latest_drops_what_was_logged_after_the_checkpoint(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"update": 26, "st')
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        assert folder.latest().update == 20  # type: ignore[union-attr]
        assert read_metrics(run) == [row(10), row(20)]
        advance(folder, 25)
    assert (run / "metrics.jsonl").read_text() == "".join(
        json.dumps(row(update)) + "\n" for update in (10, 20, 25)
    )
    assert events(run, 0) == [
        (name, 100 * update, value)
        for update in (10, 20, 25)
        for name, value in [("loss", update / 4), ("return", update + 0.5)]
    ]


def test_without_a_checkpoint_a_resumed_run_starts_from_nothing(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, resume=True) as folder:
        folder.log(row(0))
    with RunFolder.open(tmp_path, CONFIG, resume=True) as folder:
        assert folder.latest() is None
        assert read_metrics(tmp_path) == []
        folder.log(row(0))
    assert read_metrics(tmp_path) == [row(0)]
    assert events(tmp_path, 0) == [("loss", 0, 0.0), ("return", 0, 0.5)]


def test_a_resumed_folder_is_not_written_before_it_is_rolled_back(run: Path) -> None:
    before = snapshot(run)
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        with pytest.raises(RuntimeError, match=r"call latest\(\) first"):
            folder.log(row(30))
        with pytest.raises(RuntimeError, match=r"call latest\(\) first"):
            folder.save(30, state(30))
    assert snapshot(run).keys() == before.keys()
    assert updates(run) == [10, 20, 25]


# Checkpoints.


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    size = int(np.prod(shape)) * dtype.itemsize
    data = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    return (data & 1 if dtype == np.bool_ else data).view(dtype).reshape(shape)


@settings(max_examples=20, deadline=None)
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
        advance(folder, 30)
        assert checkpoint_names(run) == ["000000020", "000000030"]
        advance(folder, 1_000_000_000)  # a tenth digit: no longer in alphabetical order
        assert checkpoint_names(run) == ["000000030", "1000000000"]
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


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


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


@pytest.mark.parametrize(
    "manifest", ["[]", "{}", '{"update": 20, "files": 3}', '{"update": 10, "files": {}}', "\0"]
)
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


# A process that dies in a save.


# Read off the code, so that a new stage is tested too.
STAGES = [
    name
    for name in RunFolder.save.__code__.co_names
    if inspect.isfunction(getattr(store, name, None)) and name != "_explained"
]
# Called inside the stages: the process dies in the first such call.
INNER = ["_sync", "_write_json", "_fingerprint", "_move_away"]


def test_the_stages_of_a_save_are_known() -> None:
    assert STAGES[0] == "_sync_metrics"
    assert STAGES[-2:] == ["_publish", "_delete_old_checkpoints"]
    assert len(STAGES) == 7


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("stage", STAGES + INNER)
@pytest.mark.parametrize("update", [30, 20], ids=["new", "again"])
def test_a_kill_at_any_stage_of_a_save_leaves_a_whole_checkpoint(
    run: Path, update: int, stage: str, after: bool
) -> None:
    # When a new update is saved, the first to be moved away is an old checkpoint; otherwise the one replaced.
    published = (stage, after) == ("_publish", True) or stage == "_delete_old_checkpoints"
    published |= stage == "_move_away" and update == 30
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        folder.latest()
        folder.log(row(30))
        with killed_in(store, stage, after=after):
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


def test_a_kill_in_the_only_checkpoints_replacement_keeps_it(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, resume=False) as folder:
        folder.save(0, state(1))
        with killed_in(store, "_move_away", after=True):
            folder.save(0, state(2))
    assert checkpoint_names(tmp_path) == ["000000000.replaced", "000000000.tmp"]
    with RunFolder.open(tmp_path, CONFIG, resume=True) as folder:
        assert checkpoint_names(tmp_path) == ["000000000"]
        assert_same(folder.latest().arrays, state(1))  # type: ignore[union-attr]


def test_a_save_that_failed_can_be_repeated_by_the_same_process(run: Path) -> None:
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        folder.latest()
        with killed_in(store, "_write_manifest"):
            folder.save(30, state(99))
        folder.save(30, state(30))
    assert_same(read_checkpoint(run).arrays, state(30))


def test_a_full_disk_is_one_sentence_and_costs_only_the_new_checkpoint(run: Path) -> None:
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
        assert_same(read_checkpoint(run).arrays, state(20))
        folder.save(30, {"noise": noise})
    assert_same(read_checkpoint(run).arrays, {"noise": noise})


# The end, and the readers.


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


def test_json_files_are_never_half_written(run: Path) -> None:
    with RunFolder.open(run, CONFIG, resume=True) as folder:
        folder.finish({"return": 1.0})
        with killed_in(os, "fsync"):
            folder.finish({"return": 2.0})
    assert json.loads((run / "summary.json").read_text()) == {"return": 1.0}


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
    program = "import sys, samplr.store; print(sorted({'jax', 'orbax', 'tensorboardX'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    loaded = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert loaded.stdout == b"[]\n"
