"""What was logged, as curves and as estimates of the end."""

import math

import numpy as np
import pytest

from samplr.report.charts import Line, chart, short
from samplr.report.curves import Curve, at_the_end, curve, figures, over_the_run, summaries
from samplr.report.runs import Batch, Method
from samplr.run import Run

from .html import Page
from .test_runs import batch, default_config


def method(*logged: list[list[float | None]], steps: list[int] | None = None) -> Method:
    """Batches that have logged these returns, line after line, each a number for each seed."""
    batches = []
    for values in logged:
        rows = [
            {"steps": steps[i] if steps else 10 * (i + 1), "gradient_updates": i + 1, "new/return": row}
            for i, row in enumerate(values)
        ]
        plain: Batch = batch("x", default_config("icy_road", "dr", seeds=len(values[0])))
        summary = {**plain.run.summary, "whole_run": {"shift/ice/met_mean": [0.5, None]}}
        batches.append(Batch(plain.path, Run(plain.run.config, None, rows, summary), {}, None, None))
    return Method("DR", tuple(batches))


class TestCurve:
    def test_mean_and_standard_error_over_the_seeds_of_all_batches(self) -> None:
        found = curve(method([[1.0, 2.0], [3.0, 5.0]], [[6.0], [7.0]]), "new/return", "steps")
        np.testing.assert_allclose(found.x, [10, 20])
        np.testing.assert_allclose(found.mean, [3, 5])
        np.testing.assert_allclose(found.error, [np.std([1, 2, 6], ddof=1) / 3**0.5, 2 / 3**0.5])

    def test_one_seed_has_no_error(self) -> None:
        found = curve(method([[1.0], [2.0]]), "new/return", "gradient_updates")
        np.testing.assert_allclose(found.x, [1, 2])
        assert np.isnan(found.error).all()

    def test_what_is_unknown_is_left_out(self) -> None:
        found = curve(method([[None, None], [1.0, None], [2.0, 4.0]]), "new/return", "steps")
        np.testing.assert_allclose(found.x, [20, 30])
        np.testing.assert_allclose(found.mean, [1, 3])
        assert math.isnan(found.error[0])

    def test_many_points_become_fewer_without_changing_the_mean(self) -> None:
        values = [[float(i)] for i in range(1000)]
        found = curve(method(values), "new/return", "steps")
        assert found.x.size == 100
        assert found.mean.mean() == pytest.approx(499.5)
        assert (np.diff(found.mean) > 0).all()

    def test_a_metric_that_nobody_logged_is_empty(self) -> None:
        assert curve(method([[1.0]]), "new/lap", "steps").x.size == 0


class TestTheEnd:
    def test_is_the_last_tenth(self) -> None:
        estimate = at_the_end(method([[float(i), 2.0 * i] for i in range(20)]), "new/return")
        assert estimate.mean == pytest.approx((18.5 + 37) / 2)
        assert estimate.standard_error == pytest.approx(18.5 / 2)

    def test_is_what_was_known_last(self) -> None:
        assert at_the_end(method([[3.0], [4.0], [None]]), "new/return").mean == 4

    def test_is_nothing_where_nothing_is_known(self) -> None:
        assert at_the_end(method([[None]]), "new/return") is None

    def test_of_the_whole_run(self) -> None:
        assert over_the_run(method([[1.0, 1.0]]), "shift/ice/met_mean").mean == 0.5
        assert over_the_run(method([[1.0, 1.0]]), "shift/apple/met_mean") is None

    def test_runs_that_logged_nothing_have_no_figures(self) -> None:
        nothing = Method("DR", (batch("x", default_config("icy_road", "dr")),))
        assert figures(nothing) == summaries(nothing) == []


class TestChart:
    def test_takes_words_as_words_and_fits_its_frame(self) -> None:
        line = Line('<"&>', 9, Curve(np.array([1e6, 2e6]), np.array([-5.0, 3.0]), np.array([1.0, np.nan])))
        page = Page.of(chart([line], title="a<b", x_label="x&y", reference=("<r>", 7.0)))
        (drawing,) = page.all("svg")
        assert drawing.attributes["aria-label"] == 'a<b: <"&> ends at 3'
        assert drawing.all("title")[0].text == '<"&>'
        (polyline,) = drawing.all("polyline")
        assert polyline.attributes["class"] == "line s1 thin"
        heights = [float(point.split(",")[1]) for point in polyline.attributes["points"].split()]
        assert 10 < heights[1] < heights[0] < 192
        assert {"<r>", "x&y", "1M", "2M"} <= {text.text for text in drawing.all("text")}

    def test_a_run_that_has_not_learned_yet_has_no_length(self) -> None:
        line = Line("new", 0, Curve(np.zeros(2), np.array([1.0, 2.0]), np.array([0.0, 0.0])))
        (polyline,) = Page.of(chart([line], title="a", x_label="gradient updates")).all("polyline")
        places = {point.split(",")[0] for point in polyline.attributes["points"].split()}
        assert len(places) == 1

    @pytest.mark.parametrize(
        ("value", "shown"),
        [(0, "0"), (1500, "1.5k"), (2e6, "2M"), (3e9, "3G"), (0.05, "0.05"), (-4, "−4"), (1e-17, "0")],
    )
    def test_numbers_are_short(self, value: float, shown: str) -> None:
        assert short(value) == shown
