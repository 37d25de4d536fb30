"""`jax.jit` with the compiler's effort matched to the program."""

from collections.abc import Callable
from typing import Any

import jax


def jit(function: Callable[..., Any], *, runs_once: bool = False, **options: Any) -> Any:
    """Compile a top-level function.

    On a CPU, LLVM's level 1 compiles a third faster than its default and these programs run as fast; a program that
    runs but once, such as an initialisation, is better off unoptimised.

    **Arguments:**

    - `runs_once`: whether compiling matters more than running.
    - `options`: as for `jax.jit`.
    """
    if jax.default_backend() == "cpu":
        options["compiler_options"] = {"xla_backend_optimization_level": 0 if runs_once else 1}
    return jax.jit(function, **options)
