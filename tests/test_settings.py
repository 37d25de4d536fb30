"""Settings as `--set` gives them."""

import pytest

from samplr.config import default_config
from samplr.errors import SamplrError, UnknownNameError
from samplr.settings import changed_world, parse_settings


@pytest.mark.parametrize("word", ["student.clip", "=3", "student.clip="])
def test_settings_without_a_name_or_value(word: str) -> None:
    with pytest.raises(SamplrError, match="--set takes name=value"):
        parse_settings([word])


def test_a_setting_that_is_given_twice() -> None:
    with pytest.raises(SamplrError, match=r"--set has student\.learning_rate twice"):
        parse_settings(["student.learning_rate=3e-4", "student.learning-rate=1e-3"])


@pytest.mark.parametrize(("word", "value"), [("false", False), ("False", False), ("True", True), ("a", "a")])
def test_truth_values_are_taken_as_json_and_as_python_have_them(word: str, value: object) -> None:
    assert parse_settings([f"env.show-counts={word}"]) == {"env.show_counts": value}


def test_a_world_is_changed_in_what_is_named() -> None:
    config = default_config("black_ice", student__encoder="lineage")
    env = changed_world(config, {"env.tiles_per_draw": 5, "env.rules.frame_limit": 500})
    assert (env.tiles_per_draw, env.rules.frame_limit) == (5, 500)
    assert env.rules.action_repeat == config.env.rules.action_repeat
    assert changed_world(config, {}) == config.env


def test_only_the_world_can_be_changed_for_a_test() -> None:
    with pytest.raises(SamplrError, match=r"--set student\.memory: a test can change the world only"):
        changed_world(default_config(), {"student.memory": 4})
    with pytest.raises(UnknownNameError, match="ice_rules"):
        changed_world(default_config("black_ice"), {"env.ice_rules": "min"})


def test_students_must_see_what_they_are_used_to() -> None:
    with pytest.raises(SamplrError, match=r"--set env\.show_evidence: students that were trained without it"):
        changed_world(default_config("black_ice"), {"env.show_evidence": True})


@pytest.mark.parametrize("setting", [{"idle_limit": 500}, {"out_of_bounds_reward": -5.0}, {"end_bonus": 100.0}])
def test_what_evaluation_sets_itself_cannot_be_changed(setting: dict) -> None:
    ((name, value),) = setting.items()
    with pytest.raises(SamplrError, match=rf"--set env\.rules\.{name}: evaluation sets this itself"):
        changed_world(default_config("black_ice"), {"env.alpha": 2.0, f"env.rules.{name}": value})
