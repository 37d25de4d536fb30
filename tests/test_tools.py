"""The tools that measured what the guides say."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import samplr
from tiny import tiny_config

ROOT = Path(__file__).parents[1]


def printed(tool: str, student: str, *options: str) -> list[str]:
    """What a tool prints about a student of ours."""
    command = [sys.executable, str(ROOT / "tools" / tool), str(ROOT / "results" / student), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.splitlines()


@pytest.mark.slow
def test_the_last_doors_that_a_student_learns_to_open_are_in_western_walls() -> None:
    lines = printed("doors_opened.py", "fruit/policies/naive_q0.7.npz", "--rooms", "4", "--levels", "60")
    shares = {}
    for line in lines:
        wall, opened, _, came_to = line.split()
        shares[wall] = int(opened) / int(came_to)
    assert list(shares) == ["north", "south", "east", "west"]
    assert shares.pop("west") < 0.9 < 0.95 < min(shares.values())


@pytest.mark.slow
def test_a_grounded_student_drives_better_on_dry_roads_when_told_of_the_ice_it_is_used_to() -> None:
    lines = printed("told_otherwise.py", "sketch/policies/fixed_fictitious_evidence.npz", "--episodes", "60")
    returns = [float(line.split("  by seed")[0].split()[-1]) for line in lines if line.startswith("q=0 ")]
    truth, otherwise = returns
    assert otherwise > truth + 20


@pytest.fixture(scope="module")
def rows() -> dict[str, list[float]]:
    """Repeatability, correlation with the ice and with the reward, and ice of the best-scored tenth, on icy road."""
    student = "theory/policies/samplr.npz"
    about, _, *lines = printed("score_repeatability.py", student, "--levels", "60", "--repeats", "4")
    assert about.startswith("60 levels × 4; mean ice 0.0")
    return {line[:16].strip(): [float(word) for word in line[16:].replace("±", "").split()] for line in lines}


def test_a_level_that_stays_as_it_is_has_a_score_of_its_own(rows: dict[str, list[float]]) -> None:
    repeatability, with_ice, with_reward, *_ = rows["none"]
    assert repeatability > 0.8
    assert with_ice < -0.3, "a student that drives fast is only ever disappointed by ice"
    assert with_reward > 0.3


def test_a_level_whose_ice_is_redrawn_has_a_score_by_chance(rows: dict[str, list[float]]) -> None:
    """On icy road all that differs between levels is the ice."""
    repeatability, correlation, *_ = rows["naive"]
    assert abs(repeatability) < 0.35
    assert abs(correlation) < 0.5


def test_fictitious_scores_tell_levels_apart_by_their_histories_alone(rows: dict[str, list[float]]) -> None:
    assert rows["naive"][0] < rows["fictitious"][0] < rows["none"][0]


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two students of icy road, each with a buffer of its own."""
    root = tmp_path_factory.mktemp("batch") / "run"
    samplr.train(tiny_config(seeds=2), root, progress=False)
    return root


def test_nobody_knows_an_icy_road_by_heart(batch: Path) -> None:
    """All roads look the same, so that who was trained on one does no better there than others do."""
    _, *lines = printed("by_heart.py", str(batch), "--episodes", "200")
    assert [line[:22].strip() for line in lines] == ["as they are", "with ice elsewhere"]
    for line in lines:
        owner, _, others, _, more, error = (float(word) for word in line[22:].replace("±", "").split())
        assert more == pytest.approx(owner - others, abs=0.11)
        assert abs(more) < 4 * error + 1


def test_levels_of_a_buffer_are_drawn_as_they_are_or_with_as_much_ice_elsewhere(batch: Path) -> None:
    source = importlib.util.spec_from_file_location("by_heart", ROOT / "tools" / "by_heart.py")
    assert source is not None
    assert source.loader is not None
    source.loader.exec_module(by_heart := importlib.util.module_from_spec(source))
    teachers = samplr.load(batch).teacher
    held = [np.asarray(teachers.levels.aleatoric.bits[index][teachers.filled[index]]) for index in range(2)]
    keys = jax.random.split(jax.random.key(0), 200)
    as_they_are, moved = (
        np.asarray(jax.vmap(by_heart.drawn_from(teachers, 1, moved=moved))(keys).aleatoric.bits)
        for moved in (False, True)
    )
    roads = {road.tobytes() for road in held[1]}
    assert roads != {road.tobytes() for road in held[0]}
    assert {road.tobytes() for road in as_they_are} == roads
    assert (moved.sum(axis=1) == as_they_are.sum(axis=1)).all(), "the same luck draws the same levels"
    icy = as_they_are.any(axis=1) & ~as_they_are.all(axis=1)
    assert (moved != as_they_are).any(axis=1)[icy].mean() > 0.5


@pytest.mark.slow
def test_methods_are_trained_side_by_side_and_reported_together(tmp_path: Path) -> None:
    tool, out = ROOT / "tools" / "side_by_side.sh", tmp_path / "theory"
    command = [str(tool), "2", "theory", str(out), "dr", "nonsense", "samplr", "--", "--seeds", "1", "--steps", "5000"]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 1, "one of them failed"
    lines = done.stdout.splitlines()[:3]
    assert sorted(lines) == ["dr: done", f"nonsense: failed, see {out}.logs/nonsense.log", "samplr: done"]
    assert set(json.loads((out / "results.json").read_text())["table"]["steps"]) == {"dr", "samplr"}
    assert "unknown method of theory 'nonsense'" in Path(f"{out}.logs/nonsense.log").read_text()
