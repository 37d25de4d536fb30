"""The charts of a world: learning curves, and what the student met of what it cannot see."""

from collections.abc import Mapping, Sequence
from html import escape

from samplr.report.charts import Line, chart, swatch
from samplr.report.curves import Along, curve, ground_truth
from samplr.report.curves import figures as figures_of
from samplr.report.curves import summaries as summaries_of
from samplr.report.prose import prose
from samplr.report.runs import Method, World

_USUAL_STYLES = {"dr": 0, "robust_plr": 1, "naive": 2, "samplr": 3, "plr": 4}
"""A method looks the same in every report."""
_ABOUT_SHIFT = (
    "What the agent cannot see (θ′), in training against the ground truth. A curriculum may shift the levels that are "
    "played. Grounding `naive` draws θ′ anew at every reset. Grounding `fictitious` draws from the posterior what the "
    "history has not revealed: levels chosen by a curriculum may still reveal more of it than usual, but what follows "
    "each history is as the ground truth has it."
)
_X = {"steps": "environment steps", "gradient_updates": "gradient updates"}


def styles_of(world: World) -> dict[str, int]:
    """The number of every method's style, by its title: the usual one, or else the next that is free."""
    styles: dict[str, int] = {}
    for method in world.methods:
        usual = _USUAL_STYLES.get(method.config.method)
        if usual is not None and usual not in styles.values():
            styles[method.title] = usual
    for method in world.methods:
        free = (number for number in range(1000) if number not in styles.values())
        styles.setdefault(method.title, next(free))
    return {method.title: styles[method.title] for method in world.methods}


def curves_section(world: World, styles: Mapping[str, int]) -> str:
    """Learning curves: the return by steps and by gradient updates, the world's other figures by steps."""
    names = list(dict.fromkeys(name for method in world.methods for name in figures_of(method)))
    charts = []
    for name in names:
        words = name.removeprefix("new/").replace("_", " ")
        charts.append(_figure(world.methods, styles, name, "steps", words))
        if name == "new/return":
            charts.append(_figure(world.methods, styles, name, "gradient_updates", words))
    if not any(charts):
        return "<h3>Learning curves</h3><p>No episode on a new level has ended yet.</p>"
    return "\n".join(
        [
            "<h3>Learning curves</h3>",
            '<p class="note">Episodes on new levels from the ground truth, as training goes on: the mean over seeds, '
            "and one standard error to either side.</p>",
            _legend(styles),
            f'<div class="charts">{"".join(charts)}</div>',
        ]
    )


def shift_section(world: World, styles: Mapping[str, int]) -> str:
    """The shift monitor: θ′ of the levels played, and of the transitions learned from, against the ground truth."""
    names = list(dict.fromkeys(name for method in world.methods for name in summaries_of(method)))
    if not names:
        return ""
    charts = []
    for name in names:
        truth = ("ground truth", ground_truth(world.methods[0], name))
        for kind, words in (("real", "levels played"), ("met", "transitions learned from")):
            title = f"{name.replace('_', ' ')} in the {words}"
            charts.append(_figure(world.methods, styles, f"shift/{name}/{kind}_mean", "steps", title, truth))
    return "\n".join(
        [
            "<h3>Did the curriculum shift what is hidden?</h3>",
            f'<p class="note">{prose(_ABOUT_SHIFT)}</p>',
            _legend(styles),
            f'<div class="charts">{"".join(charts)}</div>',
            _warnings(world),
        ]
    )


def _warnings(world: World) -> str:
    lines = [
        f"<li><strong>{escape(method.title)}</strong>: {prose(line)}.</li>"
        for method in world.methods
        for line in dict.fromkeys(line for batch in method.batches for line in batch.run.summary["warnings"])
    ]
    return f'<ul class="note">{"".join(lines)}</ul>' if lines else ""


def _legend(styles: Mapping[str, int]) -> str:
    items = "".join(f"<li>{swatch(style)}{escape(title)}</li>" for title, style in styles.items())
    return f'<ul class="legend" aria-label="Legend">{items}</ul>'


def _figure(
    methods: Sequence[Method],
    styles: Mapping[str, int],
    metric: str,
    along: Along,
    title: str,
    reference: tuple[str, float] | None = None,
) -> str:
    lines = [Line(method.title, styles[method.title], curve(method, metric, along)) for method in methods]
    if not any(line.curve.x.size for line in lines):
        return ""
    drawn = chart(lines, title=f"{title} by {_X[along]}", x_label=_X[along], reference=reference)
    return f"<figure><figcaption>{escape(title)} <span>by {_X[along]}</span></figcaption>{drawn}</figure>"
