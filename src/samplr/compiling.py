"""`jax.jit` with the compiler's effort matched to the program."""

from collections.abc import Callable
from typing import Any

import jax


def jit(function: Callable[..., Any], *, runs_once: bool = False, pictures: bool = False, **options: Any) -> Any:
    """Compile a top-level function.

    On a CPU, LLVM's level 1 compiles a third faster than its default and most of these programs run as fast; a program
    that runs but once, such as an initialisation, is better off unoptimised. XLA's older way to make CPU code saves
    another third. Later versions may not have it, and would refuse the option. Only where pictures are drawn and looked
    at are all of the compiler's efforts worth their time.

    **Arguments:**

    - `runs_once`: whether compiling matters more than running.
    - `pictures`: whether most of its work is on pictures: compiled in twice the time, it runs a quarter faster.
    - `options`: as for `jax.jit`.
    """
    if jax.default_backend() == "cpu" and (runs_once or not pictures):
        effort: dict[str, Any] = {"xla_backend_optimization_level": 0 if runs_once else 1}
        if jax.__version_info__ < (0, 11):
            effort["xla_cpu_use_fusion_emitters"] = False
        options["compiler_options"] = effort
    return jax.jit(function, **options)
