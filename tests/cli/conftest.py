"""A finished run, a user's own worlds, and what every refusal looks like."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tiny import Said, command, sharing_programs, words

from .worlds import importable_worlds


@pytest.fixture(autouse=True)
def _shared_programs() -> Iterator[None]:
    with sharing_programs():
        yield


@pytest.fixture(scope="session")
def training(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    """A finished run, not to be changed, and what the command said."""
    path = tmp_path_factory.mktemp("cli") / "run"
    with sharing_programs():
        return path, command("train", "icy_road", *words(), "--out", path)


@pytest.fixture(scope="session")
def trained(training: tuple[Path, Said]) -> Path:
    return training[0]


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """The same, for a test to change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with importable_worlds(tmp_path_factory.mktemp("worlds")) as name:
        yield name


def json_file(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data))
    return path


def assert_refused(said: Said, *parts: str) -> None:
    """One sentence for the user, which has these parts, and nothing else."""
    assert said.status == 2
    assert said.out == ""
    assert said.err.startswith("samplr: ")
    assert said.err.count("\n") == 1
    assert said.err.endswith("\n")
    for part in parts:
        assert part in said.err
