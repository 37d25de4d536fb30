"""`samplr reproduce fruit`: what a curriculum over the right fruit does, in Stochastic Fruit Choice."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from samplr.reproduce import figures
from samplr.reproduce.comparisons import Claim, cell, claims_tables, estimate, in_percent, tested
from samplr.reproduce.exams import SuiteExam
from samplr.reproduce.folder import TRAINING
from samplr.reproduce.records import Row, scores
from samplr.reproduce.studies import BASES, Basis, Data, Report, Study, Variant, compared_at, groups

QS = (0.7, 0.5, 0.3)
"""How likely the apple is right: the paper's, and its further two."""

METHODS = {"dr": "DR", "robust_plr": "PLR⊥", "naive": "naive"}

TEST_FIGURES = ("return", "return_cvar", "solved", "rooms_solved", "ate_apple", "ate_banana", "died")


def named(method: str, q: float) -> str:
    """A method where the apple is right with probability q."""
    return f"{method}_q{q:g}"


def claims() -> list[Claim]:
    """The paper's order, naive above DR above PLR⊥, at every q."""
    return [
        Claim(f"q={q:g}: naive > DR > PLR⊥", "return", named(a, q), named(b, q), "greater")
        for q in QS
        for a, b in (("naive", "dr"), ("dr", "robust_plr"), ("naive", "robust_plr"))
    ]


def report(data: Data) -> Report:
    """The table, the tests and the figures."""
    test = data.of("ground_truth")
    results: dict[str, Any] = {"table": {}, "claims": []}
    for basis in BASES:
        chosen = _compared_by_q(basis, data, test)
        for setting, variants in groups(data, chosen).items():
            results["claims"] += [{**found, "setting": setting} for found in tested(claims(), variants, basis)]
        results["table"][basis] = _table(data, chosen)
    figures_drawn = {
        "training": figures.fruit_training(data, _of_q(data, QS[0])),
        "choices": figures.fruit_choices(data, _of_q(data, QS[0])),
        "by_q": figures.fruit_by_q(data, {q: of for q in QS if (of := _of_q(data, q))}),
    }
    tables = [_rich_table(data, basis, results["table"][basis]) for basis in BASES]
    return Report(results, tables, claims_tables(results["claims"], 2), figures_drawn)


def _of_q(data: Data, q: float) -> list[str]:
    """The variants at one q."""
    return [name for name, variant in data.variants.items() if variant.changes.get("env.q") == q]


def _compared_by_q(basis: Basis, data: Data, rows: Sequence[Row]) -> list[Row]:
    """Only methods at the same q are compared."""
    return [
        row
        for q in sorted({variant.changes.get("env.q", QS[0]) for variant in data.variants.values()}, reverse=True)
        for row in compared_at(basis, data, [row for row in rows if row["variant"] in _of_q(data, q)])
    ]


def _table(data: Data, chosen: Sequence[Row]) -> dict[str, dict[str, Any]]:
    table = {}
    for variant in data.variants:
        rows = [row for row in chosen if row["variant"] == variant]
        if not rows:
            continue
        until = rows[0]["update"]
        trained = [row for row in data.of(TRAINING) if row["variant"] == variant and row["update"] <= until]
        by_rooms = [row for row in data.of("rooms") if row["variant"] == variant and row["update"] == until]
        conditions = list(dict.fromkeys(row["condition"] for row in by_rooms))
        table[variant] = {
            "steps": rows[0]["steps"],
            "gradient_updates": rows[0]["gradient_updates"],
            **{figure: estimate(scores(rows, figure)) for figure in TEST_FIGURES},
            "apple_levels": estimate(scores(trained, "shift/apple/real_mean")),
            "solved_by_rooms": {
                name: estimate(scores([row for row in by_rooms if row["condition"] == name], "solved"))
                for name in conditions
            },
        }
    return table


def _rich_table(data: Data, basis: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    title = f"Fruit choice at equal {basis}: mean ± standard error over seeds"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    shares = ("solved", "ate_apple", "ate_banana", "apple_levels")
    for column in (
        "method",
        "updates",
        "return",
        "rooms\nsolved",
        "solved\n%",
        "apple\n%",
        "banana\n%",
        "apple\nlevels %",
    ):
        left = column == "method"
        table.add_column(column, justify="left" if left else "right", no_wrap=not left, overflow="fold")
    for variant, row in rows.items():
        numbers = [cell(row[name], 2) for name in ("return", "rooms_solved")]
        numbers += [cell(in_percent(row[name]), 1) for name in shares]
        table.add_row(data.variants[variant].title, f"{row['gradient_updates']}", *numbers)
    return table


FRUIT = Study(
    name="fruit",
    about="What a curriculum over the right fruit does to students of Stochastic Fruit Choice.",
    env="fruit_choice",
    variants={
        named(method, q): Variant(method, f"{title}, q={q:g}", {"env.q": q})
        for q in QS
        for method, title in METHODS.items()
    },
    exams=(SuiteExam("ground_truth", episodes=500), SuiteExam("rooms", episodes=100, at="ends", together=8)),
    training_figures=(
        *(
            f"{phase}/{figure}"
            for phase in ("new", "replay")
            for figure in ("return", "solved", "ate_apple", "ate_banana", "rooms", "rooms_solved")
        ),
        "shift/apple/real_mean",
    ),
    report=report,
    steps=50_000_000,
    seeds=5,
    batch=5,
    settings={
        # A student that learns in minutes; the paper's needs two hundred million steps.
        "student.encoder": "compact",
        "student.sees_actions": True,
        "student.informed_critic": True,
        "student.learning_rate": 3e-4,
        "student.entropy_coefficient": 0.005,
        "student.value_coefficient": 0.05,
        "student.clip_values": False,
        "student.minibatches": 4,
        "workers": 128,
    },
)
