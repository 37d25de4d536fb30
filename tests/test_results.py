"""What is published: `results/` follows from its numbers, and the guides say what it says."""

import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from samplr.reproduce import STUDIES, controlled, reproduce, sketch
from samplr.reproduce.figures import CAPTIONS

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = sorted(file.parent.name for file in (ROOT / "results").glob("*/study.json"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_results_follow_from_the_numbers_that_are_kept(folder: str, tmp_path: Path) -> None:
    published = ROOT / "results" / folder
    for name in ("study.json", "data"):
        source = published / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    study = STUDIES[json.loads((published / "study.json").read_text())["study"]]
    reproduce(study, tmp_path, only="report", progress=False)
    assert_close(*(json.loads((place / "results.json").read_text()) for place in (tmp_path, published)))
    drawn = {file.name for file in (tmp_path / "figures").glob("*")}
    assert drawn >= {file.name for file in (published / "figures").glob("*")}
    assert {name.removesuffix(".png") for name in drawn} <= set(CAPTIONS)


def assert_close(again: Any, published: Any) -> None:
    """The same but for rounding, which is not the same in all versions of a library."""
    if isinstance(published, dict):
        assert list(again) == list(published)
        for name in published:
            assert_close(again[name], published[name])
    elif isinstance(published, list):
        assert len(again) == len(published)
        for one, other in zip(again, published, strict=True):
            assert_close(one, other)
    elif isinstance(published, float):
        assert again == pytest.approx(published, rel=1e-6, abs=1e-9)
    else:
        assert again == published


_RATE = "-student.learning_rate-0.0003"
_TITLES = {**controlled.WITHOUT_A_SHIFT, **controlled.METHODS}

METHODS = {
    "DR": "dr",
    "PLR": "plr",
    "PLR⊥": "robust_plr",
    "naive": "naive",
    "SAMPLR": "samplr",
    "SAMPLR, M = 4": "samplr_m4",
    "SAMPLR, M = 16": "samplr_m16",
    "SAMPLR, M = ∞": "samplr_exact",
    "SAMPLR eager": "samplr_eager",
    "SAMPLR wide": "samplr_wide",
    "DR, at equal updates": "dr",
    **{f"{title}, the lineage's": f"{method}_lineage" for method, title in _TITLES.items()},
    **{f"{title}, the lineage's kernels": f"{method}_kernels{_RATE}" for method, title in _TITLES.items()},
    "DR, fictitious": "dr_fictitious",
    "naive, told": "naive_evidence",
    "DR, told": "dr_evidence",
    "DR, told, at equal updates": "dr_evidence",
    "PLR⊥, told": "robust_plr_evidence",
    "SAMPLR, told": "samplr_evidence",
    "q = 0.3": "fixed",
    "q = 0.3, fictitious": "fixed_fictitious",
    "q = 0.3, told": "fixed_evidence",
    "q = 0.3, fictitious, told": "fixed_fictitious_evidence",
    "every rate": "wide",
    "every rate, fictitious": "wide_fictitious",
    "every rate, told": "wide_evidence",
    "every rate, fictitious, told": "wide_fictitious_evidence",
}
"""What the guides call the variants of a study."""

FIGURES = {
    "q ~ Beta(1, 15)": ("table1", "Beta(1,15)", 1),
    **{f"q = {q}": ("table1", f"q={q}", 1) for q in ("0", "0.2", "0.4", "0.6", "0.8")},
    "500 new tracks": ("table1", "random_tracks", 1),
    "their worst tenth": ("table1", "random_tracks_worst", 1),
    "visited tiles with ice, in training": ("table1", "ice", 100),
    "return, P̄": ("sketch", "Beta(1,15)", 1),
    **{f"return, q = {q}": ("sketch", f"q={q}", 1) for q in ("0", "0.2", "0.4", "0.6", "0.8")},
    "worst tenth, P̄": ("sketch", "worst tenth", 1),
    "tiles with ice": ("sketch", "ice", 100),
    "lineage: P̄": ("controlled", "ground_truth", 1),
    **{f"lineage: q = {q}": ("controlled", f"q={q}", 1) for q in ("0", "0.4", "0.6")},
    "kernels: P̄": ("kernels", "ground_truth", 1),
    **{f"kernels: q = {q}": ("kernels", f"q={q}", 1) for q in ("0", "0.3", "0.4", "0.6")},
    "5M: return, P̄": ("sketch_long", "Beta(1,15)", 1),
    **{f"5M: q = {q}": ("sketch_long", f"q={q}", 1) for q in ("0", "0.2", "0.4", "0.6", "0.8")},
    "5M: worst tenth": ("sketch_long", "worst tenth", 1),
    "5M: tiles with ice": ("sketch_long", "ice", 100),
    "utility under P̄, of the optimum": ("theory", "share", 100),
    "regret under P̄": ("theory", "regret", 1),
    "worst regret at any level": ("theory", "worst_level_regret", 1),
    "worst regret at any history": ("theory", "worst_history_regret", 1),
    "ice in training": ("theory", "ice_trained", 100),
    "test return": ("fruit", "return", 1),
    "test return, 500 new levels": ("fruit", "return", 1),
    "solved": ("fruit", "solved", 100),
    "solved, of 500 new levels": ("fruit", "solved", 100),
    "… by an apple": ("fruit", "ate_apple", 100),
    "rooms solved, of 4.49": ("fruit", "rooms_solved", 1),
    "training levels with a right apple": ("fruit", "apple_levels", 100),
}
"""What the guides call a study's figures, and what these are multiplied by."""

PAGES = {"results/README.md": 52, "docs/findings.md": 339, "docs/fruit_choice.md": 15}
"""How many numbers are found in each, so that a table that is called something else is noticed."""


@dataclass(frozen=True)
class Quote:
    """A number of a study, as some table of a guide has it."""

    text: str
    figure: str
    method: str

    def __str__(self) -> str:
        return f"{self.figure} of {self.method}: {self.text}"


def tables(page: Path) -> Iterator[list[list[str]]]:
    """The rows of each table, the header's first."""
    for table in re.findall(r"(?:^ *\|.*\n)+", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        rows = [
            [cell.strip().replace("**", "") for cell in line.strip().strip("|").split("|")]
            for line in table.splitlines()
        ]
        yield [rows[0], *rows[2:]]


def quotes(page: Path) -> Iterator[Quote]:
    """All numbers of methods on a page; a table has the methods in its header, or down a column that is called so."""
    for header, *rows in tables(page):
        for label, *cells in rows:
            if cells[0] == "paper":
                continue
            for title, cell in zip(header[1:], cells, strict=True):
                figure, method = (title, label) if header[0] == "method" else (label, title)
                if figure in FIGURES and method in METHODS and cell:
                    yield Quote(cell, figure, method)


@pytest.mark.parametrize("page", PAGES)
def test_the_guides_quote_the_results(page: str) -> None:
    found = list(quotes(ROOT / page))
    assert len(found) == PAGES[page]
    wrong = [str(quote) for quote in found if not is_right(quote)]
    assert not wrong, "\n".join(wrong)


def is_right(quote: Quote) -> bool:
    """Whether mean and standard error are the published ones, rounded to as many digits as are shown."""
    study, figure, factor = FIGURES[quote.figure]
    basis = "gradient updates" if quote.method.endswith("at equal updates") else "steps"
    table = json.loads((ROOT / "results" / study / "results.json").read_text())["table"]
    table = table.get(basis, table)  # one study has no other basis than steps
    variant = METHODS[quote.method] + ("_q0.7" if study == "fruit" else "")
    numbers = re.findall(r"−?[\d.]+", quote.text.split("(")[0].replace("none", "0.0"))
    values = [table[variant][figure][name] * factor for name in ("mean", "standard_error")]
    return all(_rounds_to(value, shown) for value, shown in zip(values, numbers, strict=False))


_DR, _ROBUST, _SAMPLR = (f"{method}_evidence" for method in ("dr", "robust_plr", "samplr"))
_KERNELS = ("samplr_kernels", "robust_plr_kernels")
_LINEAGES = {method: f"{method}_lineage" for method in _TITLES}

TESTS = {
    "a: PLR⊥ is below SAMPLR under P̄": ("table1", "robust_plr", "samplr", ["Beta(1,15)"]),
    "b: SAMPLR is not below DR under P̄": ("table1", "samplr", "dr", ["Beta(1,15)"]),
    "b: SAMPLR is not below naive under P̄": ("table1", "samplr", "naive", ["Beta(1,15)"]),
    "c: SAMPLR is above DR at q = 0.4; 0.6; 0.8": ("table1", "samplr", "dr", ["q=0.4", "q=0.6", "q=0.8"]),
    "c: above PLR⊥": ("table1", "samplr", "robust_plr", ["q=0.4", "q=0.6", "q=0.8"]),
    "c: above naive": ("table1", "samplr", "naive", ["q=0.4", "q=0.6", "q=0.8"]),
    "d: SAMPLR sees more ice than DR": ("table1", "samplr", "dr", ["ice"]),
    "d: SAMPLR sees more ice than naive": ("table1", "samplr", "naive", ["ice"]),
    "d: PLR⊥ sees less ice than DR": ("table1", "robust_plr", "dr", ["ice"]),
    "d: PLR⊥ sees less ice than naive": ("table1", "robust_plr", "naive", ["ice"]),
    **{
        f"lineage{claim} under P̄": ("controlled", _LINEAGES[a], _LINEAGES[b], ["ground_truth"])
        for claim, a, b in (
            (", a: SAMPLR is above PLR⊥", "samplr", "robust_plr"),
            (": naive is above PLR⊥", "naive", "robust_plr"),
            (": SAMPLR is above DR", "samplr", "dr"),
            (": SAMPLR is above naive", "samplr", "naive"),
        )
    },
    **{
        f"lineage: SAMPLR is above {title} at q = 0.4; 0.6": (
            "controlled",
            _LINEAGES["samplr"],
            _LINEAGES[other],
            ["q=0.4", "q=0.6"],
        )
        for title, other in (("DR", "dr"), ("PLR⊥", "robust_plr"))
    },
    "kernels, a: SAMPLR is above PLR⊥ under P̄": ("kernels", *_KERNELS, ["ground_truth"]),
    "kernels: SAMPLR is above PLR⊥ at q = 0.4; 0.6": ("kernels", *_KERNELS, ["q=0.4", "q=0.6"]),
    "told, a: PLR⊥ is below SAMPLR under P̄": ("sketch_long", _ROBUST, _SAMPLR, ["Beta(1,15)"]),
    "told, b: SAMPLR is not below DR under P̄": ("sketch_long", _SAMPLR, _DR, ["Beta(1,15)"]),
    "told, c: SAMPLR is above DR at q = 0.4; 0.6; 0.8": ("sketch_long", _SAMPLR, _DR, ["q=0.4", "q=0.6", "q=0.8"]),
    "told, c: above PLR⊥": ("sketch_long", _SAMPLR, _ROBUST, ["q=0.4", "q=0.6", "q=0.8"]),
    "told, d: SAMPLR sees more ice than DR": ("sketch_long", _SAMPLR, _DR, ["ice"]),
    "told, d: PLR⊥ sees less ice than DR": ("sketch_long", _ROBUST, _DR, ["ice"]),
    "DR > PLR⊥": ("fruit", "dr_q0.7", "robust_plr_q0.7", ["return"]),
    "naive > PLR⊥": ("fruit", "naive_q0.7", "robust_plr_q0.7", ["return"]),
    "naive > DR": ("fruit", "naive_q0.7", "dr_q0.7", ["return"]),
}
"""What the guides call a comparison: of which two, by which figures."""

AT_EQUAL_UPDATES = {"sketch_long"}
"""Studies whose comparisons are told at equal gradient updates; of the others, at equal steps."""

COLUMNS = {
    "difference, 95 % interval": ("difference", "low", "high"),
    "d": ("effect_size",),
    "p": ("p_value",),
    "found with 80 % power": ("detectable",),
}

OURS = {"q = 0.4": "q=0.4", "q = 0.6": "q=0.6", "under P̄": "Beta(1,15)"}


def claims_of(study: str, a: str, b: str, figure: str, basis: str = "steps") -> dict[str, Any]:
    """The one test of this kind."""
    claims = json.loads((ROOT / "results" / study / "results.json").read_text())["claims"]
    found, *again = [c for c in claims if (c["a"], c["b"], c["figure"], c["basis"]) == (a, b, figure, basis)]
    assert all(other["p_value"] == found["p_value"] for other in again), "two claims ask this in two ways"
    return dict(found)


@pytest.mark.parametrize(("page", "rows"), [("docs/findings.md", 24), ("docs/fruit_choice.md", 3)])
def test_the_guides_quote_the_tests_of_claims(page: str, rows: int) -> None:
    wrong, checked = [], 0
    for header, *lines in tables(ROOT / page):
        for label, *cells in lines:
            if label not in TESTS:
                continue
            checked += 1
            study, a, b, figures = TESTS[label]
            basis = "gradient updates" if study in AT_EQUAL_UPDATES else "steps"
            claims = [claims_of(study, a, b, figure, basis) for figure in figures]
            factor = 100 if figures == ["ice"] else 1
            for title, cell in zip(header[1:], cells, strict=True):
                expected = [claim[name] for claim in claims for name in COLUMNS.get(title, ())]
                if title != "holds" and not _all_round_to(expected, cell, factor if title not in ("p", "d") else 1):
                    wrong.append(f"{label}, {title}: {cell}")
            assert dict(zip(header[1:], cells, strict=True))["holds"] == (
                "yes" if all(claim["holds"] for claim in claims) else "no"
            )
    assert checked == rows
    assert not wrong, "\n".join(wrong)


def test_the_guide_quotes_how_far_ours_are_past_the_paper() -> None:
    (rows,) = [rows for header, *rows in tables(ROOT / "docs/findings.md") if header[1:4] == list(OURS)]
    wrong = []
    for place, (label, *cells) in enumerate(rows):
        basis = "steps" if label in METHODS else "gradient updates"
        variant = METHODS[rows[place - place % 2][0]]
        for figure, cell in zip(OURS.values(), cells, strict=False):
            claim = claims_of("table1", variant, "samplr", figure, basis)
            expected = [claim[name] for name in ("difference", "low", "high")]
            if not _all_round_to(expected, cell.partition(", p")[0]):
                wrong.append(f"{variant} at equal {basis}, {figure}: {cell}")
    assert not wrong, "\n".join(wrong)


def test_the_guide_quotes_what_each_change_does() -> None:
    changes = {words: name for name, (words, _) in {**sketch.CHANGES, **controlled.OF_SAMPLR_ALONE}.items()}
    (rows,) = [rows for header, *rows in tables(ROOT / "docs/findings.md") if header[0] == "change"]
    claims = json.loads((ROOT / "results/sketch/results.json").read_text())["claims"]
    asked = [(claim, figure) for claim in (controlled.ABOVE, controlled.BETTER) for figure in sketch.CHANGED_AT]
    wrong = []
    for words, *cells in rows:
        for (claim, figure), cell in zip(asked, cells, strict=True):
            wanted = (claim, controlled.named("samplr", changes[words]), figure, "steps")
            tests = [c for c in claims if (c["claim"], c["a"], c["figure"], c["basis"]) == wanted]
            expected = [c[name] for c in tests for name in ("difference", "low", "high")]
            if not _all_round_to(expected, cell):
                wrong.append(f"{words}, {claim}, {figure}: {cell}")
    assert len(rows) == len({row["a"] for row in claims if row["claim"] == controlled.ABOVE})
    assert not wrong, "\n".join(wrong)


def _all_round_to(values: list[float], cell: str, factor: float = 1) -> bool:
    """Whether a cell has these numbers, in this order; one like 4·10⁻⁷ has one digit."""
    power = re.fullmatch(r"(?:(\d)·)?10⁻([⁰¹²³⁴⁵⁶⁷⁸⁹]+)", cell)
    if power:
        exponent = int(power[2].translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")))
        return math.isclose(values[0] * 10**exponent, int(power[1] or 1), abs_tol=0.5)
    shown = re.findall(r"−?\d[\d.]*", cell)
    return len(shown) == len(values) and all(_rounds_to(v * factor, s) for v, s in zip(values, shown, strict=True))


def _rounds_to(value: float, shown: str) -> bool:
    digits = len(shown.partition(".")[2])
    return math.isclose(value, float(shown.replace("−", "-")), abs_tol=0.5001 * 10**-digits)
