"""`samplr eval`: what it is given, what it plays and what it shows."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from samplr import run as run_module
from samplr.config import to_json
from samplr.envs.icy_road.world import EVALUATED_RATES, IcyRoad
from samplr.evaluation import evaluate
from samplr.posteriors import BernoulliField
from samplr.store import RunFolder
from tiny import command, contents, tiny_config

from .conftest import assert_refused, json_file

SEGMENTS = 12

# What it is given.


def test_an_unknown_suite_is_told_with_the_known_ones(trained: Path) -> None:
    before = contents(trained)
    said = command("eval", trained, "--suite", "vacation")
    assert_refused(said, "unknown suite 'vacation': choose one of fixed_rates, ground_truth\n")
    assert contents(trained) == before


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


def test_students_are_tested_in_a_world_that_was_changed(trained: Path) -> None:
    playing = ["eval", trained, "--episodes", 50]
    shares = [
        command(*playing, "--json", *changes).json["ground_truth"]["icy_share"]["mean"]
        for changes in ([], ["--set", "env.alpha=9", "env.beta=1"])
    ]
    assert shares[0] < 0.2 < 0.8 < shares[1]
    assert_refused(command(*playing, "--set", "student.memory=4"), "a test can change the world only, as env.alpha=2")


def test_what_to_play_is_said_once(trained: Path, roads: Path) -> None:
    said = command("eval", trained, "--levels", roads, "--suite", "fixed_rates")
    assert_refused(said, "--suite and --levels say different things about what to play: give one of them")


@pytest.mark.parametrize("command_", ["eval", "film"])
def test_a_seed_of_too_many_bits_is_refused(trained: Path, tmp_path: Path, command_: str) -> None:
    out = ["--out", tmp_path / "film.gif"] if command_ == "film" else []
    assert_refused(command(command_, trained, *out, "--seed", 2**31), "--seed must have at most 32 bits")


def test_eval_shows_a_table(trained: Path, roads: Path) -> None:
    said = command("eval", trained, "--levels", roads, "--episodes", 3)
    assert (said.status, said.err) == (0, "")
    for shown in ("condition", "level 0", "level 1", "return", "icy", "share", "12.00 ± 0.00"):
        assert shown in said.out
