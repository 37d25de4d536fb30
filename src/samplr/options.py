"""The options of a command, parsed; what is wrong with them is told in one sentence."""

import contextlib
import io
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any

import tyro

from samplr.errors import SamplrError


def parsed(options: Any, words: Sequence[str], prog: str, **settings: Any) -> Any:
    """The options that words say.

    **Arguments:**

    - `options`: the dataclass that holds them.
    - `prog`: the command, as the user types it.
    - `settings`: of `tyro.cli`.
    """
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            found = tyro.cli(options, args=words, prog=prog, **settings)
    except SystemExit as end:
        if not end.code:
            raise  # help was asked for, and given
        raise SamplrError(f"{in_a_sentence(told.getvalue())} (see {prog} --help)") from None
    sys.stderr.write(told.getvalue())
    return found


def in_a_sentence(box: str) -> str:
    """What tyro tells in a box of several lines: the mistake, and which options may have been meant."""
    _, *lines = [line.strip("│╰╯ ") for line in box.splitlines()]
    parts = [list(part) for is_rule, part in itertools.groupby(lines, lambda line: set(line) <= {*"─-"}) if not is_rule]
    mistake = re.sub(r"\.? \(required\)", ";", " ".join(" ".join(parts[0]).split())).rstrip(".;")
    guesses = next((part for part in parts[1:] if part[0].startswith("Perhaps you meant")), [])
    meant = [line.split()[0] for line in guesses if line.startswith("--")]
    perhaps = f"; perhaps you meant {' or '.join(meant)}" if meant else ""
    return mistake[:1].lower() + mistake[1:] + perhaps
