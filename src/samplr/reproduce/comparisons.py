"""Claims of the paper as tests over seeds: effect size, p-value, power, and whether they hold."""

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from rich import box
from rich.table import Table

from samplr.evaluation import Estimate
from samplr.reproduce.records import Row, scores
from samplr.reproduce.studies import Basis
from samplr.statistics import SIGNIFICANCE, Alternative, Comparison, welch

Scores = Mapping[int, float]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim about a figure of two methods."""

    claim: str
    figure: str
    a: str
    b: str
    alternative: Alternative
    """What is tested of a, compared with b."""
    refuted_if_shown: bool = False
    """For a claim that something is *not* so: it stands as long as the test does not show it, which a weak test never
    does. Look at the power."""


def outcome_of(claim: Claim, a: Scores, b: Scores, basis: Basis) -> dict[str, Any] | None:
    """Test a claim over seeds; None where there are too few of them to tell."""
    if min(len(a), len(b)) < 2:
        return None
    found = welch(list(a.values()), list(b.values()), claim.alternative)
    shown = found.p_value < SIGNIFICANCE
    return {
        "claim": claim.claim,
        "figure": claim.figure,
        "basis": basis,
        "a": claim.a,
        "b": claim.b,
        "alternative": claim.alternative,
        "seeds": [len(a), len(b)],
        **_flat(found),
        "holds": shown != claim.refuted_if_shown,
    }


def tested(claims: Iterable[Claim], variants: Mapping[str, Sequence[Row]], basis: Basis) -> list[dict[str, Any]]:
    """The outcomes of claims about figures that rows hold, as far as there are rows of both sides."""
    found = [
        outcome_of(claim, scores(variants[claim.a], claim.figure), scores(variants[claim.b], claim.figure), basis)
        for claim in claims
        if claim.a in variants and claim.b in variants
    ]
    return [one for one in found if one is not None]


def _flat(found: Comparison) -> dict[str, Any]:
    return {
        "difference": found.difference.value,
        "low": found.difference.low,
        "high": found.difference.high,
        "p_value": found.p_value,
        "effect_size": found.effect_size,
        "power": found.power,
        "detectable": found.detectable,
    }


def estimate(scores: Scores) -> dict[str, Any]:
    """Mean and standard error over seeds, with the scores themselves."""
    if not scores:
        return {"mean": None, "standard_error": None, "per_seed": {}}
    found = Estimate.of(list(scores.values()))
    return {"mean": found.mean, "standard_error": found.standard_error, "per_seed": dict(scores)}


def cell(estimated: Mapping[str, Any], digits: int) -> str:
    """An estimate as a table shows it."""
    if estimated["mean"] is None:
        return "–"
    error = estimated["standard_error"]
    unknown = error is None or math.isnan(error)
    return f"{estimated['mean']:.{digits}f}" + ("" if unknown else f"±{error:.{digits}f}")


def in_percent(estimated: Mapping[str, Any]) -> dict[str, Any]:
    """An estimate of a share, for a cell."""
    numbers = {name: estimated[name] for name in ("mean", "standard_error")}
    return {name: None if number is None else 100 * number for name, number in numbers.items()}


def cell_of_orders(estimated: Mapping[str, Any]) -> str:
    """The same for figures that differ by orders of magnitude: two digits, wherever they are."""
    error = estimated["standard_error"]
    unknown = error is None or math.isnan(error)
    return f"{estimated['mean']:.2g}" + ("" if unknown else f"±{error:.1g}")


def claims_tables(results: Sequence[Mapping[str, Any]], digits: int, *, shares: Collection[str] = ()) -> list[Table]:
    """A table for each claim and figure, with a row for each test.

    **Arguments:**

    - `digits`: after the point, where the differences that a test can find do not ask for more.
    - `shares`: figures that are told in percent.
    """
    tables = {}
    for row in results:
        heading = row["claim"] + (f" ({row['setting']})" if row["setting"] else "")
        is_share = row["figure"] in shares
        unit, factor = (" in %", 100.0) if is_share else ("", 1.0)
        heading += f": {row['figure'].replace('_', ' ')}{unit}"
        if heading not in tables:
            tables[heading] = Table(title=heading, box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
            for column in ("test", "equal", "a − b", "95 %", "d", "p", "power", "finds", "holds"):
                left = column in ("test", "equal")
                justify: Literal["left", "right"] = "left" if left else "right"
                tables[heading].add_column(column, justify=justify, no_wrap=not left, overflow="fold")
        sign = {"less": "<", "greater": ">", "two-sided": "≠"}[row["alternative"]]
        difference, low, high, finds = (factor * row[name] for name in ("difference", "low", "high", "detectable"))
        shown = max(digits, _digits_for(finds) + is_share)
        tables[heading].add_row(
            f"{row['a']} {sign} {row['b']}",
            "steps" if row["basis"] == "steps" else "updates",
            f"{difference:.{shown}f}",
            f"{low:.{shown}f}…{high:.{shown}f}",
            f"{row['effect_size']:.1f}",
            f"{row['p_value']:.2f}" if row["p_value"] >= 0.01 else f"{row['p_value']:.1g}",
            f"{row['power']:.2f}",
            f"{finds:.{shown}f}",
            "yes" if row["holds"] else "NO",
        )
    for table in list(tables.values())[-1:]:
        table.caption = _WORDS_OF_TESTS
    return list(tables.values())


_WORDS_OF_TESTS = (
    "equal: steps, or gradient updates. 95 %: interval of the difference, two-sided. d: Cohen's. p: Welch's test, "
    "one-sided. power: for the difference seen. finds: the difference that is found in 80 % of cases."
)


def _digits_for(number: float) -> int:
    """How many digits after the point show one that counts."""
    return -math.floor(math.log10(number)) if 0 < number < math.inf else 0
