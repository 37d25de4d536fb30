"""The paper's figures, redrawn from a study's numbers: lines are means over seeds, bands their standard errors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from samplr.report import COLOURS, GREY
from samplr.reproduce.learned import ice_of, on_trained_levels
from samplr.reproduce.records import Row, at_the_end, curve, pick, scores
from samplr.reproduce.studies import Data

STYLES: Mapping[str, tuple[str, Any]] = {
    "dr": (COLOURS["dr"], "-"),
    "plr": ("#E69F00", "--"),
    "robust_plr": (COLOURS["robust_plr"], "-"),
    "naive": (COLOURS["naive"], (0, (5, 1))),
    "samplr": (COLOURS["samplr"], "-"),
    "samplr_m4": (COLOURS["samplr"], "--"),
    "samplr_m16": (COLOURS["samplr"], ":"),
    "samplr_exact": (COLOURS["samplr_exact"], "-"),
    "samplr_eager": ("#000000", "-"),
    "samplr_wide": (COLOURS["samplr_exact"], "-"),
    "dr_fictitious": (COLOURS["dr"], "--"),
    "fixed": (COLOURS["robust_plr"], "-"),
    "fixed_fictitious": (COLOURS["robust_plr"], "--"),
    "wide": (COLOURS["samplr_exact"], "-"),
    "wide_fictitious": (COLOURS["samplr_exact"], "--"),
}
"""Okabe and Ito's colours, as in the other figures, and broken lines where two of them are near each other."""

CAPTIONS: Mapping[str, str] = {
    "theory": "Regret to the Bayes optimum along training, under P̄ and at the worst history; and what is left of it in "
    "the end under each score of the teacher's.",
    "returns_by_ice": "Return by rate of ice at the end of training.",
    "returns_by_ice_fixed_teachers": "The same for teachers without a score.",
    "gaps": "By how much SAMPLR is above PLR⊥ under each change, with 95 % intervals.",
    "ranks_gain": "All methods with a policy that looks from the first: how icy the levels are that they learn from, "
    "along training; and return in the end by rate of ice.",
    "ranks_lineage": "All methods with the lineage's student: how icy the levels are that they learn from, along "
    "training; and return in the end by rate of ice.",
    "ice_seen": "The share of visited tiles with ice along training; dashed, P̄.",
    "ice_seen_told": "The same for students that are told the evidence.",
    "curriculum": "What the curricula ended on. Left: how icy their levels are. Right: how often the next tiles are "
    "icy, by how many were revealed (where 3,000 tiles and more tell); dotted, how often the posterior expects it, and "
    "a grounded student learns it.",
    "curriculum_told": "The same for students that are told the evidence.",
    "curriculum_past_the_paper": "The same for the variants past the paper.",
    "curves_by_steps": "Return along training by steps, on new tracks and on the circuits that settings are chosen by.",
    "curves_by_gradient_updates": "The same by gradient updates: methods that replay learn less often.",
    "training": "Return, rooms solved and rooms presented along training; dotted, on the levels trained on.",
    "choices": "How training episodes end.",
    "by_q": "Test return by the rate q at which the apple is right, and the share of such levels in training.",
}
"""What the figures of studies show, by the names of their files, in the order in which a page has them. Lines are means
over seeds, bands and bars standard errors."""

MARKERS = {"": "o", "oracle": "s", "grounded": "^"}
"""Of the scores that teachers of the theory study go by."""


def style(data: Data, name: str) -> tuple[str, Any]:
    """Colour and line of a variant: those of its method; with settings of the user's, dashes and dots."""
    own = data.variants[name].base or name
    colour, line = STYLES[max((key for key in STYLES if own.startswith(key)), key=len)]
    return colour, "-." if data.variants[name].base else line


def _figure(width: float, height: float) -> Figure:
    matplotlib.rcParams["font.size"] = 11
    return Figure(figsize=(width, height), layout="constrained")


