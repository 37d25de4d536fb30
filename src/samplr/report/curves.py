"""What runs logged, as numbers to draw: curves along training, and where they end."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from samplr.evaluation import Estimate
from samplr.report.runs import Batch, Method

MOST_POINTS = 100
END = 0.1
"""The share of a training that counts as its end."""

Along = Literal["steps", "gradient_updates"]


@dataclass(frozen=True)
class Curve:
    """The mean over seeds along training, and its standard error: NaN where there is a single seed."""

    x: Float[np.ndarray, " points"]
    mean: Float[np.ndarray, " points"]
    error: Float[np.ndarray, " points"]


def figures(method: Method) -> list[str]:
    """The metrics of episodes on new levels: the return first, then the world's own."""
    rows = method.batches[0].run.metrics
    names = [name for name in (rows[-1] if rows else {}) if name.startswith("new/") and name != "new/advantage"]
    return sorted(names, key=lambda name: (name != "new/return", name))


def summaries(method: Method) -> list[str]:
    """The summaries of θ′ that the shift monitor follows."""
    rows = method.batches[0].run.metrics
    names = [name.split("/") for name in (rows[-1] if rows else {})]
    return [name[1] for name in names if name[0] == "shift" and name[-1] == "ground_truth_mean"]


def ground_truth(method: Method, summary: str) -> float:
    """The mean of a summary of θ′ under P̄."""
    return float(method.batches[0].run.metrics[-1][f"shift/{summary}/ground_truth_mean"])


def curve(method: Method, metric: str, along: Along) -> Curve:
    """A metric along training; many points are averaged to fewer."""
    logged = [(x, y) for batch in method.batches for x, y in _logged(batch, metric, along)]
    points = min(MOST_POINTS, *(len(x) for x, _ in logged))
    limit = max(x.max(initial=0.0) for x, _ in logged)
    inner = np.linspace(0, limit, points + 1)[1:-1]
    of_seeds = np.stack([_binned(x, y, inner) for x, y in logged])
    known = ~np.all(np.isnan(of_seeds), axis=0)
    of_seeds, places = of_seeds[:, known], np.stack([_binned(x, x, inner) for x, _ in logged])[:, known]
    count = np.sum(~np.isnan(of_seeds), axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the spread of one seed is NaN, as it should be
        error = np.nanstd(of_seeds, axis=0, ddof=1) / np.sqrt(count)
    return Curve(np.nanmean(places, axis=0), np.nanmean(of_seeds, axis=0), error)


def at_the_end(method: Method, metric: str) -> Estimate | None:
    """The mean over seeds of a metric at the end of training; None where no seed has told it."""
    ends = []
    for batch in method.batches:
        for _, values in _logged(batch, metric, "steps"):
            last = values[-max(1, round(END * len(values))) :]
            known = last[~np.isnan(last)] if not np.all(np.isnan(last)) else values[~np.isnan(values)][-1:]
            ends += [known.mean()] if known.size else []
    return Estimate.of(ends) if ends else None


def over_the_run(method: Method, metric: str) -> Estimate | None:
    """The mean over seeds of a figure of the whole run; None where no seed has told it."""
    told = [value for batch in method.batches for value in batch.run.summary["whole_run"].get(metric, [])]
    known = [value for value in told if value is not None]
    return Estimate.of(known) if known else None


def _logged(batch: Batch, metric: str, along: Along) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What each seed logged of a metric: where, and the values, NaN where unknown."""
    rows = batch.run.metrics
    x = np.array([row[along] for row in rows], float)
    unknown = [None] * len(batch.seeds)
    values = np.array([row.get(metric, unknown) for row in rows], float).reshape(len(rows), len(batch.seeds))
    for of_seed in values.T:
        yield x, of_seed


def _binned(x: np.ndarray, y: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """Means of y over bins of x; NaN where a bin has no known value."""
    known = ~np.isnan(y)
    place = np.searchsorted(inner, x[known], side="left")
    count = np.bincount(place, minlength=len(inner) + 1)
    total = np.bincount(place, weights=y[known], minlength=len(inner) + 1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
