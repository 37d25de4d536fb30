"""The shift monitor: does the curriculum change the distribution of what the agent cannot observe?

Each environment names scalar summaries of θ′. While the student learns, the monitor counts them in bins made from
ground-truth draws: of the θ′ that each worker began its rollout with (`real`), and of the θ′ that the transitions it
learned from were computed with (`met`, which under `fictitious` is drawn from the posterior).
"""

import math
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import stats
from scipy.spatial.distance import jensenshannon

from samplr.compiling import jit
from samplr.envs.api import Environment

BINS = 16
REFERENCE_DRAWS = 2**14
SIGNIFICANCE = 1e-3


class Histogram(eqx.Module):
    """Counts in bins, with the sum of the values for an exact mean."""

    counts: Float[Array, " bins"]
    total: Float[Array, ""]

    @property
    def mean(self) -> np.ndarray:
        """The mean of the values; NaN where nothing was counted."""
        size = np.asarray(self.counts).sum(-1)
        return np.where(size > 0, np.asarray(self.total) / np.maximum(size, 1), np.nan)


class ShiftCounts(eqx.Module):
    """What a run has met over some updates, by summary."""

    real: dict[str, Histogram]
    met: dict[str, Histogram]


class ShiftMonitor(eqx.Module):
    """Bins and reference counts of every summary, from draws of the ground truth."""

    edges: dict[str, Float[Array, " edges"]]
    reference: dict[str, Histogram]

    @classmethod
    def of(cls, env: Environment) -> "ShiftMonitor":
        """Sample the ground truth of an environment."""

        def draw(key: Array) -> dict[str, Array]:
            return env.summaries(env.sample_level(key=key).aleatoric)

        keys = jax.random.split(jax.random.key(0), REFERENCE_DRAWS)
        draws: dict[str, Array] = jit(jax.vmap(draw))(keys)
        edges = {name: jnp.asarray(_edges(np.asarray(values)), jnp.float32) for name, values in draws.items()}
        return cls(edges, {name: _histogram(x, edges[name]) for name, x in draws.items()})

    def count(self, real: dict[str, Float[Array, "t n"]], met: dict[str, Float[Array, "t n"]]) -> ShiftCounts:
        """What a rollout met: the real θ′ once for each worker, the met θ′ once for each step.

        A level whose episodes are short has many of them in a rollout. Counted by episodes, levels that end early would
        look as if the teacher had preferred them.
        """
        return ShiftCounts(
            {name: _histogram(x[0], self.edges[name]) for name, x in real.items()},
            {name: _histogram(x, self.edges[name]) for name, x in met.items()},
        )

    def report(self, counts: ShiftCounts) -> dict[str, Any]:
        """Means and divergences from P̄ as metrics, for a batch of runs (leaves of `counts` lead with the run)."""
        row: dict[str, Any] = {}
        for name, reference in self.reference.items():
            row[f"shift/{name}/ground_truth_mean"] = float(reference.mean)
            for kind, histogram in (("real", counts.real[name]), ("met", counts.met[name])):
                divergences = [divergence(run, np.asarray(reference.counts)) for run in np.asarray(histogram.counts)]
                row[f"shift/{name}/{kind}_mean"] = none_for_nan(histogram.mean.tolist())
                row[f"shift/{name}/{kind}_divergence"] = none_for_nan(divergences)
        return row

    def warnings(self, counts: ShiftCounts) -> list[str]:
        """A line for each summary that the curriculum shifted beyond what sampling P̄ would, in any run."""
        lines = []
        for name, reference in self.reference.items():
            real = counts.real[name]
            p = [shift_p_value(run, np.asarray(reference.counts)) for run in np.asarray(real.counts)]
            if min(p) * len(p) * len(self.reference) < SIGNIFICANCE:
                lines.append(
                    f"the curriculum shifted θ′: '{name}' averaged {np.nanmean(real.mean):.3g} in training against "
                    f"{float(reference.mean):.3g} under the ground truth, and nothing grounds the student: "
                    "see `samplr list methods` for ones that do"
                )
        return lines


def none_for_nan(values: Iterable[float]) -> list[float | None]:
    """A list for a row of metrics, where what is unknown is None."""
    return [None if math.isnan(value) else float(value) for value in values]


def divergence(counts: np.ndarray, reference: np.ndarray) -> float:
    """The Jensen–Shannon divergence of two histograms in bits: 0 if alike, 1 if disjoint, NaN if empty."""
    if not np.sum(counts):
        return float("nan")
    return float(jensenshannon(np.asarray(counts, float), np.asarray(reference, float), base=2) ** 2)


def shift_p_value(counts: np.ndarray, reference: np.ndarray) -> float:
    """The p-value of the G-test that both histograms come from one distribution."""
    table = np.stack([np.asarray(counts, float), np.asarray(reference, float)])
    table = table[:, table.sum(axis=0) > 0]
    if table[0].sum() == 0 or table.shape[1] < 2:
        return 1.0
    return float(stats.chi2_contingency(table, correction=False, lambda_="log-likelihood").pvalue)


def _edges(values: np.ndarray) -> np.ndarray:
    """Edges between the distinct values where there are few, else at quantiles."""
    distinct = np.unique(values)
    if len(distinct) <= BINS:
        return (distinct[1:] + distinct[:-1]) / 2
    return np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1]))


def _histogram(values: Array, edges: Array) -> Histogram:
    bins = jnp.sum(values[..., None] > edges, axis=-1)
    one_hot = jax.nn.one_hot(bins, len(edges) + 1)
    return Histogram(jnp.sum(one_hot.reshape(-1, len(edges) + 1), axis=0), jnp.sum(values))
