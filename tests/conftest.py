"""Compiled programs are kept, for the other worker process and for the next run."""

import os
from pathlib import Path

# Most of the time goes into compiling small programs, many of them more than once in different processes.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
