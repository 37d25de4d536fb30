"""The runs of a report: found, sorted, named, and the commands that would train them again."""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest

from samplr import cli
from samplr.config import Config, default_config, to_json
from samplr.envs.black_ice import BlackIce
from samplr.envs.icy_road import IcyRoad
from samplr.errors import RunFolderError
from samplr.report.runs import Batch, command, differences, find_run_folders, sort_by_world
from samplr.run import Run

ROAD = IcyRoad(segments=5)


def batch(path: str, config: Config, updates: int = 10) -> Batch:
    """A run folder as it is read, without anything learned."""
    seeds = list(range(config.first_seed, config.first_seed + config.seeds))
    summary = {"seeds": seeds, "updates": updates, "steps": updates * config.workers * config.rollout}
    return Batch(Path(path), Run(config, None, [], summary), {"samplr": "1"}, seconds=1.0, device="x")


def titles(*batches: Batch) -> list[list[tuple[str, list[int]]]]:
    return [[(method.title, method.seeds) for method in world.methods] for world in sort_by_world(batches)]


class TestSorting:
    def test_seeds_of_one_configuration_are_put_together(self) -> None:
        two = default_config(ROAD, "samplr", seeds=2)
        more = dataclasses.replace(two, seeds=3, first_seed=2, log_every=7, checkpoint_seconds=1.0)
        assert titles(batch("b", more), batch("a", two)) == [[("SAMPLR", [0, 1, 2, 3, 4])]]

    def test_a_seed_counts_once(self) -> None:
        config = default_config(ROAD, "dr")
        assert titles(batch("a", config), batch("b", config)) == [[("DR (a)", [0]), ("DR (b)", [0])]]

    def test_runs_that_have_come_less_far_are_apart(self) -> None:
        one, other = default_config(ROAD, "dr"), default_config(ROAD, "dr", first_seed=1)
        found = titles(batch("a", one, updates=10), batch("b", other, updates=20))
        assert found == [[("DR, 7,680 steps", [0]), ("DR, 15,360 steps", [1])]]

    def test_methods_come_in_their_usual_order_and_are_told_apart_by_their_settings(self) -> None:
        four = default_config(ROAD, "samplr", fictitious__samples=4, workers=8)
        exact = default_config(ROAD, "samplr", fictitious__samples="exact", workers=8)
        plain = default_config(ROAD, "robust_plr", workers=8)
        (world,) = sort_by_world([batch("a", four), batch("b", exact), batch("c", plain)])
        names = ["PLR⊥", "SAMPLR, samples=4", "SAMPLR, samples=exact"]
        assert [method.title for method in world.methods] == names
        assert world.shared == {"workers": 8}
        assert world.settings == {"env.segments": 5}

    def test_settings_are_called_by_their_short_names_where_those_are_clear(self) -> None:
        student = default_config(ROAD, "dr", student__epochs=2)
        belief = default_config(ROAD, "dr", belief__epochs=3, student__clip=0.1)
        (found,) = titles(batch("a", student), batch("b", belief))
        assert [title for title, _ in found] == ["DR, student.epochs=2", "DR, clip=0.1, belief.epochs=3"]

    def test_worlds_are_apart(self) -> None:
        here, there = default_config(ROAD, "dr"), default_config(IcyRoad(segments=6), "dr")
        assert len(sort_by_world([batch("a", here), batch("b", there)])) == 2

    def test_a_pair_without_a_name_is_called_by_both(self) -> None:
        config = dataclasses.replace(default_config(ROAD, "dr"), grounding="fictitious")
        assert titles(batch("a", config)) == [[("dr+fictitious", [0])]]


class TestCommand:
    @pytest.mark.parametrize(
        "config",
        [
            default_config("icy_road", "samplr"),
            default_config(IcyRoad(segments=5, show_counts=False), "naive", seeds=3, student__hidden=(8, 9)),
            dataclasses.replace(default_config("icy_road", "dr"), grounding="fictitious", gradient_updates=7),
            default_config("icy_road", "samplr", fictitious__samples="exact", student__clip_values=True, steps=5),
            default_config(BlackIce(frame_stack=2, show_evidence=True), "robust_plr", student__learning_rate=3e-4),
        ],
        ids=["defaults", "world", "pair", "nested", "black ice"],
    )
    def test_trains_the_same_again(self, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []

        def note(settings: Config, out: Path, **_: Any) -> Run:
            asked.append((settings, out))
            return Run(settings, None, [], {"method": "", "steps": 0, "seeds": [], "last": {}, "whole_run": {}})

        monkeypatch.setattr("samplr.run.train", note)
        words = shlex.split(" ".join(command(batch("runs/a b; c", config))))
        assert words[0] == "samplr"
        assert cli.main(words[1:]) == 0
        assert differences(asked[0][0]) == differences(config)
        assert to_json(asked[0][0]) == to_json(config)
        assert asked[0][1] == Path("runs/a b; c")

    def test_says_nothing_that_is_usual(self) -> None:
        config = default_config("icy_road", "samplr", seeds=2)
        assert command(batch("x", config)) == ["samplr train icy_road", "--method samplr", "--seeds 2", "--out x"]


class TestFinding:
    @pytest.fixture
    def folders(self, tmp_path: Path) -> Path:
        for name in ("study/runs/dr", "study/runs/plr", "alone"):
            (tmp_path / name / "checkpoints").mkdir(parents=True)
            (tmp_path / name / "config.json").write_text("{}")
        return tmp_path

    def test_runs_within_folders_each_once(self, folders: Path) -> None:
        found = find_run_folders([folders / "study", folders / "alone", folders / "study" / "runs" / "dr"])
        assert found == [folders / "study/runs/dr", folders / "study/runs/plr", folders / "alone"]

    def test_none_is_no_error_but_no_folder_is(self, folders: Path) -> None:
        assert find_run_folders([folders / "alone" / "checkpoints"]) == []
        with pytest.raises(RunFolderError, match="is not a folder"):
            find_run_folders([folders / "alone" / "config.json"])