def _draw_curve(axis: Axes, data: Data, name: str, rows: Sequence[Row], figure: str, along: str, **how: Any) -> None:
    """A mean and a band of one standard error."""
    places, values = curve(rows, figure, along)
    if not values.size:
        return
    colour, line = style(data, name)
    mean = values.mean(axis=1)
    axis.plot(places, mean, **{"color": colour, "ls": line, "lw": 1.6, "label": data.variants[name].title, **how})
    if values.shape[1] > 1:
        error = values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
        axis.fill_between(places, mean - error, mean + error, color=colour, alpha=0.18, lw=0)


def _dress(axis: Axes, along: str, ylabel: str) -> None:
    axis.set_xlabel({"steps": "steps", "gradient_updates": "gradient updates"}[along])
    axis.set_ylabel(ylabel)
    axis.xaxis.set_major_formatter(FuncFormatter(_short))
    axis.spines[["top", "right"]].set_visible(False)


def _short(number: float, _: Any = None) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"


def _plain_numbers(axis: Axis) -> None:
    """Label a logarithmic axis as people write numbers: at 1, 2 and 5, or over many decades at 1 only."""
    low, high = axis.get_view_interval()
    few_decades = high < 50 * low
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few_decades else (1.0,)))
    axis.set_major_formatter(FuncFormatter(_short))
    axis.set_minor_formatter(NullFormatter())


