"""The numbers of a study: what is written is read back, and what is compared is comparable."""

import math
from pathlib import Path

import numpy as np

from samplr.reproduce.records import (
    as_csv,
    at_equal_updates,
    at_the_end,
    curve,
    pick,
    read_csv,
    score_matrix,
    scores,
)

ROWS = [
    {
        "variant": name,
        "seed": seed,
        "update": update,
        "steps": 10 * update,
        "gradient_updates": learned,
        "return": value,
    }
    for name, seed, update, learned, value in [
        ("dr", 0, 4, 4, 1.0),
        ("dr", 1, 4, 4, 2.0),
        ("dr", 0, 8, 8, 3.0),
        ("dr", 1, 8, 8, 4.0),
        ("samplr", 0, 4, 1, 5.0),
        ("samplr", 0, 8, 5, 6.0),
    ]
]


def test_rows_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    rows = [
        {"seed": 0, "track": "Italy", "ice": "q=0.2", "return": -1.5, "lap": None},
        {"seed": 1, "track": "Great Britain, 1", "ice": "Beta(1,15)", "return": 2.0, "lap": 0.25},
    ]
    (tmp_path / "f1.csv").write_text(as_csv(rows))
    assert read_csv(tmp_path / "f1.csv") == rows


def test_seven_digits_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(as_csv([{"return": 123.45678901}]))
    assert read_csv(tmp_path / "a.csv") == [{"return": 123.4568}]


def test_rows_are_picked_by_their_values() -> None:
    assert pick(ROWS, variant="dr", seed=1) == [ROWS[1], ROWS[3]]
    assert pick(ROWS, track="Italy") == []


def test_the_end_is_each_variants_own() -> None:
    assert at_the_end([*ROWS[:2], *ROWS[4:]]) == [ROWS[0], ROWS[1], ROWS[5]]


def test_equal_updates_are_those_of_the_slowest_learner() -> None:
    # samplr has learned from 5 rollouts in the end; dr was nearest to that after 4 updates.
    assert at_equal_updates(ROWS) == [ROWS[0], ROWS[1], ROWS[5]]
    assert at_equal_updates([]) == []


def test_a_score_is_the_mean_of_what_is_known() -> None:
    rows = [{"seed": 3, "x": 1.0}, {"seed": 3, "x": 2.0}, {"seed": 1, "x": 5.0}, {"seed": 3, "x": None}, {"seed": 2}]
    assert scores(rows, "x") == {1: 5.0, 3: 1.5}


def test_zero_is_known() -> None:
    # Most students never drive a lap: were their zeros left out, all would seem to.
    rows = [{"seed": 0, "steps": 1, "lap": 0.0}, {"seed": 0, "steps": 1, "lap": 1.0}, {"seed": 1, "steps": 1, "lap": 0}]
    assert scores(rows, "lap") == {0: 0.5, 1: 0.0}
    assert curve(rows, "lap", "steps")[1].tolist() == [[0.5, 0.0]]
    assert score_matrix(rows[1:], "lap", "steps").tolist() == [[1.0], [0.0]]


def test_the_seeds_of_a_curve_are_in_the_same_order_everywhere() -> None:
    rows = [{"seed": s, "steps": t, "x": 10.0 * t + s} for t, s in [(1, 1), (1, 0), (2, 0), (2, 1)]]
    assert curve(rows, "x", "steps")[1].tolist() == [[10.0, 11.0], [20.0, 21.0]]


def test_a_matrix_has_the_runs_with_a_score_in_every_task() -> None:
    rows = [{"seed": s, "track": t, "x": v} for s, t, v in [(0, "b", 1.0), (0, "a", 2.0), (1, "a", 3.0), (2, "b", 4.0)]]
    assert score_matrix(rows, "x", "track").tolist() == [[2.0, 1.0]]
    assert score_matrix([], "x", "track").shape == (0, 0)


def test_a_curve_has_the_places_that_all_seeds_have_come_to() -> None:
    places, values = curve(pick(ROWS, variant="dr"), "return", "gradient_updates")
    assert places.tolist() == [4, 8]
    assert values.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    places, values = curve(pick(ROWS, variant="dr")[:3], "return", "steps")
    assert places.tolist() == [40]
    assert curve([], "return", "steps")[1].shape == (0, 0)


def test_several_rows_of_a_seed_at_a_place_are_averaged() -> None:
    rows = [{"seed": 0, "steps": 1, "x": v} for v in (1.0, 4.0)]
    np.testing.assert_allclose(curve(rows, "x", "steps")[1], [[2.5]])


def test_what_is_unknown_stays_out_of_scores_and_what_is_infinite_shows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("seed,x\n0,inf\n1,\n2,3\n")
    assert scores(read_csv(tmp_path / "a.csv"), "x") == {0: math.inf, 2: 3.0}
