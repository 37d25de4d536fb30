"""A run folder with two checkpoints, for tests to copy and harm."""

import shutil
from pathlib import Path

import pytest

from samplr.store import RunFolder

from .runs import CONFIG, advance, row


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
