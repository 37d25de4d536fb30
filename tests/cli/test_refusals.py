"""What the `samplr` command refuses for its words alone, and how it tells of other errors."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from samplr import run as run_module
from samplr.config import METHODS
from samplr.errors import SamplrError
from tiny import Said, command, contents, words

from .conftest import assert_refused


@pytest.mark.parametrize(
    ("arguments", "kind", "known"),
    [
        (["frobnicate"], "unknown command 'frobnicate'", "demo, eval, film, list, report, reproduce, train"),
        (
            ["train", "moon"],
            "unknown environment 'moon'",
            "black_ice, black_ice_sketch, fruit_choice, icy_road, my_package:MyEnv",
        ),
        (["train", "icy_road", "--method", "magic"], "unknown method 'magic'", ", ".join(sorted(METHODS))),
        (["train", "icy_road", "--method=magic"], "unknown method 'magic'", ", ".join(sorted(METHODS))),
        (
            ["train", "icy_road", "--replay.score", "luck"],
            "unknown score 'luck'",
            "exact_regret, grounded_regret, l1_value_loss, max_mc, positive_value_loss",
        ),
    ],
    ids=["command", "environment", "method", "method=", "score"],
)
def test_an_unknown_name_is_told_with_the_known_ones(
    tmp_path: Path, arguments: list[str], kind: str, known: str
) -> None:
    out = [] if len(arguments) == 1 else ["--out", tmp_path / "run"]
    assert_refused(command(*arguments, *out), f"{kind}: choose one of {known}\n")
    assert contents(tmp_path) == {}


def test_an_error_of_a_real_process_is_one_line_and_status_2() -> None:
    program = "from samplr.cli import main; raise SystemExit(main())"
    done = subprocess.run([sys.executable, "-c", program, "frobnicate"], capture_output=True, text=True)
    assert_refused(Said(done.returncode, done.stdout, done.stderr), "unknown command 'frobnicate'")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no_such_package:MyEnv", "cannot be imported: No module named 'no_such_package'"),
        ("json:MyEnv", "cannot be imported: module 'json' has no attribute 'MyEnv'"),
        ("json:loads", "is not a subclass of samplr.envs.api.Environment"),
        ("json:JSONDecoder", "is not a subclass of samplr.envs.api.Environment"),
        (":MyEnv", "':MyEnv'"),
        (".relative:MyEnv", "'.relative:MyEnv'"),
        ("garbled:MyEnv", "'garbled:MyEnv'"),
        ("failing:MyEnv", "'failing:MyEnv'"),
        ("my_worlds:Unfinished", "'my_worlds:Unfinished'"),
        ("my_worlds:Demanding", "'my_worlds:Demanding'"),
    ],
)
def test_an_environment_that_cannot_be_had_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worlds: str, name: str, told: str
) -> None:
    (tmp_path / "garbled.py").write_text("class MyEnv(:\n")
    (tmp_path / "failing.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert_refused(command("train", name, "--out", tmp_path / "run"), f"environment '{name}'", told)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("arguments", [[], ["--out", "somewhere"]])
def test_train_wants_the_environment_first(arguments: list[str]) -> None:
    assert_refused(command("train", *arguments), "name the environment first: samplr train ENV --out DIR")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"steps": 0}, "--steps must be at least 1, not 0"),
        ({"steps": -5}, "--steps must be at least 1, not -5"),
        ({"first_seed": 2**31 - 2}, "--first-seed must leave all seeds in 32 bits, and the last is"),
        ({"student__hidden": 0}, "--student.hidden[0] must be at least 1, not 0"),
        ({"env__alpha": -1}, "an icy road needs a positive alpha, not -1"),
        ({"seeds": 0}, "--seeds must be at least 1, not 0"),
        ({"gradient_updates": 0}, "--gradient-updates must be at least 1, not 0"),
        ({"replay__rate": 1.5}, "--replay.rate must lie between 0 and 1, not 1.5"),
        ({"student__minibatches": 7}, "--student.minibatches 7 does not divide"),
        ({"replay__score": "max_mc"}, "--replay.score max_mc judges by hindsight"),
        ({"student__encoder": "eyes"}, "unknown encoder 'eyes': choose one of mlp"),
        ({"student__memory": -1}, "--student.memory"),
        ({"env__segments": 0}, "segments"),
        ({"teacher": "fixed", "replay__capacity": None}, "--teacher fixed needs --presents SUITE"),
        ({"student__policy_gain": 0}, "--student.policy-gain must be a positive number, not 0"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_configuration_that_cannot_be_trained_is_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    assert_refused(command("train", "icy_road", *words(**options), "--out", tmp_path / "run"), told)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["train", "icy_road"],
            "missing from samplr train icy_road: --out PATH The run folder: configuration, metrics,",
        ),
        (["train", "icy_road", "--out", "run", "--steps", "many"], "error parsing --steps: invalid literal for int()"),
        (["train", "icy_road", "--out", "run", "--teacher", "nobody"], "invalid choice 'nobody'"),
        (["train", "icy_road", "--out", "run", "--no-such-option"], "unrecognized options: --no-such-option"),
        (["train", "icy_road", "--out", "run", "--stpes", "9"], "--stpes, 9; perhaps you meant --steps (see samplr"),
        (["eval"], "missing from samplr eval: PATH The run folder, or a file of policies (see samplr eval --help)"),
        (
            ["list", "regrets"],
            "invalid choice 'regrets' for argument 'what'. Expected one of ('envs', 'methods', 'suites')",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
@pytest.mark.parametrize("columns", [40, 200])
def test_words_that_cannot_be_parsed_are_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str, columns: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert_refused(command(*arguments), told, f"(see samplr {arguments[0]}")
    assert contents(tmp_path) == {}


def test_options_that_a_method_does_not_use_are_told_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise SamplrError("stopped here")

    monkeypatch.setattr(run_module, "train", stopped)
    said = command("train", "icy_road", *words(method="dr"), "--out", tmp_path / "run")
    assert said.err == (
        "samplr: warning: --replay.capacity has no effect: teacher 'dr' replays no levels\nsamplr: stopped here\n"
    )


def test_a_device_without_enough_memory_is_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*_: Any, **__: Any) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")

    monkeypatch.setattr(run_module, "train", too_large)
    said = command("train", "icy_road", *words(), "--out", tmp_path / "run")
    assert_refused(said, "the device is out of memory: try fewer --seeds")


def test_other_errors_of_a_device_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    monkeypatch.setattr(run_module, "train", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        command("train", "icy_road", *words(), "--out", tmp_path / "run")


def test_an_ungrounded_environment_is_refused_by_fictitious(tmp_path: Path, worlds: str) -> None:
    said = command("train", f"{worlds}:Ungrounded", "--out", tmp_path / "run")
    assert_refused(said, "Ungrounded has no posterior", "choose 'none' or 'naive'")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("prior", ["known", "estimated"])
def test_a_posterior_that_cannot_be_summed_is_refused_before_anything_is_done(tmp_path: Path, prior: str) -> None:
    options = ["--method", "samplr", "--fictitious.samples", "exact", "--fictitious.prior", prior]
    said = command("train", "black_ice_sketch", *options, "--out", tmp_path / "run")
    assert_refused(said, "BetaBernoulli cannot be summed exactly: give a number of samples instead of 'exact'")
    assert not (tmp_path / "run").exists()


def test_a_keyboard_interrupt_is_one_line_and_status_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "train", interrupted)
    said = command("train", "icy_road", "--out", tmp_path / "run")
    assert (said.status, said.out) == (130, "")
    assert said.err == "samplr: stopped; --resume goes on from here\n"
