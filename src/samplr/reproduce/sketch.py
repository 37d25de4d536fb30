"""`samplr reproduce sketch`: Table 1's question for a driver that need not learn to see, on two CPU cores.

In the sketched world (`black_ice_sketch`) the paper's methods are trained twice: with a student that sees what the
paper's sees, and with one that is also told the evidence, as the theory asks for. Beside them stand teachers of a fixed
shift, with and without fictitious transitions, and SAMPLR and PLR⊥ with one change each.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from samplr.reproduce import controlled, figures
from samplr.reproduce.comparisons import Claim, cell, claims_tables, estimate, in_percent, tested
from samplr.reproduce.controlled import (
    FIXED,
    ICY,
    OF_SAMPLR_ALONE,
    RATES,
    changed,
    claims_of_changes,
    claims_of_fixed_teachers,
    claims_of_ranks,
    gaps_by_change,
    named,
    ranks,
    untitled,
    without_a_shift,
)
from samplr.reproduce.curricula import CurriculumExam
from samplr.reproduce.exams import SuiteExam
from samplr.reproduce.folder import TRAINING
from samplr.reproduce.records import Row, at_the_end, scores
from samplr.reproduce.studies import BASES, Data, Report, Study, Variant, compared_at, groups
from samplr.reproduce.table1 import GROUND_TRUTH, TABLE1, ice_seen
from samplr.reproduce.table1 import claims as claims_of_paper

CONDITIONS = (GROUND_TRUTH, *RATES)
"""New random tracks with ice as P̄ has it, and at fixed rates."""

WORST, ICE = "worst tenth", "ice"
"""Of the tracks under P̄, what the worst tenth returns; and the share of visited tiles with ice in training."""

PAPERS = ("dr", "robust_plr", "naive", "samplr", "plr", "samplr_m4")
"""The methods of Table 1, as that study has them."""

TOLD: Mapping[str, Mapping[str, Any]] = {"": {}, "evidence": {"env.show_evidence": True}}
"""What a student is told, by the ending of its variant's name."""

TOLD_WORDS = controlled.CHANGES["evidence"][0]

_LINEAGE = {name: value for name, value in controlled.LINEAGE.items() if name != "student.encoder"}

CHANGES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{name: change for name, change in controlled.CHANGES.items() if name != "kernels"},
    "": ("unchanged", {}),
    "rate": ("the paper's learning rate", {"student.learning_rate": 1e-4}),
    "lineage": (controlled.CHANGES["lineage"][0], _LINEAGE),
}
"""One change at a time, as in the world with pictures, without kernels. The learning rate here is 3e-4 unchanged."""

CHANGED_AT = (GROUND_TRUTH, *ICY)
"""Where changes are compared."""


def variants() -> dict[str, Variant]:
    """All that can be trained."""
    plain = {name: TABLE1.variants[name] for name in PAPERS}
    plain |= {
        name: Variant("dr", f"teacher of {words}", settings) for name, (words, settings) in FIXED.items() if settings
    }
    students = {
        named(name, told): dataclasses.replace(
            variant,
            title=variant.title + (f", {TOLD_WORDS}" if told else ""),
            changes={**variant.changes, **settings},
        )
        for told, settings in TOLD.items()
        for name, variant in plain.items()
    }
    one_change = {**changed(CHANGES, OF_SAMPLR_ALONE), **without_a_shift(CHANGES)}
    return students | {name: variant for name, variant in one_change.items() if name not in students}


def claims() -> list[Claim]:
    """The paper's, for each kind of student; what the evidence is worth; and those about fixed teachers."""
    found = [
        dataclasses.replace(
            claim,
            claim=claim.claim + (f", {TOLD_WORDS}" if told else ""),
            a=named(claim.a, told),
            b=named(claim.b, told),
        )
        for told in TOLD
        for claim in claims_of_paper()
    ]
    found += [
        Claim("to be told the evidence does good", condition, named(name, "evidence"), name, "greater")
        for name in PAPERS
        for condition in CHANGED_AT
    ]
    found += [
        Claim("M = 4 does good, told the evidence", figure, "samplr_m4_evidence", "samplr_evidence", "greater")
        for figure in CHANGED_AT
    ]
    found += claims_of_changes(CHANGES, OF_SAMPLR_ALONE, CHANGED_AT) + claims_of_ranks(CHANGES, CHANGED_AT)
    return found + claims_of_fixed_teachers(GROUND_TRUTH, ICY)


