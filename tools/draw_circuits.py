"""Draw the circuits of the F1 benchmark for the guides: `python tools/draw_circuits.py`."""

import io
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from PIL import Image

from samplr.envs.black_ice.circuits import CIRCUITS, Circuit
from samplr.envs.black_ice.tracks import HALF_WIDTH

PICTURE = Path(__file__).resolve().parents[1] / "docs/images/circuits.png"
COLUMNS = 4
PANEL = 2.5
"""Side of a panel in inches."""
ROAD, START, INK, FAINT = "#3b4252", "#e03c2d", "#1f2430", "#5b6472"


def main() -> None:
    """Draw every circuit into one picture."""
    rows = -(-len(CIRCUITS) // COLUMNS)
    figure = plt.figure(figsize=(PANEL * COLUMNS, 1.27 * PANEL * rows), dpi=110, facecolor="white")
    for index, circuit in enumerate(CIRCUITS.values()):
        row, column = divmod(index, COLUMNS)
        place = ((column + 0.05) / COLUMNS, 1 - (row + 0.98) / rows, 0.9 / COLUMNS, 0.9 / 1.27 / rows)
        draw(figure.add_axes(place), circuit)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    # A palette is enough for a few flat colours and makes the file a fraction of the size.
    Image.open(buffer).convert("RGB").quantize(48).save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} kB")


def draw(panel: Axes, circuit: Circuit) -> None:
    """One circuit as large as its panel allows, the road at its true width, and which way the car sets out."""
    reach = 1.02 * float(np.abs(circuit.points).max()) + HALF_WIDTH
    panel.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    panel.set_axis_off()
    width = 0.9 * PANEL * 72 * HALF_WIDTH / reach
    loop = np.concatenate([circuit.points, circuit.points[:1]])
    panel.plot(*loop.T, color=ROAD, linewidth=width, solid_joinstyle="round")
    mark_start(panel, circuit, reach, width)
    panel.text(0.5, 1.17, circuit.name, transform=panel.transAxes, ha="center", fontsize=18, weight="bold", color=INK)
    panel.text(0.5, 1.07, f"{circuit.length:,.0f} u", transform=panel.transAxes, ha="center", fontsize=13, color=FAINT)


def mark_start(panel: Axes, circuit: Circuit, reach: float, width: float) -> None:
    """A dot where the car starts, and a first stretch of road that ends in an arrow head."""
    steps = len(circuit.points) / circuit.length * reach
    neck, tip = round(0.17 * steps), round(0.36 * steps)
    panel.plot(*circuit.points[: neck + 1].T, color=START, linewidth=width + 1, zorder=3)
    panel.plot(*circuit.points[0], "o", color=START, markersize=9, zorder=3)
    style = {"facecolor": START, "edgecolor": "white", "linewidth": 0.8, "shrink": 0.0}
    head = {"width": 0.1, "headwidth": 15, "headlength": 15}
    panel.annotate("", xy=circuit.points[tip], xytext=circuit.points[neck], arrowprops=style | head, zorder=4)


if __name__ == "__main__":
    main()
