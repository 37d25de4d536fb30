"""Studies in a report: the tables and figures of the folders that `samplr reproduce` writes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from samplr.errors import RunFolderError
from samplr.report.media import data_uri
from samplr.reproduce.folder import WorkDone

_STUDY = "study.json"


@dataclass(frozen=True)
class Cells:
    """A table as words."""

    title: str
    caption: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Findings:
    """What a study has shown."""

    path: Path
    name: str
    about: str
    tables: list[Cells]
    figures: list[tuple[str, str]]
    """Caption and data URI of each."""
    tests: list[Cells]
    worked: Cells

    @property
    def title(self) -> str:
        """The study's name, and its folder's where that is another."""
        return self.name if self.path.name == self.name else f"{self.name}, {self.path.name}"


def find_studies(paths: Iterable[Path]) -> list[Path]:
    """The folders of studies among and within some folders, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        within = [path] if (path / _STUDY).is_file() else sorted(file.parent for file in path.rglob(_STUDY))
        for folder in within:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def read_findings(path: Path, fits: Callable[..., bool]) -> Findings:
    """Read a study's folder.

    **Arguments:**

    - `fits`: asked for every figure's data URI; one that does not fit is left out.
    """
    from samplr.reproduce import STUDIES
    from samplr.reproduce.figures import CAPTIONS
    from samplr.reproduce.folder import StudyFolder
    from samplr.reproduce.records import read_json

    told = read_json(path / _STUDY)
    name = told.get("study") if isinstance(told, dict) else None
    if name not in STUDIES:
        raise RunFolderError(f"'{path}' holds the study {name!r}, which this version of samplr does not know")
    study = STUDIES[name]
    folder = StudyFolder.open(path, study, None)
    data = folder.load()
    report = study.report(data) if any(data.rows.values()) else None
    titles = {variant: about.title for variant, about in data.variants.items()}
    worked = _worked(titles, {variant: folder.work_done(variant) for variant in titles}, folder.steps, data.diverged)
    drawn = [file for stem in CAPTIONS if (file := path / "figures" / f"{stem}.png").is_file()]
    figures = [(CAPTIONS[file.stem], data_uri("image/png", file.read_bytes())) for file in drawn]
    return Findings(
        path,
        name,
        study.about,
        tables=[_cells(table) for table in report.tables] if report else [],
        figures=[figure for figure in figures if fits(figure[1])],
        tests=[_cells(table) for table in report.tests] if report else [],
        worked=worked,
    )


def _worked(
    titles: Mapping[str, str],
    done: Mapping[str, Sequence[WorkDone]],
    steps: int,
    diverged: Mapping[str, Sequence[int]],
) -> Cells:
    """What the numbers rest on: how many seeds of each variant, on which device, and how long that took."""

    def seconds(of: Sequence[WorkDone], training: bool) -> str:
        return f"{sum(work.seconds for work in of if work.is_training == training):,.0f}"

    return Cells(
        title=f"What was trained: {steps:,} steps each",
        caption="side by side with other programs where several shared a device"
        + ("; seeds that diverged are left out of all other numbers" if diverged else ""),
        header=["", "seeds", "device", "training, s", "exams, s"],
        rows=[
            [
                titles[variant],
                f"{sum(work.seeds for work in of if work.is_training)}"
                + (f", {len(diverged[variant])} of them diverged" if variant in diverged else ""),
                ", ".join(sorted({work.device for work in of})),
                seconds(of, True),
                seconds(of, False),
            ]
            for variant, of in done.items()
            if of
        ],
    )


def _cells(table: Table) -> Cells:
    columns = [[_plain(cell) for cell in column.cells] for column in table.columns]
    return Cells(
        title=_plain(table.title),
        caption=_plain(table.caption),
        header=[_plain(column.header) for column in table.columns],
        rows=[list(row) for row in zip(*columns, strict=True)],
    )


def _plain(value: Any) -> str:
    """A cell's words without the terminal's markup."""
    if value is None:
        return ""
    return value.plain if isinstance(value, Text) else Text.from_markup(str(value)).plain
