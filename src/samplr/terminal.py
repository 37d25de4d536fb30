"""Tables on a terminal that may be narrower than they are."""

import copy
import dataclasses
import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table

_ANY_WIDTH = 100_000


def print_table(table: Table, console: Console | None = None) -> None:
    """Print a table, in parts one below the other where numbers would be cut off at the terminal's edge."""
    console = console or Console()
    for part in parts_that_fit(table, console):
        console.print(part)


def parts_that_fit(table: Table, console: Console) -> list[Table]:
    """The table, or parts of it with some of the numbers each, and what they are numbers of.

    Numbers are what stands on the right of its column.
    """
    labels = [column for column in table.columns if column.justify != "right"]
    numbers = [column for column in table.columns if column.justify == "right"]
    if _fits(table, console):
        return [table]
    for count in range(2, len(numbers) + 1):
        size = math.ceil(len(numbers) / count)
        starts = range(0, len(numbers), size)
        parts = [_with_columns(table, [*labels, *numbers[start : start + size]]) for start in starts]
        if all(_fits(part, console) for part in parts):
            for part in parts[:-1]:
                part.caption = None
            return parts
    return [table]


def _fits(table: Table, console: Console) -> bool:
    """Whether all words can be shown whole."""
    unbounded = console.options.update(max_width=_ANY_WIDTH)
    return console.measure(table, options=unbounded).minimum <= console.width


def _with_columns(table: Table, columns: Sequence[Column]) -> Table:
    part = copy.copy(table)
    # A column knows its place; the cells stay those of the whole table.
    part.columns = [dataclasses.replace(column, _index=place) for place, column in enumerate(columns)]
    return part
