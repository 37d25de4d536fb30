"""The page in a real browser: no complaints, no requests, everything is seen, also on a phone."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from samplr.report.page import write_report

from .browser import Browser, find_chromium
from .conftest import Reported

CHROMIUM = find_chromium()

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine to open the page in"),
    # The child of the fork becomes Chromium at once.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]

DESKTOP, PHONE = (1280, 900), (390, 844)
DECODED = "Promise.all([...document.images].map(i => i.decode().then(() => i.naturalWidth)))"
HEIGHTS = "[...document.images].filter(i => !i.closest('details')).map(i => i.getBoundingClientRect().height)"
PLAYABLE = """Promise.all([...document.querySelectorAll('video')].map(v => new Promise(tell => {
  if (v.readyState >= 2) tell(v.duration);
  v.oncanplay = () => tell(v.duration);
  v.onerror = () => tell(v.error.message || 'error');
  v.preload = 'auto'; v.load();
})))"""
WIDEST = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"


@pytest.fixture(scope="module")
def browser(reported: Reported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The page, opened on a desktop."""
    with Browser(str(CHROMIUM), tmp_path_factory.mktemp("chromium")) as opened:
        opened.look(*DESKTOP)
        opened.open(reported.out)
        yield opened


def test_all_that_is_published_fits_on_one_small_page(tmp_path: Path) -> None:
    out = tmp_path / "published.html"
    assert write_report([Path(__file__).resolve().parents[2] / "results"], out) < 20_000_000
    with Browser(str(CHROMIUM), tmp_path / "profile") as opened:
        opened.look(*PHONE)
        opened.open(out)
        assert min(opened.evaluate(DECODED)) > 0
        assert opened.evaluate("document.querySelectorAll('section.study').length") > 5
        assert opened.evaluate(WIDEST) <= PHONE[0]
        asked = {event["request"]["url"] for event in opened.told("Network.requestWillBeSent")}
        assert {url for url in asked if not url.startswith("data:")} == {out.as_uri()}
        assert [entry["entry"]["text"] for entry in opened.told("Log.entryAdded")] == []


def test_images_and_films_can_be_seen(browser: Browser, reported: Reported) -> None:
    widths = browser.evaluate(DECODED)
    assert len(widths) == len(reported.page.all("img")) > 0
    assert all(width > 0 for width in widths)
    # Of the first seed and the ground truth; those of other seeds are folded away.
    heights = browser.evaluate(HEIGHTS)
    assert len(heights) == 12
    assert min(heights) > 20
    if browser.evaluate("document.createElement('video').canPlayType('video/mp4; codecs=\"avc1.64000a\"')"):
        assert browser.evaluate(PLAYABLE) == pytest.approx([1.5, 1.5], abs=0.3)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_is_wider_than_the_screen(browser: Browser, size: tuple[int, int]) -> None:
    browser.look(*size)
    assert browser.evaluate("window.innerWidth") == size[0]
    assert browser.evaluate(WIDEST) <= size[0]


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_tables_and_charts_are_seen(browser: Browser, size: tuple[int, int]) -> None:
    browser.look(*size)
    for selector, count in (("table", 2), ("svg.chart", 5)):
        boxes = browser.evaluate(
            f"[...document.querySelectorAll('{selector}')].map(e => e.getBoundingClientRect().toJSON())"
        )
        assert len(boxes) == count
        for box in boxes:
            assert box["width"] > 250
            assert box["height"] > 50
    letters = browser.evaluate(
        "Math.min(...[...document.querySelectorAll('svg.chart text')].map(e => e.getBoundingClientRect().height))"
    )
    assert letters >= 11


def test_light_and_dark_differ_and_are_both_drawn(browser: Browser, tmp_path) -> None:
    means = {}
    for dark in (False, True):
        browser.look(*DESKTOP, dark=dark)
        browser.screenshot(tmp_path / f"{dark}.png")
        picture = np.asarray(Image.open(tmp_path / f"{dark}.png").convert("L"), float)
        assert picture.shape[0] > 1500
        assert picture.std() > 10
        means[dark] = picture.mean()
    assert means[False] > 200
    assert means[True] < 70


def test_words_stand_out_from_the_page(browser: Browser) -> None:
    """A contrast of 4.5 to 1 at least, as WCAG asks for, in light and in dark."""
    for dark in (False, True):
        browser.look(*DESKTOP, dark=dark)
        style = "getComputedStyle(document.documentElement).getPropertyValue"
        for ink in ("--ink", "--faint", "--accent"):
            for paper in ("--paper", "--card", "--code"):
                a, b = (_luminance(browser.evaluate(f"{style}('{name}')")) for name in (ink, paper))
                assert (max(a, b) + 0.05) / (min(a, b) + 0.05) >= 4.5, (dark, ink, paper)


def _luminance(colour: str) -> float:
    parts = np.array([int(colour.strip()[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_it_can_be_printed(browser: Browser) -> None:
    browser.look(800, 1100, media="print")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate(WIDEST) <= 800


def test_no_complaints_and_no_requests(browser: Browser, reported: Reported) -> None:
    # The last of the tests, so that it covers all that the others have made the page do.
    asked = {event["request"]["url"] for event in browser.told("Network.requestWillBeSent")}
    assert {url for url in asked if not url.startswith("data:")} == {reported.out.as_uri()}
    assert [entry["entry"]["text"] for entry in browser.told("Log.entryAdded")] == []
    assert browser.told("Runtime.consoleAPICalled") == browser.told("Runtime.exceptionThrown") == []
