"""How well posteriors are calibrated, as a figure."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from samplr.posteriors.calibration import Calibration
from samplr.report.colours import COLOURS, GREY


def reliability_figure(calibrations: Mapping[str, Sequence[Calibration]]) -> Figure:
    """How often what a posterior finds so likely comes true: a line for each run, on the diagonal if it is right.

    **Arguments:**

    - `calibrations`: for each posterior, what `samplr.posteriors.calibration` found of each run.
    """
    figure = Figure(figsize=(4.4, 4.2), layout="constrained")
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], "--", color=GREY, lw=1)
    for (name, runs), colour in zip(calibrations.items(), itertools.cycle(COLOURS.values()), strict=False):
        error = np.mean([run.error for run in runs])
        for number, run in enumerate(runs):
            label = f"{name} (error {error:.3f})" if number == 0 else None
            axis.plot(run.predicted, run.observed, "o-", ms=3, lw=1, color=colour, alpha=0.7, label=label)
    axis.set_xlabel("probability given by the posterior")
    axis.set_ylabel("share that came true")
    axis.set_aspect("equal")
    axis.legend(frameon=False, loc="upper left")
    axis.spines[["top", "right"]].set_visible(False)
    return figure
