"""Line charts as inline SVG: they take their colours from the page, so that they suit light, dark and print."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from matplotlib.ticker import MaxNLocator

from samplr.report.curves import Curve

WIDTH, HEIGHT = 360, 232
"""On a phone one unit is about one pixel, so that the letters of a chart are as large as the page's."""
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 40

MANY = 6
"""The bands of more lines than this are drawn faintly, for they lie over each other."""
STYLES = 8
"""How many styles of lines the page knows, each a colour and a pattern of dashes; further lines are thinner."""


@dataclass(frozen=True)
class Line:
    """A curve, its name, and the number of its style."""

    title: str
    style: int
    curve: Curve


@dataclass(frozen=True)
class _Frame:
    """From the data's units to the picture's."""

    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, value: float) -> float:
        """Where a value of x lies."""
        low, high = self.x
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def down(self, value: float) -> float:
        """Where a value of y lies."""
        low, high = self.y
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def points(self, xs: np.ndarray, ys: np.ndarray) -> str:
        """A line's corners."""
        return " ".join(f"{self.across(x):.1f},{self.down(y):.1f}" for x, y in zip(xs, ys, strict=True))


def chart(lines: Sequence[Line], *, title: str, x_label: str, reference: tuple[str, float] | None = None) -> str:
    """Curves in one frame, each with a band of one standard error.

    **Arguments:**

    - `title`: what is shown, for readers who cannot see it.
    - `x_label`: what training is measured by.
    - `reference`: the name and the value of a level line.
    """
    lines = [line for line in lines if line.curve.x.size]
    frame = _frame(lines, reference)
    kind, words = "chart many" if len(lines) > MANY else "chart", _in_words(title, lines)
    parts = [
        f'<svg class="{kind}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(words)}">',
        *_axes(frame, x_label),
        *(_band(frame, line) for line in lines),
        *_reference(frame, reference),
        *(_line(frame, line) for line in lines),
        "</svg>",
    ]
    return "\n".join(parts)


def _in_words(title: str, lines: Sequence[Line]) -> str:
    return f"{title}: " + "; ".join(f"{line.title} ends at {line.curve.mean[-1]:.3g}" for line in lines)


def swatch(style: int) -> str:
    """A short piece of a line, for a legend."""
    return (
        f'<svg class="swatch" viewBox="0 0 28 10" width="28" height="10" aria-hidden="true">'
        f'<path class="line {_style(style)}" d="M1 5H27"/></svg>'
    )


def _style(number: int) -> str:
    return f"s{number % STYLES}" + (" thin" if number >= STYLES else "")


def _frame(lines: Sequence[Line], reference: tuple[str, float] | None) -> _Frame:
    spread = [np.nan_to_num(line.curve.error) for line in lines]
    lows = [float(np.min(line.curve.mean - error)) for line, error in zip(lines, spread, strict=True)]
    highs = [float(np.max(line.curve.mean + error)) for line, error in zip(lines, spread, strict=True)]
    values = [*lows, *highs, *([reference[1]] if reference else [])] or [0.0, 1.0]
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or max(abs(high), 1.0) * 0.1
    # A share or a count cannot be negative, and its axis does not suggest that it could.
    bottom = 0.0 if 0 <= low < pad else low - pad
    # Nothing was learned yet where all lines end at 0.
    end = max([float(line.curve.x[-1]) for line in lines], default=0.0) or 1.0
    return _Frame((0.0, end), (bottom, high + pad))


def _axes(frame: _Frame, x_label: str) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick in _ticks(*frame.y, count=5):
        y = frame.down(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(tick)}</text>')
    for tick in _ticks(*frame.x, count=4):
        x = frame.across(tick)
        anchor = "end" if x > right - 12 else "middle"
        parts.append(f'<path class="axis" d="M{x:.1f} {bottom}v4"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 17}" text-anchor="{anchor}">{short(tick)}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>')
    middle = (LEFT + right) / 2
    parts.append(f'<text class="name" x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{escape(x_label)}</text>')
    return parts


def _ticks(low: float, high: float, count: int) -> list[float]:
    values = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(value) for value in values if low <= value <= high]


def _band(frame: _Frame, line: Line) -> str:
    known = ~np.isnan(line.curve.error)
    if known.sum() < 2:
        return ""
    x, mean, error = line.curve.x[known], line.curve.mean[known], line.curve.error[known]
    points = frame.points(np.concatenate([x, x[::-1]]), np.concatenate([mean + error, (mean - error)[::-1]]))
    return f'<polygon class="band {_style(line.style)}" points="{points}"/>'


def _line(frame: _Frame, line: Line) -> str:
    style = _style(line.style)
    x, y = frame.across(line.curve.x[-1]), frame.down(line.curve.mean[-1])
    points = frame.points(line.curve.x, line.curve.mean)
    return (
        f'<g><title>{escape(line.title)}</title><polyline class="line {style}" points="{points}"/>'
        f'<circle class="end {style}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/></g>'
    )


def _reference(frame: _Frame, reference: tuple[str, float] | None) -> list[str]:
    if reference is None:
        return []
    name, value = reference
    y = frame.down(value)
    # Below the line where there is no room above it.
    at = y - 5 if y > TOP + 16 else y + 14
    return [
        f'<path class="reference" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>',
        f'<text class="tick halo" x="{LEFT + 5}" y="{at:.1f}">{escape(name)}</text>',
    ]


def short(value: float) -> str:
    """A number for an axis: 1.5M, 200k, 0.05."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{0.0 if math.isclose(value, 0, abs_tol=1e-12) else value:g}".replace("-", "−")
