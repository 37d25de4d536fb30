"""Studies and the budget of bytes."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.table import Table
from rich.text import Text

from samplr import default_config, reproduce
from samplr.errors import RunFolderError
from samplr.report.contents import Contents, Room
from samplr.report.page import page
from samplr.report.studies import find_studies, read_findings
from samplr.reproduce.figures import CAPTIONS
from samplr.reproduce.folder import Batch, StudyFolder

from .html import Page


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study that found one thing, with a figure."""
    table = Table("method", "return", title="What [bold]we[/bold] found", caption="p < 0.01")
    table.add_row("DR & co", Text("1.0 ± 0.1", style="green"))

    def report(data: object) -> SimpleNamespace:
        return SimpleNamespace(tables=[table], tests=[Table("test", "p", title="Is it so?")])

    study = SimpleNamespace(
        name="tiny",
        about="What is small?",
        report=report,
        variants={"dr": None},
        exams=(SimpleNamespace(name="exam"),),
        steps=1,
        config=lambda variant, **sizes: default_config("icy_road", variant.method, **sizes),
    )
    monkeypatch.setitem(reproduce.STUDIES, "tiny", study)
    root = tmp_path / "results" / "tiny"
    (root / "data" / "dr").mkdir(parents=True)
    (root / "study.json").write_text('{"study": "tiny", "steps": 1}')
    variant = {"method": "dr", "title": "DR", "changes": {}, "base": ""}
    (root / "data" / "dr" / "variant.json").write_text(json.dumps(variant))
    made = StudyFolder(root, study, 1)
    for seeds, device, seconds in ((range(5), "abacus", 900.4), (range(5, 7), "slide rule", 200.0)):
        about = {"device": device, "seconds": seconds}
        made.write(Batch("dr", seeds), "training", [{"seed": seed, "update": 1} for seed in seeds], about)
    made.write(Batch("dr", range(5)), "exam", [{"seed": 0, "update": 1}], {"device": "abacus", "seconds": 30.0})
    (root / "figures").mkdir()
    for name in ("returns_by_ice", "a_leftover"):
        (root / "figures" / f"{name}.png").write_bytes(b"\x89PNG")
    return root


def test_a_study_is_found_and_read(folder: Path) -> None:
    assert find_studies([folder.parent, folder]) == [folder]
    findings = read_findings(folder, lambda uri: True)
    (table,), worked = findings.tables, findings.worked
    assert (table.title, table.caption) == ("What we found", "p < 0.01")
    assert (table.header, table.rows) == (["method", "return"], [["DR & co", "1.0 ± 0.1"]])
    assert worked.title == "What was trained: 1 steps each"
    assert worked.rows == [["DR", "7", "abacus, slide rule", "1,100", "30"]]
    assert findings.figures == [(CAPTIONS["returns_by_ice"], "data:image/png;base64,iVBORw==")]
    assert [tests.title for tests in findings.tests] == ["Is it so?"]
    assert findings.title == "tiny"


def test_folders_of_one_study_are_told_apart(folder: Path) -> None:
    other = folder.rename(folder.with_name("other_seeds"))
    assert read_findings(other, lambda uri: True).title == "tiny, other_seeds"


def test_a_study_is_shown(folder: Path) -> None:
    shown = Page.of(page(Contents([], [read_findings(folder, lambda uri: True)], left_out=0)))
    assert shown.table("What we found") == [["method", "return"], ["DR & co", "1.0 ± 0.1"]]
    assert shown.table("What was trained: 1 steps each")[1][:3] == ["DR", "7", "abacus, slide rule"]
    assert "What is small?" in shown.all("main")[0].text
    (image,) = shown.all("img")
    assert image.attributes["alt"] == CAPTIONS["returns_by_ice"]
    assert "Left out" not in shown.all("main")[0].text


def test_an_unknown_study_is_refused(folder: Path) -> None:
    (folder / "study.json").write_text('{"study": "vacation", "steps": 1}')
    with pytest.raises(RunFolderError, match="holds the study 'vacation', which this version of samplr does not know"):
        read_findings(folder, lambda uri: True)


def test_what_does_not_fit_is_left_out_and_that_is_told(folder: Path) -> None:
    room = Room(10)
    assert room.fits("12345", None, "123")
    findings = read_findings(folder, room.fits)
    assert findings.figures == []
    assert (room.left, room.left_out) == (2, 1)
    assert "Left out, to keep this page small: 1 galleries, films or figures." in page(
        Contents([], [findings], room.left_out)
    )
