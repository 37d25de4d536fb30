"""`samplr train`: what it prints and writes, a configuration of one's own and a world of one's own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from samplr import run as run_module
from samplr.config import to_json
from samplr.store import read_config, read_metrics
from tiny import (
    STEPS_PER_UPDATE,
    UPDATES,
    Said,
    assert_same_run,
    command,
    contents,
    sharing_programs,
    summary,
    tiny_config,
    words,
)

from .conftest import assert_refused, json_file
from .worlds import importable_worlds

# What it prints and writes.


def test_train_writes_a_run_folder(trained: Path) -> None:
    assert {entry.name for entry in trained.iterdir()} == {
        ".lock",
        "checkpoints",
        "config.json",
        "metrics.jsonl",
        "summary.json",
        "tensorboard",
    }
    assert read_config(trained) == to_json(tiny_config())
    assert [row["update"] for row in read_metrics(trained)] == [4, 8, 12, 16, 20, 24]
    assert [row["steps"] for row in read_metrics(trained)] == [update * STEPS_PER_UPDATE for update in range(4, 25, 4)]
    assert sorted(folder.name for folder in (trained / "tensorboard").iterdir()) == [f"run_{i}" for i in range(4)]
    assert [folder.name for folder in sorted((trained / "checkpoints").iterdir())] == ["000000020", "000000024"]
    told = summary(trained)
    assert (told["method"], told["seeds"], told["updates"]) == ("samplr", [0, 1, 2, 3], UPDATES)
    assert len(told["last"]["replay/return"]) == 4
    assert told["warnings"] == []


def test_train_shows_a_table_and_progress_apart(training: tuple[Path, Said]) -> None:
    said = training[1]
    assert said.status == 0
    assert f"samplr: {UPDATES * STEPS_PER_UPDATE:,} steps × 4 runs" in said.out
    assert "student/entropy" in said.out
    assert "steps/s" in said.err
    assert "steps/s" not in said.out


def test_json_is_json_also_where_there_is_nothing_to_average(tmp_path: Path) -> None:
    said = command("train", "icy_road", *words(steps=1), "--out", tmp_path / "run", "--json")
    assert said.json == summary(tmp_path / "run")


# A configuration of one's own.


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("not JSON", "is not JSON"),
        ("{}", "a configuration names its environment"),
        ('{"env": {"name": "moon"}}', "unknown environment 'moon'"),
        ('{"env": {"name": "icy_road"}, "stairs": 1}', "unknown configuration field 'stairs'"),
        ('{"env": {"name": "icy_road", "segments": "long"}}', "segments cannot be 'long': it must be int"),
        ('{"env": {"name": "icy_road"}, "teacher": "nobody"}', "unknown teacher 'nobody'"),
        ('{"env": {"name": "icy_road"}, "steps": 0}', "--steps must be at least 1, not 0"),
        ("[]", "config.json'"),
        ('{"config": 3}', "env"),
        ('{"env": "icy_road"}', "env"),
        ('{"env": {"name": 7}}', "7"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    assert_refused(command("train", "icy_road", "--config", file, "--out", tmp_path / "run"), told)
    assert contents(tmp_path) == {"config.json": text.encode()}


def test_a_configuration_of_another_environment_is_refused(trained: Path, tmp_path: Path, worlds: str) -> None:
    file = trained / "config.json"
    said = command("train", f"{worlds}:Guess", "--config", file, "--out", tmp_path / "run")
    assert_refused(said, f"'{file}' configures another environment than my_worlds:Guess")
    assert not (tmp_path / "run").exists()


def test_an_unknown_method_beside_a_configuration_is_refused(trained: Path, tmp_path: Path) -> None:
    config = trained / "config.json"
    said = command("train", "icy_road", "--config", config, "--method", "magic", "--out", tmp_path / "run")
    assert_refused(said, "unknown method 'magic': choose one of dr, naive, plr, robust_plr, samplr")


@pytest.fixture(scope="module")
def repeated(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    """A run from the configuration of a finished one, with --json."""
    path = tmp_path_factory.mktemp("cli") / "repeated"
    with sharing_programs():
        return path, command("train", "icy_road", "--config", trained / "config.json", "--out", path, "--json")


def test_train_with_json_prints_the_summary_and_nothing_else(repeated: tuple[Path, Said]) -> None:
    path, said = repeated
    assert (said.status, said.err) == (0, "")
    assert said.json == summary(path)


def test_a_run_from_the_configuration_of_another_is_the_same_bit_for_bit(
    repeated: tuple[Path, Said], trained: Path
) -> None:
    path, _ = repeated
    assert (path / "config.json").read_bytes() == (trained / "config.json").read_bytes()
    assert_same_run(path, trained)


def test_a_configuration_alone_will_do_and_options_change_it(trained: Path, tmp_path: Path) -> None:
    file = json_file(tmp_path / "mine.json", {**read_config(trained), "log_every": 6})
    said = command("train", "icy_road", "--config", file, "--out", tmp_path / "run", "--json", "--steps", 12 * 96)
    assert (said.status, said.json["updates"]) == (0, 12)
    assert [row["update"] for row in read_metrics(tmp_path / "run")] == [6, 12]


def test_a_method_beside_a_configuration_changes_teacher_and_grounding_only(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def train(config: Any, *_: Any, **__: Any) -> None:
        asked.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "train", train)
    command("train", "icy_road", "--config", trained / "config.json", "--method", "dr", "--out", tmp_path / "run")
    assert to_json(asked[0]) == {**read_config(trained), "teacher": "dr", "grounding": "naive"}


# A world of one's own.


@pytest.fixture(scope="module")
def guessed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Said]]:
    """A user's own world under a pair of teacher and grounding that has no name."""
    folder = tmp_path_factory.mktemp("guessed")
    options = words(teacher="dr", grounding="fictitious", replay__capacity=None, env__rounds=4)
    with sharing_programs(), importable_worlds(folder) as worlds:
        yield folder / "run", command("train", f"{worlds}:Guess", *options, "--out", folder / "run", "--json")


def test_a_teacher_and_a_grounding_without_a_common_name_are_trained(guessed: tuple[Path, Said]) -> None:
    path, said = guessed
    assert (said.status, said.err) == (0, "")
    assert said.json["method"] == "dr+fictitious"
    # A student of `dr` learns from every rollout …
    assert read_metrics(path)[-1]["gradient_updates"] == UPDATES
    # … and with `fictitious` from draws of the posterior instead of the coin that really lay there.
    shift = said.json["whole_run"]
    assert all(0 < met < 1 for met in shift["shift/heads/met_mean"])
    assert shift["shift/heads/met_mean"] != shift["shift/heads/real_mean"]


def test_a_users_own_environment_is_trained_and_played_by_its_import_path(guessed: tuple[Path, Said]) -> None:
    path, said = guessed
    assert said.json["env"] == {"name": "my_worlds:Guess", "rounds": 4}
    assert read_config(path)["env"] == said.json["env"]
    played = command("eval", path, "--json", "--episodes", 5).json["ground_truth"]
    assert played["length"]["per_run"] == [4.0] * 4
