"""Galleries of worlds and teachers that have no pictures, or no levels, to show."""

from samplr.config import default_config
from samplr.envs.icy_road import IcyRoad
from samplr.report.contents import Portrait, WorldContents
from samplr.report.gallery import Curriculum, Shown
from samplr.report.levels import films_section, levels_section
from samplr.report.runs import sort_by_world

from .html import Page
from .test_runs import batch


def shown(*curricula: Curriculum, method: str = "samplr") -> Page:
    (world,) = sort_by_world([batch("a", default_config(IcyRoad(), method))])
    contents = WorldContents(world, [Shown(None, {"ice": 0.25})], [Portrait(world.methods[0], list(curricula), None)])
    assert films_section(contents) == ""
    return Page.of(levels_section(contents))


def test_levels_without_pictures_are_told_by_their_facts() -> None:
    page = shown(Curriculum(3, 17, [Shown(None, {"ice": 0.5, "wind": 1.0}, score=0.1234, weight=0.25)], {"ice": 0.3}))
    assert "this world draws no pictures" in page.root.text
    assert page.all("img") == []
    assert [caption.text for caption in page.all("figcaption")] == [
        "ice 0.25",
        "ice 0.5, wind 1 · score 0.123 · replayed with 25.0%",
    ]
    assert "Seed 3 keeps 17 levels" in page.root.text
    assert "by replay weight: ice 0.3." in page.root.text


def test_other_seeds_are_folded_away() -> None:
    of_seed = [Curriculum(seed, 1, [Shown(None, {})], {}) for seed in range(3)]
    assert [summary.text for summary in shown(*of_seed[:2]).all("summary")] == ["The other seed"]
    assert [summary.text for summary in shown(*of_seed).all("summary")] == ["The other 2 seeds"]
    assert shown(of_seed[0]).all("details") == []


def test_a_method_without_levels_says_why() -> None:
    assert "There is no room for its levels on this page." in shown().root.text
    assert "Every level is a fresh draw; none is kept." in shown(method="dr").root.text
