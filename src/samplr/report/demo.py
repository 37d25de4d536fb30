"""What `samplr demo` prints and draws."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from samplr.envs.icy_road import IcyRoad, solution
from samplr.envs.icy_road.world import EVALUATED_RATES
from samplr.evaluation import Estimate
from samplr.report.colours import COLOURS, GREY


def demo_table(results: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str]) -> Table:
    """One column for each method: mean and standard error over seeds."""
    optimum = next(iter(results.values()))["optimum"]
    title = f"Icy road, judged by its exact solution (Bayes optimum {optimum:.2f})"
    table = Table(title=title, caption=_findings(results), box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("mean ± s.e.", no_wrap=True)
    for name in results:
        table.add_column(titles[name], justify="right", no_wrap=True)

    def add(heading: str, figure: str, digits: int) -> None:
        table.add_row(heading, *[_estimate(figures[figure], digits) for figures in results.values()])

    add("utility under P̄", "utility", 2)
    table.add_row("… of the optimum", *[f"{figures['share']:.1%}" for figures in results.values()])
    for q in EVALUATED_RATES:
        add(f"return at q={q:g}", f"return_q={q:g}", 1)
    add("worst regret", "worst_regret", 2)
    add("… P̄(τ) > 10⁻⁴", "worst_regret_likely", 2)
    add("ice trained on", "ice_trained", 2)
    add("RMSE of V", "value_rmse", 2)
    return table


def _estimate(values: Sequence[float], digits: int) -> str:
    estimate = Estimate.of(values)
    error = "" if math.isnan(estimate.standard_error) else f"±{estimate.standard_error:.{digits}f}"
    return f"{estimate.mean:.{digits}f}{error}"


def _findings(results: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    if "p_utility_below_samplr" in results.get("robust_plr", {}):
        p = results["robust_plr"]["p_utility_below_samplr"]
        lines.append(f"PLR⊥ earns less than SAMPLR: p = {p:.1g}")
    if "p_worst_regret_below_samplr" in results.get("samplr_exact", {}):
        p = results["samplr_exact"]["p_worst_regret_below_samplr"]
        lines.append(f"M=∞ has less worst regret than M=1: p = {p:.1g}")
    return "\n".join([*lines, "(one-sided Welch tests over seeds)"]) if lines else ""


def icy_road_figure(
    fast: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str]
) -> Figure:
    """What each method earns, and what it does.

    **Arguments:**

    - `fast`: for each method, the probability of driving fast (seed × history).
    - `results`: from `samplr.demo.measure`.
    - `titles`: the methods' names as shown.
    """
    matplotlib.rcParams["font.size"] = 9
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[1.15, 1])
    top, bottom = halves
    utility, by_rate = top.subplots(1, 2, width_ratios=[1, 1.25])
    _draw_utility(utility, results, titles)
    _draw_returns_by_rate(by_rate, results, titles)
    env = IcyRoad()
    policies = {"Bayes-optimal": np.asarray(solution.bayes_optimal(env))[None]}
    policies |= {titles[name]: np.asarray(table) for name, table in fast.items()}
    axes = bottom.subplots(1, len(policies), sharey=True)
    for axis, (title, table) in zip(axes, policies.items(), strict=True):
        image = _draw_policy(axis, env, title, table)
    axes[0].set_ylabel("icy segments met")
    bottom.supxlabel("segments crossed", fontsize=9)
    bottom.colorbar(image, ax=axes, label="P(drive fast)", shrink=0.9, pad=0.01)
    return figure


def _draw_utility(axis: Axes, results: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str]) -> None:
    optimum = next(iter(results.values()))["optimum"]
    jitter = np.random.default_rng(0)
    for row, (name, figures) in enumerate(results.items()):
        values = np.asarray(figures["utility"])
        axis.plot(values, row + jitter.uniform(-0.18, 0.18, len(values)), "o", ms=4, color=COLOURS[name], alpha=0.6)
        axis.plot([values.mean()] * 2, [row - 0.32, row + 0.32], color=COLOURS[name], lw=2.5)
    axis.axvline(optimum, color=GREY, ls="--", lw=1)
    axis.annotate("Bayes optimum ", (optimum, -0.62), ha="right", va="center", color=GREY)
    axis.set_yticks(range(len(results)), [titles[name] for name in results])
    axis.set_ylim(len(results) - 0.5, -0.95)
    axis.set_xlabel("utility under the ground truth P̄ (a dot per seed)")
    axis.spines[["top", "right"]].set_visible(False)


def _draw_returns_by_rate(axis: Axes, results: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str]) -> None:
    for name, figures in results.items():
        means = [np.mean(figures[f"return_q={q:g}"]) for q in EVALUATED_RATES]
        axis.plot(EVALUATED_RATES, means, "o-", ms=4, color=COLOURS[name], label=titles[name])
    env = IcyRoad()
    best = solution.bayes_optimal(env)
    optimal = [float(solution.return_at_rate(env, best, q)) for q in EVALUATED_RATES]
    axis.plot(EVALUATED_RATES, optimal, "--", color=GREY, lw=1, label="Bayes-optimal", zorder=5)
    axis.set_xticks(EVALUATED_RATES)
    axis.set_xlabel("rate of ice q at deployment (P̄: mean 0.06)")
    axis.set_ylabel("return")
    axis.legend(frameon=False, loc="lower left")
    axis.spines[["top", "right"]].set_visible(False)


def _draw_policy(axis: Axes, env: IcyRoad, title: str, table: np.ndarray) -> Any:
    """P(fast) by segments crossed and icy segments met, averaged over seeds and over the histories behind each cell."""
    crossed, icy, p_fast = solution.depths(env), solution.icy_counts(env), table.mean(axis=0)
    shown = min(5, env.segments)
    grid = np.full((shown, env.segments), np.nan)
    for t in range(env.segments):
        for k in range(min(t + 1, shown)):
            grid[k, t] = p_fast[(crossed == t) & (icy == k)].mean()
    image = axis.imshow(grid, origin="lower", cmap="cividis", vmin=0, vmax=1, aspect="auto")
    axis.set_title(title, fontsize=9)
    axis.set_xticks([0, 5, 10])
    axis.set_yticks(range(shown))
    return image
