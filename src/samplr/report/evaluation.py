"""What `samplr eval` prints."""

import math
from collections.abc import Mapping

from rich import box
from rich.table import Table

from samplr.evaluation import Condition
from samplr.statistics import Interval
from samplr.transfer import Transferred


def evaluation_table(title: str, conditions: Mapping[str, Condition]) -> Table:
    """One row for each condition of a suite, one column for each figure; or, of a single condition, a row for each."""
    table = Table(title=title, min_width=len(title), box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    (first, outcome), *others = conditions.items()
    names = list(outcome.figures)
    if not others:
        table.add_column("figure")
        table.add_column(first, justify="right")
        for name in names:
            table.add_row(name, str(outcome.estimate(name)))
        return table
    table.add_column("condition", overflow="fold")
    for name in names:
        # A word on each line, so that eight figures are readable side by side on a narrow terminal.
        table.add_column(name.replace("_", "\n"), justify="right", overflow="fold")
    for condition, outcome in conditions.items():
        table.add_row(condition, *[str(outcome.estimate(name)) for name in names])
    return table


def transfer_table(title: str, backend: str, conditions: Mapping[str, Transferred]) -> Table:
    """One row for each figure of a condition: in our world, in the real simulator, and what is kept of it."""
    table = Table(title=title)
    for name in ("condition", "figure"):
        table.add_column(name)
    for name in ("ours", backend, "kept (95 % interval)"):
        table.add_column(name, justify="right")
    for condition, outcome in conditions.items():
        for figure in outcome.ours.figures:
            both = [str(side.estimate(figure)) for side in (outcome.ours, outcome.real)]
            table.add_row(condition, figure, *both, _share(outcome.kept(figure)))
        table.add_section()
    return table


def _share(kept: Interval) -> str:
    if math.isnan(kept.value):
        return ""
    return f"{kept.value:.1%}" + ("" if math.isnan(kept.low) else f" ({kept.low:.1%} … {kept.high:.1%})")
