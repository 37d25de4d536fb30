"""`samplr reproduce controlled`: black ice with one change at a time, to find out what Table 1 depends on.

Two questions. Under which change is SAMPLR ahead of PLR⊥? And what do fictitious transitions make of a shift that is
large and known: of a teacher who presents three icy tiles in ten, whatever happens?
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from samplr.reproduce import figures
from samplr.reproduce.comparisons import Claim, cell, claims_tables, estimate, tested
from samplr.reproduce.exams import SuiteExam
from samplr.reproduce.records import Row, scores
from samplr.reproduce.studies import Data, Report, Study, Variant, groups

CONDITIONS = ("ground_truth", "q=0", "q=0.3", "q=0.4", "q=0.6")
"""New random tracks with ice as P̄ has it, and at fixed rates."""

ICY = ("q=0.4", "q=0.6")
"""Where a driver is tested that was trained on much ice."""

RATES = ("q=0", "q=0.2", "q=0.4", "q=0.6", "q=0.8")
"""Those that figures are drawn by."""

METHODS = {"robust_plr": "PLR⊥", "samplr": "SAMPLR"}

ABOVE, BETTER = "SAMPLR is above PLR⊥", "the change does SAMPLR good"

LINEAGES_ENDS = {
    "env.rules.limit_truncates": False,
    "env.rules.end_bonus": 100.0,
    "env.rules.out_of_bounds_reward": -100.0,
}
"""How episodes end in the code that the paper's grew from: with 100 points for whoever does not stand idle, which make
up for the price of leaving the playfield, and without a value of what comes after the limit of frames."""

LINEAGE = {
    **LINEAGES_ENDS,
    "student.learning_rate": 3e-4,
    "student.epochs": 8,
    "student.value_coefficient": 0.5,
    "student.encoder": "lineage",
    "student.policy_gain": 2**0.5,
    "env.camera": "motion",
    "env.frame_stack": 4,
}
"""The student of the code that the paper's grew from, and its episodes, in all that can be set here."""

CHANGES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "": ("as in the paper", {}),
    "rate": ("learning rate 3e-4", {"student.learning_rate": 3e-4}),
    "epochs": ("eight epochs", {"student.epochs": 8}),
    "evidence": ("told the evidence", {"env.show_evidence": True}),
    "camera": ("the lineage's camera", {"env.camera": "motion"}),
    "frames": ("four frames", {"env.frame_stack": 4}),
    "kernels": ("the lineage's kernels", {"student.encoder": "lineage"}),
    "lambda": ("λ = 0.95", {"student.gae_lambda": 0.95}),
    "l1": ("score: L1 value loss", {"replay.score": "l1_value_loss"}),
    "fill": ("replay when the buffer is full", {"replay.fill": 1.0}),
    "slipperiest": ("a wheel is as its slipperiest tile", {"env.ice_rule": "min"}),
    "segments": ("eight tiles share a draw of ice", {"env.tiles_per_draw": 8}),
    "patient": ("no early stop", {"env.rules.idle_limit": 0}),
    "gain": ("a policy that looks from the first", {"student.policy_gain": LINEAGE["student.policy_gain"]}),
    "ends": ("the lineage's ends of episodes", LINEAGES_ENDS),
    "lineage": ("the lineage's student", LINEAGE),
}
"""By name: what is changed, in words and in the configuration. The last changes all that the lineage has otherwise."""

OF_THE_WORLD = ("slipperiest", "segments")
"""Changes of the test as well: students with and without them are not judged by the same."""

OF_SAMPLR_ALONE: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "m4": ("M = 4", {"fictitious.samples": 4}),
    "matched": ("matched trace", {"fictitious.trace": "matched"}),
    "real_scores": ("scored by real transitions", {"fictitious.scores": "real"}),
    "learns_new": ("learns from new levels, too", {"teacher": "plr"}),
}

WITHOUT_A_SHIFT = {"dr": "DR", "naive": "naive"}
"""Trained under some changes, too: before SAMPLR can be ahead, these should rank as in the paper."""

WITH_ALL_METHODS = ("gain", "lineage")
"""Those changes. Under both, runs fail; which method has more such runs says much about a table of means."""

SHIFTED = {"teacher": "fixed", "presents": "fixed_rates/q=0.3"}
WIDE = {"teacher": "fixed", "presents": "fixed_rates"}

