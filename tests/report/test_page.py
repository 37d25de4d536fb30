"""The page of `samplr report`: it is whole, needs nothing else, and tells what the run folders hold."""

import base64
import io
import itertools
import re

import imageio.v3 as imageio
import jax
import numpy as np
import pytest
from PIL import Image

from samplr import __version__
from samplr.evaluation import Estimate
from samplr.report.contents import MOST_BYTES
from samplr.teachers.buffer import Prioritisation, replay_weights
from tiny import contents

from .conftest import NAME, ROAD, Reported

pytestmark = [
    # Forking is how imageio starts ffmpeg; JAX warns that it might deadlock, and the child does nothing but start it.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]

PAPER = "https://arxiv.org/abs/2207.05219"
ICE = np.array([160, 200, 235])
"""The colour of ice that is still ahead."""


def decoded(uri: str) -> bytes:
    return base64.b64decode(uri.partition(",")[2], validate=True)


def series(run, metric):
    """What every seed logged: rows × seeds."""
    return np.array([row[metric] for row in run.metrics], float)


class TestThePage:
    def test_is_written_and_told(self, reported: Reported) -> None:
        size = reported.out.stat().st_size
        assert f"Written: {reported.out} ({size / 1000:,.0f} kB)" in reported.said.out

    def test_leaves_the_runs_as_they_were(self, reported: Reported) -> None:
        assert contents(reported.folder) == reported.before

    def test_is_small(self, reported: Reported) -> None:
        assert reported.out.stat().st_size < 1_000_000 < MOST_BYTES == 20_000_000

    def test_says_what_it_is(self, reported: Reported) -> None:
        page = reported.page
        assert reported.text.startswith("<!DOCTYPE html>\n")
        assert page.all("html")[0].attributes["lang"] == "en"
        assert [title.text for title in page.all("head")[0].all("title")] == ["samplr: icy_road"]
        (generator,) = [m for m in page.all("meta") if m.attributes.get("name") == "generator"]
        assert generator.attributes["content"] == f"samplr report {__version__}"

    def test_has_headings_in_order(self, reported: Reported) -> None:
        levels = [int(level) for level in re.findall(r"<h([1-6])", reported.text)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels))

    def test_asks_nobody_for_anything(self, reported: Reported) -> None:
        elsewhere = re.findall(r"(?:https?:|ftp:|//)[^\s\"'<>)]*", re.sub(r"data:[^\"]*", "data:", reported.text))
        assert elsewhere == ["https://arxiv.org/abs/2207.05219"]
        for element in reported.page.everything():
            for name in ("src", "srcset", "poster", "data", "action", "background", "xlink:href"):
                assert (element.attributes.get(name) or "data:").startswith("data:")
            assert element.tag not in ("script", "iframe", "object", "embed", "base")
            assert not [name for name in element.attributes if name.startswith("on")]
        assert [e.attributes["href"] for e in reported.page.all("a")] == [PAPER]
        assert [e.attributes["href"] for e in reported.page.all("link")] == ["data:,"]
        (style,) = reported.page.all("style")
        assert "url(" not in style.text
        assert "@import" not in style.text

    def test_forbids_the_browser_to_ask(self, reported: Reported) -> None:
        (policy,) = [m for m in reported.page.all("meta") if "http-equiv" in m.attributes]
        assert "default-src 'none'" in policy.attributes["content"]

    def test_takes_names_as_words(self, reported: Reported) -> None:
        assert NAME not in reported.text
        assert "a &lt;b&gt; &amp; " in reported.text
        assert reported.page.all("b") == []

    def test_tells_every_picture_in_words(self, reported: Reported) -> None:
        for image in reported.page.all("img"):
            assert len(image.attributes["alt"]) > 10
        for drawing in reported.page.all("svg", "chart"):
            assert "DR ends at" in drawing.attributes["aria-label"]
        for film in reported.page.all("video"):
            assert "plays a level" in film.attributes["aria-label"]


class TestWhatWasRun:
    def test_every_method_once_with_all_its_seeds(self, reported: Reported) -> None:
        header, dr, samplr = reported.page.table("What was run")
        assert header[:5] == ["method", "teacher", "grounding", "student", "seeds"]
        assert dr[:5] == ["DR", "dr", "naive", "PPO, mlp", "0–1"]
        assert samplr[:5] == ["SAMPLR", "robust_plr", "fictitious", "PPO, mlp", "0–3"]
        steps, learned = (reported.runs["samplr"].metrics[-1][name] for name in ("steps", "gradient_updates"))
        assert samplr[5:7] == [f"{steps:,}", str(learned)]
        assert re.fullmatch(r"\d+ s \+ \d+ s", samplr[7])
        assert samplr[8] == "cpu"

    def test_settings_that_are_not_the_usual_ones(self, reported: Reported) -> None:
        told = {dl.text for dl in reported.page.all("dl", "settings")}
        assert "segments 5" in told
        assert any("workers 8" in settings and "student.hidden 16" in settings for settings in told)

    def test_the_commands(self, reported: Reported) -> None:
        (block,) = reported.page.all("pre")
        assert block.text.count("samplr train icy_road") == 3
        assert "--method dr --env.segments 5" in block.text
        assert "--first-seed 2" in block.text


