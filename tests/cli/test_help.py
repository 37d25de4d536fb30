"""What the `samplr` command tells of itself: its commands, settings, names and version."""

import subprocess
import sys

import pytest

import samplr
from samplr.config import METHODS
from samplr.envs.black_ice import BlackIce, SketchedBlackIce
from samplr.envs.fruit_choice import FruitChoice
from samplr.envs.icy_road.world import EVALUATED_RATES, IcyRoad
from tiny import command


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_without_a_command_the_commands_are_shown(arguments: list[str]) -> None:
    said = command(*arguments)
    assert (said.status, said.err) == (0, "")
    for name in ("demo", "train", "eval", "film", "list"):
        assert f"samplr {name} " in said.out


@pytest.mark.parametrize("arguments", [["train", "--help"], ["train", "icy_road", "--help"]])
def test_the_help_of_train_shows_the_settings_of_the_environment(arguments: list[str]) -> None:
    said = command(*arguments)
    assert (said.status, said.err) == (0, "")
    assert "--env.segments" in said.out
    assert "Number of segments of the road." in said.out
    assert "--student.learning-rate" in said.out


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (
            "envs",
            {
                "icy_road": {"what": (IcyRoad.__doc__ or "").split("\n")[0]},
                "black_ice": {"what": (BlackIce.__doc__ or "").split("\n")[0]},
                "black_ice_sketch": {"what": (SketchedBlackIce.__doc__ or "").split("\n")[0]},
                "fruit_choice": {"what": (FruitChoice.__doc__ or "").split("\n")[0]},
            },
        ),
        ("methods", {name: {"teacher": pair[0], "grounding": pair[1]} for name, pair in METHODS.items()}),
        (
            "suites",
            {
                "icy_road ground_truth": {"conditions": ["ground_truth"]},
                "icy_road fixed_rates": {"conditions": [f"q={rate:g}" for rate in EVALUATED_RATES]},
                **{
                    f"{world} {name}": {"conditions": list(suite)}
                    for world in ("black_ice", "black_ice_sketch")
                    for name, suite in BlackIce().suites().items()
                },
                **{
                    f"fruit_choice {name}": {"conditions": list(suite)}
                    for name, suite in FruitChoice().suites().items()
                },
            },
        ),
    ],
)
def test_list_shows_what_there_is(what: str, expected: dict[str, dict[str, str]]) -> None:
    assert command("list", what, "--json").json == expected
    table = command("list", what)
    assert (table.status, table.err) == (0, "")
    for name in expected:
        assert name in table.out


def test_the_version_is_told() -> None:
    assert command("--version").out == f"samplr {samplr.__version__}\n"
    program = [sys.executable, "-m", "samplr", "--version"]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout == command("--version").out
