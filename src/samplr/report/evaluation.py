"""What `samplr eval` prints."""

from collections.abc import Mapping

from rich.table import Table

from samplr.evaluation import Condition


def evaluation_table(title: str, conditions: Mapping[str, Condition]) -> Table:
    """One row for each condition of a suite, one column for each figure."""
    table = Table(title=title)
    names = list(next(iter(conditions.values())).figures)
    table.add_column("condition")
    for name in names:
        table.add_column(name, justify="right")
    for condition, outcome in conditions.items():
        table.add_row(condition, *[str(outcome.estimate(name)) for name in names])
    return table
