"""The `samplr` command: what it prints, what it writes, and how it fails."""

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import samplr
from samplr import run as run_module
from samplr.config import METHODS, to_json
from samplr.envs.black_ice import BlackIce, SketchedBlackIce
from samplr.envs.fruit_choice import FruitChoice
from samplr.envs.icy_road.world import EVALUATED_RATES, IcyRoad
from samplr.errors import SamplrError
from samplr.evaluation import evaluate
from samplr.posteriors import BernoulliField
from samplr.store import RunFolder, checkpoints, read_checkpoint, read_config, read_metrics
from store.runs import truncate
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

SEGMENTS = 12

WORLDS = '''
"""A user's own worlds."""

import equinox as eqx
import jax
import jax.numpy as jnp

from samplr import Environment, GroundedEnvironment, TimeStep
from samplr.envs.spaces import Box, Discrete
from samplr.posteriors import Posterior


class Coin(Posterior):
    """Tosses the coin again unless it was seen."""

    def sample(self, belief, evidence, *, key):
        seen, heads = evidence
        return jnp.where(seen, heads, jax.random.bernoulli(key))


class Guess(GroundedEnvironment):
    """Guess on which side a hidden coin lies, several times in a row."""

    rounds: int = 3
    """How often to guess."""

    observation_space = Box((2,))
    action_space = Discrete(2)
    posterior = Coin()
    observation_is_sufficient = True

    def sample_layout(self, *, key):
        return None

    def sample_aleatoric(self, layout, *, key):
        return jax.random.bernoulli(key)

    def reset(self, world, aleatoric, *, key):
        state = (jnp.int32(0), aleatoric)
        return state, self.observe(world, state)

    def step(self, world, state, action, *, key):
        time, heads = state
        after = (time + 1, heads)
        reward = jnp.where((action == 1) == heads, 1.0, 0.0)
        return TimeStep(after, self.observe(world, after), reward, time + 1 >= self.rounds, jnp.array(False))

    def observe(self, world, state):
        return jnp.stack(self.evidence(state)).astype(float)

    def evidence(self, state):
        time, heads = state
        return time > 0, heads & (time > 0)

    def substitute(self, state, aleatoric):
        time, heads = state
        return time, jnp.where(time > 0, heads, aleatoric)

    def summaries(self, aleatoric):
        return {"heads": aleatoric.astype(float)}


class Ungrounded(Environment):
    """The same game without a posterior."""

    observation_space = Box((2,))
    action_space = Discrete(2)
    sample_layout, sample_aleatoric = Guess.sample_layout, Guess.sample_aleatoric
    reset, step = Guess.reset, Guess.step


class Unfinished(Environment):
    """Lacks nearly everything."""


class Demanding(Guess):
    """Has a setting without a default."""

    stake: float = eqx.field(kw_only=True)
'''


@pytest.fixture(autouse=True)
def _shared_programs() -> Iterator[None]:
    with sharing_programs():
        yield


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    """A finished run, not to be changed, and what the command said."""
    path = tmp_path_factory.mktemp("cli") / "run"
    with sharing_programs():
        return path, command("train", "icy_road", *words(), "--out", path)


@pytest.fixture(scope="module")
def trained(training: tuple[Path, Said]) -> Path:
    return training[0]


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """The same, for a test to change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@contextlib.contextmanager
def importable_worlds(folder: Path) -> Iterator[str]:
    """The name of a module with the user's own worlds, which can be imported in here."""
    (folder / "my_worlds.py").write_text(WORLDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield "my_worlds"
    sys.modules.pop("my_worlds", None)


@pytest.fixture
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with importable_worlds(tmp_path_factory.mktemp("worlds")) as name:
        yield name


def json_file(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data))
    return path


def newest(run: Path, back: int = 0) -> Path:
    return sorted((run / "checkpoints").iterdir())[-1 - back]


# Errors: one line, status 2, and nothing touched.


