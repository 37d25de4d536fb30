"""What a traced program does, for tests of what it costs."""

from collections.abc import Iterator
from typing import Any

import jax


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a program, with those inside its loops and calls, once each."""
    for equation in jaxpr.eqns:
        yield equation
        for part in programs_of(equation):
            yield from equations(part)


def programs_of(equation: Any) -> list[Any]:
    """The programs of a loop or a call; nothing else has any."""
    parts = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda part: hasattr(part, "eqns"))
    return [part for part in (getattr(part, "jaxpr", part) for part in parts) if hasattr(part, "eqns")]
