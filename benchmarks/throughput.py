"""Throughput of training on icy road: `make bench`.

Agent-steps per second for each method with compile time apart, and what vmapping runs gains. Machines differ and are
noisy: the ratios, measured in one go, are what to compare.
"""

import dataclasses
import time

import jax
from rich.console import Console
from rich.table import Table

from samplr.config import METHODS, Config, default_config
from samplr.training import Training

UPDATES = 60
BATCH = 8


@dataclasses.dataclass(frozen=True)
class Measured:
    """One training program."""

    compile_seconds: float
    steps_per_second: float


def measure(config: Config, repeats: int = 3) -> Measured:
    """Compile, warm up, and take the best of a few timings (noise only ever slows down)."""
    training = Training(config)
    state = training.init()
    began = time.perf_counter()
    training.compile(state)
    compiled = time.perf_counter() - began
    state, _ = jax.block_until_ready(training.advance(state, UPDATES))
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        state, _ = jax.block_until_ready(training.advance(state, UPDATES))
        seconds.append(time.perf_counter() - began)
    return Measured(compiled, UPDATES * training.steps_per_update * config.seeds / min(seconds))


def main() -> None:
    """Measure every method alone and as a batch of runs."""
    device = jax.devices()[0]
    table = Table(title=f"icy road on {device.device_kind} ({device.platform}), agent-steps/s with learning")
    for heading in ("method", "compile", "1 run", f"{BATCH} runs", f"{BATCH} runs : 1"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    variants = {name: default_config("icy_road", name) for name in METHODS}
    variants["samplr M=∞"] = default_config("icy_road", "samplr", fictitious__samples="exact")
    for name, config in variants.items():
        alone = measure(config)
        batch = measure(dataclasses.replace(config, seeds=BATCH))
        table.add_row(
            name,
            f"{batch.compile_seconds:.1f} s",
            f"{alone.steps_per_second:,.0f}",
            f"{batch.steps_per_second:,.0f}",
            f"{batch.steps_per_second / alone.steps_per_second:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
