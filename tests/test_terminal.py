"""Tables on narrow terminals: nothing is cut off, and nothing is lost."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from samplr.terminal import parts_that_fit, print_table

NUMBERS = 8


def example() -> Table:
    table = Table(title="Returns", caption="mean ± standard error")
    table.add_column("method")
    table.add_column("ice")
    for column in range(NUMBERS):
        table.add_column(f"c{column}", justify="right")
    for row in ("DR", "SAMPLR"):
        table.add_row(row, "q=0", *[f"{row[0]}{column}±12" for column in range(NUMBERS)])
    return table


def printed(width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_table(example(), console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_table_that_fits_is_printed_as_it_is() -> None:
    console = Console(width=120)
    (part,) = parts_that_fit(example(), console)
    assert part.row_count == 2
    assert [column.header for column in part.columns] == [column.header for column in example().columns]


@pytest.mark.parametrize("width", [80, 60, 45, 30])
def test_nothing_is_cut_off_or_lost_on_a_narrow_terminal(width: int) -> None:
    text = printed(width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for row in "DS":
        for column in range(NUMBERS):
            assert text.count(f"{row}{column}±12") == 1
    parts = text.count("Returns")
    assert text.count("SAMPLR") == parts, "each part says what its numbers are of"
    assert text.count("mean ±") == 1


def test_parts_are_as_even_as_can_be() -> None:
    parts = parts_that_fit(example(), Console(width=60))
    assert [len(part.columns) - 2 for part in parts] == [NUMBERS // 2] * 2


def test_what_parts_cannot_mend_is_left_to_fold() -> None:
    assert len(parts_that_fit(example(), Console(width=5))) == 1
    words = Table("name", "what")
    words.add_row("icy_road", "a long description " * 10)
    assert parts_that_fit(words, Console(width=30)) == [words]