FIXED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "dr": ("P̄", {}),
    "dr_fictitious": ("P̄, fictitious", {"grounding": "fictitious"}),
    "fixed": ("q=0.3", {**SHIFTED, "grounding": "none"}),
    "fixed_fictitious": ("q=0.3, fictitious", {**SHIFTED, "grounding": "fictitious"}),
    "wide": ("every rate", {**WIDE, "grounding": "none"}),
    "wide_fictitious": ("every rate, fictitious", {**WIDE, "grounding": "fictitious"}),
}
"""Teachers without a score, who present P̄ or a shift. Their students learn at a rate of 3e-4: at the paper's, 3 of 10
runs on three icy tiles in ten had learned nothing after 2M steps."""


def named(method: str, change: str) -> str:
    """A method under a change."""
    return f"{method}_{change}" if change else method


def changed(
    changes: Mapping[str, tuple[str, Mapping[str, Any]]], of_samplr_alone: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> dict[str, Variant]:
    """SAMPLR and PLR⊥ with one change each, and SAMPLR with those that PLR⊥ cannot have."""
    found = {
        named(method, change): Variant(method, f"{title}, {words}", settings)
        for change, (words, settings) in changes.items()
        for method, title in METHODS.items()
    }
    return found | {
        named("samplr", change): Variant("samplr", f"SAMPLR, {words}", settings)
        for change, (words, settings) in of_samplr_alone.items()
    }


def variants() -> dict[str, Variant]:
    """All that can be trained."""
    found = {**changed(CHANGES, OF_SAMPLR_ALONE), **without_a_shift(CHANGES)}
    for evidence, told in {"": {}, "evidence": CHANGES["evidence"][1]}.items():
        for name, (words, settings) in FIXED.items():
            title = f"teacher of {words}, {CHANGES['rate'][0]}" + (", told the evidence" if evidence else "")
            found[named(name, evidence)] = Variant("dr", title, {**settings, **told, **CHANGES["rate"][1]})
    return found


def without_a_shift(changes: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[str, Variant]:
    """The methods that shift nothing, under the changes that all methods are trained with."""
    return {
        named(method, change): Variant(method, f"{title}, {changes[change][0]}", changes[change][1])
        for change in WITH_ALL_METHODS
        for method, title in WITHOUT_A_SHIFT.items()
    }


def claims() -> list[Claim]:
    """What is asked of the changes."""
    found = claims_of_changes(CHANGES, OF_SAMPLR_ALONE, CONDITIONS) + claims_of_ranks(CHANGES, CONDITIONS)
    return found + claims_of_fixed_teachers(CONDITIONS[0], ICY)


def claims_of_ranks(changes: Mapping[str, tuple[str, Mapping[str, Any]]], figures: Sequence[str]) -> list[Claim]:
    """Whether methods rank as the paper says under the changes that all are trained with, of some figures."""
    found = []
    for change in WITH_ALL_METHODS:
        dr, naive, robust_plr, samplr = (named(method, change) for method in (*WITHOUT_A_SHIFT, *METHODS))
        words = f"ranked as in the paper, {changes[change][0]}"
        found += [
            Claim(words, figure, a, b, "greater")
            for a, b in ((naive, dr), (naive, robust_plr), (samplr, dr), (samplr, naive))
            for figure in figures
        ]
    return found


def claims_of_changes(changes: Iterable[str], of_samplr_alone: Iterable[str], figures: Sequence[str]) -> list[Claim]:
    """What is asked of each change, of some figures; the change without a name is none."""
    both, alone = tuple(changes), tuple(of_samplr_alone)
    pairs = [(change, change) for change in both] + [(change, "") for change in alone]
    found = [
        Claim(ABOVE, figure, named("samplr", change), named("robust_plr", same), "greater")
        for change, same in pairs
        for figure in figures
    ]
    return found + [
        Claim(BETTER, figure, named("samplr", change), "samplr", "greater")
        for change, _ in pairs
        if change and change not in OF_THE_WORLD
        for figure in figures
    ]


def gaps_by_change(
    tested: Iterable[Mapping[str, Any]],
    changes: Mapping[str, tuple[str, Mapping[str, Any]]],
    drawn: Collection[str],
) -> list[dict[str, Any]]:
    """Of tested claims, by how much SAMPLR is above PLR⊥ under each change, and the change in words.

    What a user has set besides is left out: it would be drawn over the study's own. So are changes that have a figure
    of their own among those `drawn`: all methods were trained with them, and some runs failed, whose wide intervals
    would hide the others.
    """
    words = {named("samplr", change): text for change, (text, _) in changes.items() if _of_ranks(change) not in drawn}
    asked = [found for found in tested if found["claim"] == ABOVE and found["a"] in words and not found["setting"]]
    return [{**found, "title": words[found["a"]]} for found in asked]


def ranks(data: Data, rows: Sequence[Row], changes: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[str, Figure]:
    """A figure for each change under which methods that shift nothing were trained, too.

    **Arguments:**

    - `rows`: have a return under the name of each rate of ice.
    """
    drawn, played = {}, {row["variant"] for row in rows}
    for change in WITH_ALL_METHODS:
        of, alone = ({named(method, change) for method in methods} for methods in (WITHOUT_A_SHIFT, METHODS))
        if played & of:
            drawn[_of_ranks(change)] = figures.ranks(untitled(data.only(of | alone), changes[change][0]), rows, RATES)
    return drawn


def _of_ranks(change: str) -> str:
    """What the figure of all methods under a change is called."""
    return f"ranks_{change}"


def untitled(data: Data, words: str) -> Data:
    """Variants without these words in their titles, for what is drawn says them once."""
    plain = {n: dataclasses.replace(v, title=v.title.replace(f", {words}", "")) for n, v in data.variants.items()}
    return Data(plain, data.rows)


def claims_of_fixed_teachers(ground_truth: str, icy: Sequence[str]) -> list[Claim]:
    """What is asked of teachers without a score: of a figure that students have under P̄, and of those on ice."""
    found = []
    for evidence in ("", "evidence"):
        for shift in ("fixed", "wide"):
            shifted, grounded = named(shift, evidence), named(f"{shift}_fictitious", evidence)
            found.append(Claim("fictitious transitions undo a shift", ground_truth, grounded, shifted, "greater"))
            found += [Claim("and make better drivers on ice", rate, grounded, shifted, "greater") for rate in icy]
        dr, grounded = named("dr", evidence), named("dr_fictitious", evidence)
        found.append(Claim("and do no harm without one", ground_truth, grounded, dr, "less", refuted_if_shown=True))
    return found


def report(data: Data) -> Report:
    """The table, the tests and the figures, at equal steps: who learns from new levels has learned twice as often."""
    rows = _by_condition([*data.of("ground_truth"), *data.of("fixed_rates")])
    results: dict[str, Any] = {"table": {}, "claims": []}
    for setting, of in groups(data, rows).items():
        results["claims"] += [{**found, "setting": setting} for found in tested(claims(), of, "steps")]
    for name in data.variants:
        mine = [row for row in rows if row["variant"] == name]
        if mine:
            results["table"][name] = {condition: estimate(scores(mine, condition)) for condition in CONDITIONS}
    drawn = ranks(data, rows, CHANGES)
    if gaps := gaps_by_change(results["claims"], {**CHANGES, **OF_SAMPLR_ALONE}, drawn):
        drawn["gaps"] = figures.gaps(gaps, CONDITIONS)
    return Report(results, [_rich_table(data, results["table"])], claims_tables(results["claims"], 0), drawn)


def _by_condition(rows: Sequence[Row]) -> list[Row]:
    """Rows that have their return under the name of the condition."""
    return [{"variant": row["variant"], "seed": row["seed"], row["condition"]: row["return"]} for row in rows]


def _rich_table(data: Data, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(title="Return on new tracks: mean ± standard error over seeds", box=box.SIMPLE_HEAD)
    table.add_column("")
    for condition in CONDITIONS:
        table.add_column("P̄" if condition == CONDITIONS[0] else condition, justify="right", no_wrap=True)
    for name, row in rows.items():
        table.add_row(data.variants[name].title, *[cell(row[condition], 0) for condition in CONDITIONS])
    return table


CONTROLLED = Study(
    name="controlled",
    about="What Table 1 depends on: SAMPLR and PLR⊥ with one change at a time, and teachers of a fixed shift.",
    env="black_ice",
    variants=variants(),
    exams=(
        SuiteExam("ground_truth", episodes=500, at="last"),
        SuiteExam("fixed_rates", episodes=100, at="last", together=7),
    ),
    training_figures=("new/return", "replay/return", "shift/ice/real_mean", "shift/ice/met_mean"),
    report=report,
    steps=2_000_000,
    seeds=5,
    batch=5,
)