class TestResults:
    TABLE = "Results at the end of training, mean ± standard error over seeds"

    def test_a_row_for_every_method(self, reported: Reported) -> None:
        header, *rows = reported.page.table(self.TABLE)
        assert header == ["method", "return", "icy share", "ice learned from"]
        assert [row[0] for row in rows] == ["DR", "SAMPLR"]

    def test_mean_and_error_are_over_all_seeds_of_the_end(self, reported: Reported) -> None:
        rows = {row[0]: row for row in reported.page.table(self.TABLE)[1:]}
        for method, names in (("DR", ["dr"]), ("SAMPLR", ["samplr", "more"])):
            # Six lines were logged: their last tenth is the last, or what was known before where it has none.
            columns = [column for name in names for column in series(reported.runs[name], "new/return").T]
            expected = Estimate.of([column[~np.isnan(column)][-1] for column in columns])
            mean, error = (float(number.replace("−", "-")) for number in rows[method][1].split(" ± "))
            assert mean == pytest.approx(expected.mean, abs=0.06 * max(1, expected.standard_error))
            assert error == pytest.approx(expected.standard_error, rel=0.06)
            met = [m for name in names for m in reported.runs[name].summary["whole_run"]["shift/ice/met_mean"]]
            assert float(rows[method][3].split(" ± ")[0]) == pytest.approx(np.mean(met), abs=0.01)


class TestCurves:
    def test_the_return_by_steps_and_by_gradient_updates_and_the_other_figures(self, reported: Reported) -> None:
        names = [figure.all("figcaption")[0].text for figure in reported.page.all("figure") if figure.all("svg")]
        assert names == [
            "return by environment steps",
            "return by gradient updates",
            "icy share by environment steps",
            "ice in the levels played by environment steps",
            "ice in the transitions learned from by environment steps",
        ]

    def test_a_line_and_a_band_for_every_method(self, reported: Reported) -> None:
        for drawing in reported.page.all("svg", "chart"):
            lines = {group.all("title")[0].text: group.all("polyline")[0] for group in drawing.all("g")}
            assert list(lines) == ["DR", "SAMPLR"]
            assert len({line.attributes["class"] for line in lines.values()}) == 2
            assert len(drawing.all("polygon", "band")) == 2
            for line in lines.values():
                points = [tuple(map(float, point.split(","))) for point in line.attributes["points"].split()]
                assert 2 <= len(points) <= 6
                assert all(0 <= x <= 360 and 0 <= y <= 232 for x, y in points)
                assert points == sorted(points)

    def test_they_end_where_the_runs_ended(self, reported: Reported) -> None:
        shift = reported.page.all("svg", "chart")[3]
        met = np.concatenate([reported.runs[n].metrics[-1]["shift/ice/real_mean"] for n in ("samplr", "more")])
        assert f"SAMPLR ends at {met.mean():.3g}" in shift.attributes["aria-label"]

    def test_the_shift_is_shown_against_the_ground_truth(self, reported: Reported) -> None:
        for drawing in reported.page.all("svg", "chart"):
            assert ("ground truth" in drawing.text) == ("ice in the" in drawing.attributes["aria-label"])


class TestLevels:
    def icy(self, image) -> int:
        """The icy segments of a picture, of which the car hides none entirely."""
        picture = np.asarray(Image.open(io.BytesIO(decoded(image.attributes["src"]))))
        assert picture.shape == (24, 24 * 6, 3)
        return sum(bool((picture[4, 24 * i + 2] == ICE).all()) for i in range(5))

    def galleries(self, reported: Reported):
        return [gallery for gallery in reported.page.all("ul", "gallery") if gallery.all("img")]

    def test_ground_truth_then_the_seeds_of_every_method_that_keeps_levels(self, reported: Reported) -> None:
        counts = [len(gallery.all("img")) for gallery in self.galleries(reported)]
        assert counts == [6, 6, 3, 3, 3]
        assert "Every level is a fresh draw; none is kept." in reported.page.all("main")[0].text

    def test_pictures_show_the_ice_that_is_told(self, reported: Reported) -> None:
        for gallery in self.galleries(reported):
            for item in gallery.all("figure"):
                told = float(re.search(r"ice ([\d.]+)", item.all("figcaption")[0].text)[1])
                assert self.icy(item.all("img")[0]) == round(told * ROAD.segments)

    def test_the_likeliest_to_be_replayed_come_first_with_their_scores(self, reported: Reported) -> None:
        run = reported.runs["samplr"]
        replay = run.config.replay
        galleries = self.galleries(reported)[1:3]
        for seed, gallery in enumerate(galleries):
            buffer = jax.tree.map(lambda leaf, seed=seed: leaf[seed], run.teacher)
            kind = Prioritisation(replay.prioritisation)
            weights = np.asarray(replay_weights(buffer, kind, replay.temperature, replay.staleness))
            captions = [item.text for item in gallery.all("figcaption")]
            best = np.argsort(-weights, kind="stable")[: len(captions)]
            for slot, caption in zip(best, captions, strict=True):
                ice = float(np.mean(buffer.levels.aleatoric.bits[slot]))
                score = float(buffer.score[slot])
                assert caption == f"ice {ice:.2g} · score {score:.3g} · replayed with {weights[slot]:.1%}"

    def test_a_film_of_every_method(self, reported: Reported) -> None:
        films = reported.page.all("video")
        assert [film.attributes["aria-label"] for film in films] == [
            "DR, seed 0, plays a level",
            "SAMPLR, seed 0, plays a level",
        ]
        for film in films:
            pictures = list(imageio.imiter(decoded(film.attributes["src"]), extension=".mp4"))
            assert len(pictures) == ROAD.segments + 1
            assert pictures[0].shape == (24, 24 * 6, 3)
            assert film.attributes["poster"].startswith("data:image/png")