def report(data: Data) -> Report:
    """The tables, the tests and the figures."""
    played = [_by_condition(row) for row in (*data.of("ground_truth"), *data.of("fixed_rates"))]
    results: dict[str, Any] = {"table": {}, "claims": []}
    for basis in BASES:
        rows = compared_at(basis, data, played)
        rows = [*rows, *_ice(data, rows)]
        for setting, of in groups(data, rows).items():
            results["claims"] += [{**found, "setting": setting} for found in tested(claims(), of, basis)]
        results["table"][basis] = {
            name: {
                figure: estimate(scores([row for row in rows if row["variant"] == name], figure))
                for figure in (*CONDITIONS, WORST, ICE)
            }
            for name in data.variants
            if any(row["variant"] == name for row in rows)
        }
    tables = [_rich_table(data, basis, rows) for basis, rows in results["table"].items()]
    drawn = _figures(data, at_the_end(played))
    of_changes = [found for found in results["claims"] if found["basis"] == "steps"]
    if gaps := gaps_by_change(of_changes, {**CHANGES, **OF_SAMPLR_ALONE}, drawn):
        drawn["gaps"] = figures.gaps(gaps, CHANGED_AT)
    return Report(results, tables, claims_tables(results["claims"], 0, shares=[ICE]), drawn)


def _figures(data: Data, rows: Sequence[Row]) -> dict[str, Any]:
    """Those that there is something to draw for."""

    def told(ending: str, names: Iterable[str]) -> Data:
        """Variants that are told or not, by their names without it: what is drawn says it once."""
        return untitled(data.only({named(name, ending) for name in names}), TOLD_WORDS)

    def panels(names: Iterable[str]) -> dict[str, Data]:
        both = {"not told the evidence": told("", names), "told the evidence": told("evidence", names)}
        return {title: of for title, of in both.items() if of.variants}

    drawn: dict[str, Any] = {}
    for ending, suffix in {"": "", "evidence": "_told"}.items():
        if (of := told(ending, PAPERS)).variants:
            drawn |= {f"ice_seen{suffix}": figures.ice_seen(of), f"curriculum{suffix}": figures.curriculum(of)}
    if of_papers := panels(PAPERS):
        drawn["returns_by_ice"] = figures.returns_by_rate(of_papers, rows, RATES)
    of_fixed = panels(FIXED)
    if any("presents" in variant.changes for of in of_fixed.values() for variant in of.variants.values()):
        drawn["returns_by_ice_fixed_teachers"] = figures.returns_by_rate(of_fixed, rows, RATES)
    return drawn | ranks(data, rows, CHANGES)


def _by_condition(row: Row) -> Row:
    """A row that has its return under the name of its condition."""
    about = {name: row[name] for name in ("variant", "seed", "update", "steps", "gradient_updates")}
    if row["condition"] == "ground_truth":
        return {**about, GROUND_TRUTH: row["return"], WORST: row["return_cvar"]}
    return {**about, row["condition"]: row["return"]}


def _ice(data: Data, rows: Sequence[Row]) -> list[Row]:
    """How much ice each run has seen until these rows."""
    until = {row["variant"]: row["update"] for row in rows}
    found: list[Row] = []
    for name, update in until.items():
        seen = ice_seen([row for row in data.of(TRAINING) if row["variant"] == name], update)
        found += [{"variant": name, "seed": seed, ICE: share} for seed, share in seen.items()]
    return found


def _rich_table(data: Data, basis: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    title = f"Return on new tracks at equal {basis}: mean ± standard error over seeds"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("")
    for heading in ("P̄", *RATES, WORST, "ice, %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in rows.items():
        returns = [cell(row[figure], 0) for figure in (*CONDITIONS, WORST)]
        table.add_row(data.variants[name].title, *returns, cell(in_percent(row[ICE]), 1))
    return table


SKETCH = Study(
    name="sketch",
    about="Table 1's question for drivers that need not learn to see, told the evidence or not; what it depends on.",
    env="black_ice_sketch",
    variants=variants(),
    exams=(
        SuiteExam("ground_truth", episodes=500, at="ends"),
        SuiteExam("fixed_rates", episodes=100, at="ends", together=7),
        CurriculumExam(),
    ),
    training_figures=TABLE1.training_figures,
    report=report,
    steps=1_000_000,
    seeds=10,
)