def _legend(figure: Any, axes: Sequence[Axes]) -> None:
    """One legend for all, above them; a figure grows by its rows."""
    found = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    if not found:
        return
    width = figure.get_window_extent().width / figure.dpi
    columns = max(1, min(len(found), 4, int(11 * width / (7 + max(map(len, found))))))
    figure.legend(found.values(), found.keys(), loc="outside upper center", ncols=columns, frameon=False)
    if isinstance(figure, Figure):
        figure.set_figheight(figure.get_figheight() + 0.23 * -(-len(found) // columns))


def _of(rows: Sequence[Row], name: str) -> list[Row]:
    return [row for row in rows if row["variant"] == name]


def theory(data: Data) -> Figure:
    """Regret to the Bayes optimum along training, and what is left of it in the end under every score."""
    exact = data.of("exact")
    figure = _figure(9, 7.6)
    halves: Any = figure.subfigures(2, 1, height_ratios=[1, 1.15])
    top, bottom = halves
    axes = top.subplots(1, 3)
    panels = [
        ("regret", "steps", "regret under P̄ (ε-Bayes)"),
        ("regret", "gradient_updates", "regret under P̄ (ε-Bayes)"),
        ("worst_history_regret", "gradient_updates", "worst regret over histories"),
    ]
    for axis, (name, along, ylabel) in zip(axes, panels, strict=True):
        for variant in data.variants:
            if "replay.score" not in data.variants[variant].changes:
                _draw_curve(axis, data, variant, _of(exact, variant), name, along)
        axis.set_yscale("log")
        _plain_numbers(axis.yaxis)
        _dress(axis, along, ylabel)
    _legend(top, axes)
    at_end = at_the_end(exact)
    left, right = bottom.subplots(1, 2, sharey=True)
    _draw_by_score(left, data, at_end, "regret", "regret under P̄ in the end")
    _draw_by_score(right, data, at_end, "worst_history_regret", "worst regret over histories in the end")
    left.invert_yaxis()
    if right.get_legend_handles_labels()[1]:
        right.legend(frameon=False, title="the teacher's score", loc="best", fontsize=9)
    return figure


def _draw_by_score(axis: Axes, data: Data, rows: Sequence[Row], figure: str, label: str) -> None:
    """A row for each method, in it a mark with its standard error for each score."""
    names = {"": "positive value loss", "oracle": "exact regret", "grounded": "regret to the Bayes optimum"}
    own = [name for name, variant in data.variants.items() if not variant.base]
    methods = [name for name in own if "replay.score" not in data.variants[name].changes]
    for place, (score, marker) in enumerate(MARKERS.items()):
        if any(_of(rows, f"{method}_{score}" if score else method) for method in methods):
            axis.plot([], [], marker, ms=6, color=GREY, mfc=GREY if place == 0 else "white", label=names[score])
        for row, method in enumerate(methods):
            values = list(scores(_of(rows, f"{method}_{score}" if score else method), figure).values())
            if not values:
                continue
            error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
            axis.errorbar(
                np.mean(values),
                row + 0.25 * (place - 1),
                xerr=error,
                fmt=marker,
                ms=6,
                color=STYLES[method][0],
                mfc=STYLES[method][0] if place == 0 else "white",
            )
    axis.set_xscale("log")
    _plain_numbers(axis.xaxis)
    axis.set_ylim(-0.6, len(methods) - 0.4)
    axis.set_yticks(range(len(methods)), [data.variants[name].title for name in methods])
    axis.set_xlabel(label)
    axis.grid(axis="x", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _mark_ground_truth(axis: Axes, data: Data) -> None:
    """How much ice there is under P̄: Beta(1, 15), unless a user has set another."""
    if not any({"env.alpha", "env.beta"} & set(variant.changes) for variant in data.variants.values()):
        axis.axhline(1 / 16, color=GREY, lw=1, ls="--", label="P̄")


def ice_seen(data: Data) -> Figure:
    """The share of visited tiles with ice during training."""
    figure = _figure(6.4, 4)
    axis = figure.subplots()
    for name in data.variants:
        rows = [{**row, "ice": ice_of(row)} for row in _of(data.of("training"), name)]
        _draw_curve(axis, data, name, rows, "ice", "steps")
    _mark_ground_truth(axis, data)
    _dress(axis, "steps", "visited tiles with ice")
    _legend(figure, [axis])
    return figure


def curriculum(data: Data) -> Figure:
    """How icy the levels are that each teacher presents in the end, and the tiles that its student comes to."""
    figure = _figure(9, 4.2)
    levels, tiles = figure.subplots(1, 2)
    for name in data.variants:
        rows, (colour, line) = _of(data.of("curriculum"), name), style(data, name)
        if not rows:
            continue
        how = {"color": colour, "ls": line, "lw": 1.6}
        bins = sorted({row["ice_from"] for row in rows})
        total = sum(row["levels"] for row in rows)
        icier = [sum(row["levels"] for row in rows if row["ice_from"] >= ice) / total for ice in bins]
        levels.plot(bins, icier, label=data.variants[name].title, **how)
        met = {revealed: pick(rows, revealed_from=revealed) for revealed in sorted({r["revealed_from"] for r in rows})}
        met = {revealed: of for revealed, of in met.items() if sum(row["tiles"] for row in of) >= _ENOUGH_TILES}
        for figure_name, look in (("icy", how), ("fictitious", {**how, "ls": ":"})):
            share = [sum(row[figure_name] for row in of) / sum(row["tiles"] for row in of) for of in met.values()]
            tiles.plot([max(revealed, 0.5) for revealed in met], share, **look)
    levels.set(xlabel="share of the track that is icy: at least", ylabel="levels presented")
    _mark_ground_truth(tiles, data)
    tiles.plot([], [], color=GREY, ls=":", label="as the posterior expects")
    # From none, drawn at one half, to all: a logarithmic axis without curves needs to be told.
    tiles.set(
        xscale="log", xlim=(0.45, 500), xlabel="tiles revealed before (leftmost: none)", ylabel="next tiles with ice"
    )
    _plain_numbers(tiles.xaxis)
    for axis in (levels, tiles):
        axis.spines[["top", "right"]].set_visible(False)
    _legend(figure, [levels, tiles])
    return figure


_ENOUGH_TILES = 3000
"""A share of fewer tiles would be noise."""


def returns_by_ice(data: Data, paper: Mapping[str, Mapping[str, tuple[float, float]]]) -> Figure:
    """Zero-shot return on the F1 circuits by rate of ice: ours, and the paper's."""
    f1 = at_the_end(data.of("f1"))
    figure = _figure(9, 4.4)
    ours, theirs = figure.subplots(1, 2, sharex=True, sharey=True)
    rates = sorted({row["ice"] for row in f1 if str(row["ice"]).startswith("q=")}) or ["q=0.2"]
    x = {rate: float(rate.removeprefix("q=")) for rate in rates}
    for name in data.variants:
        found = {rate: list(scores(pick(_of(f1, name), ice=rate), "return").values()) for rate in rates}
        if all(found.values()):
            _draw_by_rate(ours, data, name, list(x.values()), list(found.values()))
    for name, conditions in paper.items():
        known = [(float(c.removeprefix("q=")), *numbers) for c, numbers in conditions.items() if c.startswith("q=")]
        if name in data.variants:
            colour, line = STYLES[name]
            theirs.errorbar(*np.transpose(known), color=colour, ls=line, marker="o", ms=4, capsize=2)
    for axis, title in ((ours, "ours"), (theirs, "the paper's Table 1")):
        axis.set_title(title)
        _dress_by_rate(axis)
    ours.set_ylabel("return on the F1 circuits")
    _legend(figure, [ours])
    return figure


def returns_by_rate(panels: Mapping[str, Data], rows: Sequence[Row], rates: Sequence[str]) -> Figure:
    """Return by rate of ice: a panel for each group of variants, from rows that have a return under each rate."""
    figure = _figure(4.5 * len(panels), 4.4)
    axes = list(np.ravel(figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)))
    x = [float(rate.removeprefix("q=")) for rate in rates]
    for axis, (title, data) in zip(axes, panels.items(), strict=True):
        for name in data.variants:
            found = [list(scores(_of(rows, name), rate).values()) for rate in rates]
            if all(found):
                _draw_by_rate(axis, data, name, x, found)
        axis.set_title(title)
        _dress_by_rate(axis)
    axes[0].set_ylabel("return on new tracks")
    _legend(figure, axes)
    return figure


def _draw_by_rate(axis: Axes, data: Data, name: str, x: Sequence[float], found: Sequence[Sequence[float]]) -> None:
    """A variant's mean and standard error at each rate of ice, from its scores there."""
    colour, line = style(data, name)
    errors = [np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0 for values in found]
    how = {"color": colour, "ls": line, "marker": "o", "ms": 4, "capsize": 2, "label": data.variants[name].title}
    axis.errorbar(x, [np.mean(values) for values in found], errors, **how)


def _dress_by_rate(axis: Axes) -> None:
    axis.set_xlabel("rate of ice q")
    axis.axhline(0, color=GREY, lw=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def gaps(found: Sequence[Row], conditions: Sequence[str]) -> Figure:
    """How far SAMPLR is ahead of PLR⊥ under each change: a difference and its 95 % interval, by condition."""
    titles = list(dict.fromkeys(row["title"] for row in found))
    figure = _figure(2.1 * len(conditions) + 2.5, 0.36 * len(titles) + 1.4)
    axes = figure.subplots(1, len(conditions), sharey=True)
    for axis, condition in zip(axes, conditions, strict=True):
        for row in pick(found, figure=condition):
            place = titles.index(row["title"])
            axis.plot([row["low"], row["high"]], [place, place], color=COLOURS["samplr"], lw=1.6)
            axis.plot(row["difference"], place, "o", ms=5, color=COLOURS["samplr"])
        axis.axvline(0, color=GREY, lw=0.8)
        axis.set_title(condition if condition.startswith("q=") else "P̄")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(range(len(titles)), titles)
    axes[0].invert_yaxis()
    figure.supxlabel("return of SAMPLR less that of PLR⊥")
    return figure


def ranks(data: Data, rows: Sequence[Row], rates: Sequence[str]) -> Figure:
    """How methods fare with the same student: how icy the levels are that they learn from, along training; and the
    return in the end by rate of ice, from rows that have one under each rate.
    """
    figure = _figure(8.5, 3.9)
    levels, returns = figure.subplots(1, 2)
    for name in data.variants:
        _draw_curve(levels, data, name, _of(data.of("training"), name), "shift/ice/real_mean", "gradient_updates")
        found = [list(scores(_of(rows, name), rate).values()) for rate in rates]
        if all(found):
            _draw_by_rate(returns, data, name, [float(rate.removeprefix("q=")) for rate in rates], found)
    _mark_ground_truth(levels, data)
    _dress(levels, "gradient_updates", "ice of the levels learned from")
    returns.set_ylabel("return on new tracks")
    _dress_by_rate(returns)
    _legend(figure, [levels, returns])
    return figure


def driving_curves(data: Data, along: str) -> Figure:
    """Returns along training: on new random tracks, on each validation circuit, and on the levels trained on."""
    tracks = list(dict.fromkeys(row["condition"] for row in data.of("validation")))
    panels: list[tuple[str, Callable[[str], list[Row]]]] = [
        ("new random tracks", lambda name: _of(data.of("ground_truth"), name)),
        *[(f"{track}, q=0.2", _rows_on(data, track)) for track in tracks],
    ]
    columns = min(2, len(panels))
    figure = _figure(4.5 * columns, 3.2 * -(-len(panels) // columns) + 0.6)
    axes = list(np.ravel(figure.subplots(-(-len(panels) // columns), columns, squeeze=False)))
    for axis, (title, rows_of) in zip(axes, panels, strict=False):
        for name in data.variants:
            _draw_curve(axis, data, name, rows_of(name), "return", along)
        axis.set_title(title)
        _dress(axis, along, "return")
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    _legend(figure, axes)
    return figure


def _rows_on(data: Data, track: str) -> Callable[[str], list[Row]]:
    return lambda name: pick(_of(data.of("validation"), name), condition=track)


def fruit_training(data: Data, variants: Sequence[str]) -> Figure:
    """Returns and rooms solved, in training (dotted) and at test, and rooms presented."""
    figure = _figure(9, 3.8)
    axes = figure.subplots(1, 3)
    panels = [("return", "return"), ("rooms_solved", "rooms solved"), ("rooms", "rooms presented")]
    for axis, (name, label) in zip(axes, panels, strict=True):
        for variant in variants:
            training = [{**row, name: on_trained_levels(row, name)} for row in _of(data.of("training"), variant)]
            if name == "rooms":
                _draw_curve(axis, data, variant, training, name, "steps")
                continue
            _draw_curve(axis, data, variant, training, name, "steps", ls=":", label=None)
            _draw_curve(axis, data, variant, _of(data.of("ground_truth"), variant), name, "steps")
        _dress(axis, "steps", label)
    axes[0].plot([], [], color=GREY, ls=":", label="in training")
    _legend(figure, axes)
    return figure


def fruit_choices(data: Data, variants: Sequence[str]) -> Figure:
    """How training episodes end: with the apple, the banana, or no fruit."""
    figure = _figure(9, 3.8)
    axes = figure.subplots(1, 3, sharey=True)
    for axis, end in zip(axes, ("no fruit", "apple", "banana"), strict=True):
        for variant in variants:
            rows = [{**row, "end": _ended_with(row, end)} for row in _of(data.of("training"), variant)]
            _draw_curve(axis, data, variant, rows, "end", "steps")
        axis.set_title(end)
        axis.set_ylim(-0.02, 1.02)
        _dress(axis, "steps", "")
    axes[0].set_ylabel("share of training episodes")
    _legend(figure, axes)
    return figure


def _ended_with(row: Row, end: str) -> float | None:
    apple, banana = on_trained_levels(row, "ate_apple"), on_trained_levels(row, "ate_banana")
    if apple is None or banana is None:
        return None
    return {"apple": apple, "banana": banana, "no fruit": 1 - apple - banana}[end]


def fruit_by_q(data: Data, by_q: Mapping[float, Sequence[str]]) -> Figure:
    """Test returns by q, and the share of the levels trained on in which the apple is right."""
    figure = _figure(3 * max(len(by_q), 1), 6)
    grid = figure.subplots(2, max(len(by_q), 1), sharex="col", squeeze=False)
    for column, (q, variants) in enumerate(by_q.items()):
        above, below = grid[0, column], grid[1, column]
        for variant in variants:
            title = data.variants[variant].title.split(",")[0]
            _draw_curve(above, data, variant, _of(data.of("ground_truth"), variant), "return", "steps", label=title)
            _draw_curve(below, data, variant, _of(data.of("training"), variant), "shift/apple/real_mean", "steps")
        below.axhline(q, color=GREY, lw=1, ls="--")
        below.set_ylim(-0.02, 1.02)
        above.set_title(f"q = {q:g}")
        _dress(above, "steps", "test return" if column == 0 else "")
        _dress(below, "steps", "share of apple levels" if column == 0 else "")
        above.set_xlabel("")
    _legend(figure, list(grid[0]))
    return figure
