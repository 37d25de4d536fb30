"""The tools that measured what the guides say."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def rows() -> dict[str, list[float]]:
    """Repeatability, correlation with the ice, and ice of the best-scored tenth, on icy road."""
    tool, student = ROOT / "tools" / "score_repeatability.py", ROOT / "results" / "theory" / "policies" / "samplr.npz"
    command = [sys.executable, str(tool), str(student), "--levels", "60", "--repeats", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    about, _, *lines = done.stdout.splitlines()
    assert about.startswith("60 levels × 4; mean ice 0.0")
    return {line[:16].strip(): [float(word) for word in line[16:].replace("±", "").split()] for line in lines}


def test_a_level_that_stays_as_it_is_has_a_score_of_its_own(rows: dict[str, list[float]]) -> None:
    repeatability, correlation, *_ = rows["none"]
    assert repeatability > 0.8
    assert correlation < -0.3, "a student that drives fast is only ever disappointed by ice"


def test_a_level_whose_ice_is_redrawn_has_a_score_by_chance(rows: dict[str, list[float]]) -> None:
    """On icy road all that differs between levels is the ice."""
    repeatability, correlation, *_ = rows["naive"]
    assert abs(repeatability) < 0.35
    assert abs(correlation) < 0.5


def test_fictitious_scores_tell_levels_apart_by_their_histories_alone(rows: dict[str, list[float]]) -> None:
    assert rows["naive"][0] < rows["fictitious"][0] < rows["none"][0]
