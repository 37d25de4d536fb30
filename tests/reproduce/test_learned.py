"""What a student was trained on."""

from typing import Any

import numpy as np
import pytest

from reproduce.small import SMALL, STEPS
from samplr.reproduce.learned import ice_of, on_trained_levels, with_learned
from samplr.reproduce.studies import Variant
from samplr.training import build_teacher


def learned(method: str, *updates: int) -> list[dict[str, Any]]:
    """How often a student learned in which phase, up to each of these updates from the one before."""
    config = SMALL.config(Variant(method, method), steps=STEPS)
    rows = with_learned([{"seed": seed, "update": update} for update in updates for seed in (0, 1)], config)
    told = [{name: value for name, value in row.items() if name.startswith("learned/")} for row in rows]
    assert told[::2] == told[1::2]
    return told[::2]


def test_dr_learns_from_every_rollout() -> None:
    assert learned("dr", 3, 10, 24) == [{"learned/new": 3}, {"learned/new": 7}, {"learned/new": 14}]


@pytest.mark.parametrize("method", ["plr", "robust_plr", "samplr"])
def test_rollouts_are_counted_by_the_schedule(method: str) -> None:
    teacher = build_teacher(SMALL.config(Variant(method, method), steps=STEPS))
    replays = [bool(teacher.schedule(np.int32(update))) for update in range(24)]
    assert 0 < sum(replays[:15]) < sum(replays) < 24
    before, after = learned(method, 15, 24)
    assert before["learned/replay"] == sum(replays[:15])
    assert after["learned/replay"] == sum(replays[15:])
    # Only PLR learns from new levels, too.
    assert before.get("learned/new") == (15 - sum(replays[:15]) if method == "plr" else None)


def test_each_phase_counts_by_its_rollouts() -> None:
    row = {"new/return": 1.0, "replay/return": 4.0}
    assert on_trained_levels({**row, "learned/new": 5}, "return") == 1.0
    assert on_trained_levels({**row, "learned/replay": 5}, "return") == 4.0
    assert on_trained_levels({**row, "learned/new": 2, "learned/replay": 1}, "return") == 2.0
    assert on_trained_levels({**row, "learned/new": 0, "learned/replay": 1}, "return") == 4.0


def test_nothing_is_known_before_any_episode_that_was_learned_from_has_ended() -> None:
    robust = {"new/return": 1.0, "replay/return": None, "learned/replay": 1}
    assert on_trained_levels(robust, "return") is None
    assert on_trained_levels({**robust, "replay/return": 4.0, "learned/replay": 0}, "return") is None
    assert on_trained_levels({**robust, "learned/new": 1}, "return") == 1.0


def test_ice_is_that_of_all_tiles_together() -> None:
    # A third of the rollouts with 10 of 100 tiles icy, two thirds with 10 of 400: 30 of 900 in all.
    row = {"new/visited": 1.0, "new/visited_icy": 0.1, "replay/visited": 4.0, "replay/visited_icy": 0.1}
    assert ice_of({**row, "learned/new": 1, "learned/replay": 2}) == pytest.approx(0.3 / 9)
    assert ice_of({**row, "learned/new": 1}) == pytest.approx(0.1)
    assert ice_of({**row, "new/visited": 0.0, "learned/new": 1}) is None
    assert ice_of({**row, "new/visited": None, "learned/new": 1}) is None