def assert_refused(said: Said, *parts: str) -> None:
    """One sentence for the user, which has these parts, and nothing else."""
    assert said.status == 2
    assert said.out == ""
    assert said.err.startswith("samplr: ")
    assert said.err.count("\n") == 1
    assert said.err.endswith("\n")
    for part in parts:
        assert part in said.err


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


def test_an_unknown_suite_is_told_with_the_known_ones(trained: Path) -> None:
    before = contents(trained)
    said = command("eval", trained, "--suite", "vacation")
    assert_refused(said, "unknown suite 'vacation': choose one of fixed_rates, ground_truth\n")
    assert contents(trained) == before


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
    "arguments",
    [
        ["train", "icy_road"],
        ["train", "icy_road", "--out", "run", "--steps", "many"],
        ["train", "icy_road", "--out", "run", "--teacher", "nobody"],
        ["train", "icy_road", "--out", "run", "--no-such-option"],
        ["eval"],
        ["list", "regrets"],
    ],
    ids=lambda words: words[-1],
)
def test_words_that_cannot_be_parsed_end_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    # The words are tyro's: several lines, with the help of the option.
    monkeypatch.chdir(tmp_path)
    said = command(*arguments)
    assert (said.status, said.out) == (2, "")
    assert said.err != ""
    assert contents(tmp_path) == {}


def test_a_folder_that_holds_a_run_is_not_trained_over(run: Path) -> None:
    before = contents(run)
    said = command("train", "icy_road", *words(), "--out", run)
    assert_refused(said, f"'{run}' holds files already: choose another --out, or pass --resume")
    assert contents(run) == before


@pytest.mark.parametrize(
    ("resume", "told"), [([], "holds files already"), (["--resume"], "holds files but no config.json")]
)
def test_a_folder_that_holds_other_files_is_not_trained_into(tmp_path: Path, resume: list[str], told: str) -> None:
    (tmp_path / "chapter.tex").write_text("precious")
    assert_refused(command("train", "icy_road", *words(), "--out", tmp_path, *resume), told)
    assert contents(tmp_path) == {"chapter.tex": b"precious"}


