"""The settings of black ice: what makes no world, and what an evaluation changes."""

import dataclasses
import math

import pytest

from samplr.envs.black_ice import BlackIce
from samplr.envs.black_ice.driving import Rules
from samplr.errors import SamplrError


@pytest.mark.parametrize("name", ["tiles_per_draw", "frame_stack", "smoothing"])
def test_settings_below_one_are_refused(name):
    with pytest.raises(SamplrError, match=f"a {name} of at least 1, not 0"):
        BlackIce(**{name: 0})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"cell": 0.0}, "a cell above 0"),
        ({"cell": 20.0}, "a cell above 0 and at most 16, not 20"),
        ({"smoothing": 5}, "a smoothing of at most 4, not 5"),
        ({"alpha": -1.0}, "a positive alpha, not -1"),
        ({"beta": math.inf}, "a positive beta, not inf"),
        ({"frame_stack": 0}, "a frame_stack of at least 1"),
        ({"ice_rule": "sticky"}, "unknown ice rule 'sticky': choose one of max, mean, min, nearest"),
        ({"camera": "drone"}, "unknown camera 'drone': choose one of hull, motion"),
    ],
)
def test_settings_that_make_no_world_are_refused(setting, message):
    with pytest.raises(SamplrError, match=message):
        BlackIce(**setting)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"action_repeat": 0}, "an? action_repeat of at least 1, not 0"),
        ({"idle_limit": -1}, "an idle_limit of 0 or more, not -1"),
        ({"track_reward": math.nan}, "a finite track_reward, not nan"),
        ({"out_of_bounds_reward": -math.inf}, "a finite out_of_bounds_reward, not -inf"),
    ],
)
def test_rules_of_no_game_are_refused(setting, message):
    with pytest.raises(SamplrError, match=message):
        Rules(**setting)


def test_evaluation_changes_only_the_rules():
    rules = Rules(
        action_repeat=4,
        frame_limit=900,
        limit_truncates=False,
        frame_penalty=0.2,
        track_reward=500.0,
        idle_limit=50,
        idle_truncates=True,
        end_bonus=100.0,
        lap_share=0.9,
    )
    env = BlackIce(2.0, 7.0, "mean", 5, 2, True, rules, 1.0, 1)
    evaluated = env.for_evaluation()
    assert isinstance(evaluated, BlackIce)
    for field in dataclasses.fields(env):
        if field.name != "rules":
            assert getattr(evaluated, field.name) == getattr(env, field.name)
    assert evaluated.rules == dataclasses.replace(rules, idle_limit=0, out_of_bounds_reward=-100.0, end_bonus=0.0)
