"""config.json: what was run is on record, and another run is not mistaken for it."""

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from samplr.errors import RunFolderError, SamplrWarning
from samplr.store import RunFolder, read_config

from .runs import CONFIG, snapshot


def test_a_fresh_folder_records_what_is_run_and_with_what(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "deep" / "run", CONFIG, resume=False) as folder:
        assert folder.latest() is None
    record = json.loads((tmp_path / "deep" / "run" / "config.json").read_text())
    assert record["config"] == CONFIG == read_config(tmp_path / "deep" / "run")
    assert set(record) == {"samplr", "versions", "config"}
    assert set(record["versions"]) == {"python", "jax", "jaxlib"}
    assert record["versions"]["python"] == platform.python_version()


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
def test_another_configuration_is_refused_by_the_name_of_a_field(run: Path, student: Any, message: str) -> None:
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