@pytest.fixture
def lock_elsewhere() -> Iterator[Callable[[Path], int]]:
    """Lets another process lock a folder as a run does, and gives its pid."""
    program = (
        "import fcntl, os, sys; lock = open(sys.argv[1], 'w'); fcntl.flock(lock, fcntl.LOCK_EX);"
        "print(os.getpid(), file=lock, flush=True); print('locked', flush=True); sys.stdin.read()"
    )
    others: list[subprocess.Popen[bytes]] = []

    def lock(folder: Path) -> int:
        other = subprocess.Popen(
            [sys.executable, "-c", program, folder / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        others.append(other)
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        return other.pid

    yield lock
    for other in others:
        other.communicate()


@pytest.mark.parametrize("begun", [True, False], ids=["a_run_to_resume", "a_run_that_just_begins"])
def test_a_folder_in_use_by_another_process_is_refused(
    run: Path, tmp_path: Path, lock_elsewhere: Callable[[Path], int], begun: bool
) -> None:
    if not begun:
        run = tmp_path / "fresh"
        run.mkdir()
    pid = lock_elsewhere(run)
    before = contents(run)
    said = command("train", "icy_road", *words(steps=5000), "--out", run, *(["--resume"] if begun else []))
    assert_refused(said, f"'{run}' is being written by another process (pid {pid})")
    assert contents(run) == before


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"student__hidden": 8}, "student.hidden is [16] there and [8] here"),
        ({"env__beta": 14.0}, "env.beta is 15.0 there and 14.0 here"),
        ({"method": "dr", "replay__capacity": None}, "teacher is 'robust_plr' there and 'dr' here"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_run_is_not_resumed_with_another_configuration(run: Path, options: dict[str, Any], difference: str) -> None:
    before = contents(run)
    said = command("train", "icy_road", *words(**options), "--out", run, "--resume")
    assert_refused(said, f"'{run}' holds a run with another configuration: {difference}")
    assert contents(run) == before


def test_a_run_goes_on_as_it_was_begun_without_any_option_but_its_folder(run: Path) -> None:
    """Seeds, sizes and all else are in the folder."""
    before = read_metrics(run)
    said = command("train", "icy_road", "--out", run, "--resume", "--steps", 2 * UPDATES * STEPS_PER_UPDATE, "--json")
    assert said.status == 0, said.err
    assert len(said.json["seeds"]) == 4
    after = read_metrics(run)
    assert after[: len(before)] == before
    assert after[-1]["update"] == 2 * UPDATES


def test_a_run_of_another_environment_is_not_resumed(run: Path, worlds: str) -> None:
    before = contents(run)
    said = command("train", f"{worlds}:Guess", *words(method="dr", replay__capacity=None), "--out", run, "--resume")
    assert_refused(said, "env.name is 'icy_road' there and 'my_worlds:Guess' here")
    assert contents(run) == before


@pytest.mark.parametrize("arguments", [["train", "icy_road", *words()], ["demo"]], ids=["train", "demo"])
@pytest.mark.parametrize("below", ["", "below"], ids=["a_file", "below_a_file"])
def test_an_output_folder_that_cannot_be_made_is_told(tmp_path: Path, arguments: list[str], below: str) -> None:
    (tmp_path / "file").write_text("precious")
    out = tmp_path / "file" / below
    assert_refused(command(*arguments, "--out", out), f"'{out}'")
    assert contents(tmp_path) == {"file": b"precious"}


def test_a_disk_that_fills_up_is_told_and_costs_no_checkpoint(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = contents(run)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_arrays", full)
        said = command("train", "icy_road", *words(steps=5000), "--out", run, "--resume", "--json")
    assert_refused(said, f"cannot write to the run folder '{run}': No space left on device")
    after = contents(run)
    kept = {name for name in before if name.startswith("checkpoints/") or name == "summary.json"}
    assert len(kept) > 10
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert read_checkpoint(run).update == UPDATES


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


# Damaged checkpoints.


def assert_one_warning(said: Said, *parts: str) -> None:
    assert said.status == 0
    assert said.err.startswith("samplr: warning: ")
    assert said.err.count("\n") == 1
    for part in parts:
        assert part in said.err


def truncate_largest_file(checkpoint: Path) -> None:
    truncate(max((file for file in checkpoint.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size))


def test_a_truncated_checkpoint_is_reported_and_the_one_before_it_played(run: Path) -> None:
    truncate_largest_file(newest(run))
    before = contents(run)
    said = command("eval", run, "--episodes", 3)
    assert_one_warning(
        said, f"checkpoint '{newest(run)}' is damaged", f"'{newest(run, back=1).name}', before it, is used"
    )
    assert "ground_truth" in said.out
    assert contents(run) == before


def test_a_truncated_checkpoint_is_reported_and_trained_again(run: Path, trained: Path) -> None:
    damaged = newest(run)
    truncate_largest_file(damaged)
    said = command("train", "icy_road", *words(), "--out", run, "--resume", "--json")
    assert_one_warning(said, f"checkpoint '{damaged}' is damaged")
    assert_same_run(run, trained)


@pytest.mark.parametrize("resume", [True, False], ids=["train", "eval"])
def test_without_a_whole_checkpoint_nothing_is_done(run: Path, resume: bool) -> None:
    for back in (0, 1):
        truncate_largest_file(newest(run, back))
    before = contents(run)
    said = command("train", "icy_road", *words(), "--out", run, "--resume") if resume else command("eval", run)
    assert_refused(said, f"none of the checkpoints in '{run}' is whole")
    assert contents(run) == before


# What `eval` is given.


@pytest.mark.parametrize(
    ("levels", "told"),
    [
        ("not JSON", "is not JSON"),
        ("", "is not JSON"),
        ({"aleatoric.rate": 0.0}, "must hold a list of levels"),
        ([], "must hold a list of levels"),
        ([[0.0]], "must hold a list of levels"),
        ([{}], "a level of IcyRoad has the parts"),
        ([{"aleatoric.rate": 0.0}], "a level of IcyRoad has the parts"),
        ([{"aleatoric.rate": 0.0, "aleatoric.bits": [False] * 12, "colour": 1}], "a level of IcyRoad has the parts"),
        ([{"aleatoric.rate": 0.0, "aleatoric.bits": [False] * 11}], "aleatoric.bits has shape (11,), expected (12,)"),
        ([{"aleatoric.rate": 2.0, "aleatoric.bits": [False] * 12}], "aleatoric.rate is 2, not in [0, 1]"),
        ([{"aleatoric.rate": float("nan"), "aleatoric.bits": [False] * 12}], "aleatoric.rate is nan, not in [0, 1]"),
        ([{"aleatoric.rate": "half", "aleatoric.bits": [False] * 12}], "holds numbers only"),
        ([{"aleatoric.rate": None, "aleatoric.bits": [False] * 12}], "holds numbers only"),
        ([{"aleatoric.rate": 0.0, "aleatoric.bits": [[False]] + [False] * 11}], "holds numbers only"),
        ([{"aleatoric.rate": 0.0, "aleatoric.bits": [False] * 12, "origin": 10**20}], "a level of IcyRoad"),
        ([{"aleatoric.rate": 0.0, "aleatoric.bits": ["dry"] * 12}], "holds numbers only"),
        ([{"aleatoric.rate": 0.0, "aleatoric.bits": [0.2] * 12}], "0.2, ...] cannot be taken for bool"),
        ([{"aleatoric.rate": 0.0, "aleatoric.bits": [0] * 12, "origin": 1.5}], "1.5 cannot be taken for int32"),
    ],
)
def test_levels_that_do_not_fit_are_refused(trained: Path, tmp_path: Path, levels: Any, told: str) -> None:
    file = tmp_path / "levels.json"
    file.write_text(levels if isinstance(levels, str) else json.dumps(levels))
    before = contents(trained)
    assert_refused(command("eval", trained, "--levels", file), told)
    assert contents(trained) == before


def test_a_file_of_levels_that_is_missing_or_binary_is_refused(trained: Path, tmp_path: Path) -> None:
    absent, binary = tmp_path / "absent.json", tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    assert_refused(command("eval", trained, "--levels", absent), f"cannot read '{absent}': No such file or directory")
    assert_refused(command("eval", trained, "--levels", tmp_path), f"cannot read '{tmp_path}': Is a directory")
    assert_refused(command("eval", trained, "--levels", binary), f"'{binary}' is not JSON")


def test_what_is_not_a_run_is_not_played(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for path in (tmp_path, tmp_path / "absent"):
        assert_refused(command("eval", path), f"'{path}' is not a run folder")
    file = tmp_path / "file"
    assert_refused(command("eval", file), f"'{file}' is neither a run folder nor a file of policies")
    (tmp_path / "config.json").write_text("{}")
    assert_refused(command("eval", tmp_path), f"'{tmp_path / 'config.json'}' is not as samplr wrote it")
    assert contents(tmp_path) == {"file": b"precious", "config.json": b"{}"}


def test_a_run_that_has_just_begun_is_not_played(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, to_json(tiny_config()), resume=False):
        assert_refused(command("eval", tmp_path), "holds no checkpoint yet")


def test_a_number_of_episodes_below_1_is_refused(trained: Path) -> None:
    assert_refused(command("eval", trained, "--episodes", 0), "--episodes must be at least 1, not 0")


# What `train --config` is given.


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


def test_an_ungrounded_environment_is_refused_by_fictitious(tmp_path: Path, worlds: str) -> None:
    said = command("train", f"{worlds}:Ungrounded", "--out", tmp_path / "run")
    assert_refused(said, "Ungrounded has no posterior", "choose 'none' or 'naive'")
    assert not (tmp_path / "run").exists()


def test_a_keyboard_interrupt_is_one_line_and_status_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "train", interrupted)
    said = command("train", "icy_road", "--out", tmp_path / "run")
    assert (said.status, said.out) == (130, "")
    assert said.err == "samplr: stopped; --resume goes on from here\n"


# What there is.


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


# Training.


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


# Playing.


def test_eval_plays_every_condition_of_a_suite(trained: Path) -> None:
    before = contents(trained)
    said = command("eval", trained, "--suite", "fixed_rates", "--episodes", 20, "--json")
    assert (said.status, said.err) == (0, "")
    assert list(said.json) == [f"q={rate:g}" for rate in EVALUATED_RATES]
    for condition in said.json.values():
        assert set(condition) == {"return", "length", "icy_share"}
        for figure in condition.values():
            assert figure["mean"] == pytest.approx(sum(figure["per_run"]) / 4, abs=1e-5)
            assert len(figure["per_run"]) == 4
        assert condition["length"]["per_run"] == [SEGMENTS] * 4
    shares = [condition["icy_share"]["mean"] for condition in said.json.values()]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert contents(trained) == before


@pytest.fixture(scope="module")
def roads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two levels of icy road: a dry one, and one that is icy at every second segment."""
    bits = [[False] * SEGMENTS, [False, True] * (SEGMENTS // 2)]
    file = tmp_path_factory.mktemp("levels") / "roads.json"
    return json_file(file, [{"aleatoric.rate": 0.5, "aleatoric.bits": road} for road in bits])


def test_eval_of_given_levels_plays_the_most_likely_actions_if_asked(trained: Path, roads: Path) -> None:
    said = command("eval", trained, "--levels", roads, "--deterministic", "--episodes", 2, "--json")
    assert (said.status, said.err) == (0, "")
    assert list(said.json) == ["level 0", "level 1"]
    policies = run_module.load(trained).policies
    for told, level in zip(said.json.values(), json.loads(roads.read_text()), strict=True):
        bits = level["aleatoric.bits"]
        assert told["icy_share"]["per_run"] == pytest.approx([sum(bits) / SEGMENTS] * 4)
        assert told["return"]["per_run"] == [return_of_the_most_likely_actions(policy, bits) for policy in policies]


def return_of_the_most_likely_actions(policy: run_module.Policy, bits: list[bool]) -> float:
    env, key, collected, done = IcyRoad(), jax.random.key(0), 0.0, False
    step = jax.jit(env.step)
    state, observation = env.reset(None, BernoulliField(jnp.float32(0.5), jnp.array(bits)), key=key)
    while not done:
        after = step(None, state, policy.act(observation)[0], key=key)
        state, observation, done = after.state, after.observation, bool(after.done)
        collected += float(after.reward)
    return collected


def test_eval_samples_levels_and_actions_by_the_seed(trained: Path) -> None:
    run = run_module.load(trained)
    first, other = (command("eval", trained, "--episodes", 5, "--json", "--seed", seed).json for seed in (3, 4))
    assert first["ground_truth"]["return"] != other["ground_truth"]["return"]
    again = evaluate(run.env, run.networks, run.env.suites()["ground_truth"], episodes=5, seed=3)
    assert first["ground_truth"] == again["ground_truth"].to_json()


def test_what_to_play_is_said_once(trained: Path, roads: Path) -> None:
    said = command("eval", trained, "--levels", roads, "--suite", "fixed_rates")
    assert_refused(said, "--suite and --levels say different things about what to play: give one of them")


@pytest.mark.parametrize("command_", ["eval", "film"])
def test_a_seed_of_too_many_bits_is_refused(trained: Path, tmp_path: Path, command_: str) -> None:
    out = ["--out", tmp_path / "film.gif"] if command_ == "film" else []
    assert_refused(command(command_, trained, *out, "--seed", 2**31), "--seed must have at most 32 bits")


def test_the_version_is_told() -> None:
    assert command("--version").out == f"samplr {samplr.__version__}\n"
    program = [sys.executable, "-m", "samplr", "--version"]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout == command("--version").out


def test_eval_shows_a_table(trained: Path, roads: Path) -> None:
    said = command("eval", trained, "--levels", roads, "--episodes", 3)
    assert (said.status, said.err) == (0, "")
    for shown in ("condition", "level 0", "level 1", "return", "icy", "share", "12.00 ± 0.00"):
        assert shown in said.out
