"""A folder of tiny runs, and the page that `samplr report` makes of it."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from samplr.envs.icy_road import IcyRoad
from samplr.run import Run, load, train
from tiny import Said, command, contents, sharing_programs, tiny_config

from .html import Page

ROAD = IcyRoad(segments=5)
NAME = "a <b> & 'c'"
"""A folder's name that would be trouble if it were put into a page as it is."""


@dataclass(frozen=True)
class Reported:
    """Some run folders, and what came of reporting on them."""

    folder: Path
    before: dict[str, bytes | None]
    """All that was in the folder before."""
    out: Path
    said: Said
    text: str
    page: Page
    runs: dict[str, Run]
    """By the name of their folder."""


@pytest.fixture(scope="session")
def _shared_programs() -> Iterator[None]:
    with sharing_programs():
        yield


def _pretend_more_seeds(run: Path, more: Path) -> None:
    """Seeds 2 and 3, which fared a little better than 0 and 1: training them would take as long again."""
    shutil.copytree(run, more)
    config, metrics = more / "config.json", more / "metrics.jsonl"
    config.write_text(config.read_text().replace('"first_seed": 0', '"first_seed": 2'))
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    for row in rows:
        row["new/return"] = [None if value is None else value + 0.5 for value in row["new/return"]]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory, _shared_programs: None) -> Reported:
    """DR with two seeds; SAMPLR with two and, in a folder of its own, two more."""
    root = tmp_path_factory.mktemp("report")
    folder, out = root / NAME, root / "new" / "report.html"
    for method in ("dr", "samplr"):
        train(tiny_config(ROAD, method, seeds=2), folder / method)
    _pretend_more_seeds(folder / "samplr", folder / "more")
    before = contents(folder)
    said = command("report", folder, "--out", out)
    assert said.status == 0, said.err
    text = out.read_text(encoding="utf-8")
    runs = {name: load(folder / name) for name in ("dr", "samplr", "more")}
    return Reported(folder, before, out, said, text, Page.of(text), runs)
