"""`samplr demo`: icy road under every method, judged by the exact solution.

All methods have the same student and the same number of gradient updates. What is printed is a function of the saved
histories alone: `measure` recomputes it.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import stats

from samplr.compiling import jit
from samplr.config import Config, default_config
from samplr.envs.icy_road import IcyRoad, solution
from samplr.envs.icy_road.world import EVALUATED_RATES
from samplr.errors import RunFolderError
from samplr.run import train
from samplr.store.files import explained

LIKELY = 1e-4
"""Histories with P̄(τ) above this are counted as likely to be met."""

HISTORIES = "histories.npz"
RESULTS = "results.json"
FIGURE = "icy_road.png"


@dataclasses.dataclass(frozen=True)
class Variant:
    """A method as the demo runs it."""

    method: str
    samples: Any
    title: str


VARIANTS = {
    "dr": Variant("dr", 1, "DR"),
    "robust_plr": Variant("robust_plr", 1, "PLR⊥"),
    "naive": Variant("naive", 1, "naive"),
    "samplr": Variant("samplr", 1, "SAMPLR"),
    "samplr_exact": Variant("samplr", "exact", "SAMPLR M=∞"),
}


OWN_FILES = {HISTORIES, RESULTS, FIGURE} | {f"{name}.npz" for name in VARIANTS}
"""The last are the students themselves, as `samplr eval` and `samplr film` take them."""


class Students(eqx.Module):
    """What the students of one method do and expect at every history, and how icy their training was."""

    table: solution.HistoryTable
    """Leaves lead with the seed."""
    ice_trained: Float[Array, " seeds"]


def demo_config(name: str, seeds: int, gradient_updates: int) -> Config:
    """The configuration of one variant: the environment's defaults, equal gradient updates."""
    variant = VARIANTS[name]
    return default_config(
        "icy_road",
        variant.method,
        seeds=seeds,
        gradient_updates=gradient_updates,
        fictitious__samples=variant.samples,
    )


def train_variant(name: str, *, seeds: int, gradient_updates: int, progress: bool, out: Path | None = None) -> Students:
    """Train one variant, keep its students in a folder, and ask them for everything they would do."""
    config = demo_config(name, seeds, gradient_updates)
    run = train(config, progress=progress)
    if out is not None:
        run.save_policies(out / f"{name}.npz")
    tabulate = jit(jax.vmap(lambda network: solution.tabulate(config.env, network)), runs_once=True)
    return Students(tabulate(run.networks), jnp.asarray(run.summary["whole_run"]["shift/ice/real_mean"]))


def measure(students: Mapping[str, Students]) -> dict[str, dict[str, Any]]:
    """Judge every variant by the exact solution; lists have one number for each seed."""
    env, discount = IcyRoad(), demo_config("dr", 1, 1).student.discount
    optimum = float(solution.utility(env, solution.bayes_optimal(env))[0])
    likely = solution.history_probability(env) > LIKELY

    def judge(table: solution.HistoryTable) -> dict[str, Array]:
        regret = solution.history_regret(env, table.fast)
        at_rates = {f"return_q={q:g}": solution.return_at_rate(env, table.fast, q) for q in EVALUATED_RATES}
        return {
            "utility": solution.utility(env, table.fast)[0],
            **at_rates,
            "worst_regret": jnp.max(regret),
            "worst_regret_likely": jnp.max(jnp.where(likely, regret, -jnp.inf)),
            "value_rmse": solution.value_error(env, table, discount=discount),
        }

    judged = jit(jax.vmap(judge), runs_once=True)
    results: dict[str, dict[str, Any]] = {}
    for name, of_method in students.items():
        figures = {figure: np.asarray(values).tolist() for figure, values in judged(of_method.table).items()}
        figures["ice_trained"] = np.asarray(of_method.ice_trained).tolist()
        results[name] = {**figures, "share": float(np.mean(figures["utility"])) / optimum, "optimum": optimum}
    _compare(results)
    return results


def _compare(results: dict[str, dict[str, Any]]) -> None:
    """Add one-sided Welch tests of the two claims: grounding repairs the shift, and M=∞ lowers the worst regret."""

    def p_value(a: str, b: str, figure: str, alternative: str) -> float:
        test = stats.ttest_ind(results[a][figure], results[b][figure], equal_var=False, alternative=alternative)
        return float(test.pvalue)

    if any(len(figures["utility"]) < 2 for figures in results.values()):
        return  # a single seed says nothing about its spread
    if {"robust_plr", "samplr"} <= results.keys():
        results["robust_plr"]["p_utility_below_samplr"] = p_value("robust_plr", "samplr", "utility", "less")
    if {"samplr_exact", "samplr"} <= results.keys():
        p = p_value("samplr_exact", "samplr", "worst_regret", "less")
        results["samplr_exact"]["p_worst_regret_below_samplr"] = p


def save_histories(path: Path, students: Mapping[str, Students]) -> None:
    """Write what every student does: arrays `method/fast`, `method/value` (seed × history), `method/ice_trained`."""
    arrays: dict[str, Any] = {}
    for name, of_method in students.items():
        arrays[f"{name}/fast"] = np.asarray(of_method.table.fast)
        arrays[f"{name}/value"] = np.asarray(of_method.table.value)
        arrays[f"{name}/ice_trained"] = np.asarray(of_method.ice_trained)
    np.savez_compressed(path, **arrays)


def load_histories(path: Path) -> dict[str, Students]:
    """Read what `save_histories` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        loaded = {name: jnp.asarray(arrays[name]) for name in arrays.files}
    return {
        name: Students(
            solution.HistoryTable(loaded[f"{name}/fast"], loaded[f"{name}/value"]), loaded[f"{name}/ice_trained"]
        )
        for name in VARIANTS
        if f"{name}/fast" in loaded
    }


def run_demo(out: Path, *, seeds: int, gradient_updates: int, progress: bool) -> dict[str, dict[str, Any]]:
    """Train all variants, and write the students, what they do, the results and the figure to a folder.

    **Returns:** the results, as written to `results.json`.
    """
    from samplr import report  # it imports matplotlib, which takes a second

    if out.is_file() or (out.is_dir() and {file.name for file in out.iterdir()} - OWN_FILES):
        raise RunFolderError(f"'{out}' holds other files than the demo's: choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot make the folder '{out}': {error.strerror}") from error
    students = {
        name: train_variant(name, seeds=seeds, gradient_updates=gradient_updates, progress=progress, out=out)
        for name in VARIANTS
    }
    results = measure(students)
    titles = {name: variant.title for name, variant in VARIANTS.items()}
    figure = report.icy_road_figure({name: s.table.fast for name, s in students.items()}, results, titles)
    with explained("write to", out):
        save_histories(out / HISTORIES, students)
        (out / RESULTS).write_text(json.dumps(results, indent=1) + "\n")
        figure.savefig(out / FIGURE, dpi=160)
    return results
