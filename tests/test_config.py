"""Configurations: methods by name, each environment's defaults, JSON, and what is refused."""

import dataclasses
import json
import math
import sys

import pytest

from samplr.config import (
    METHODS,
    Config,
    FictitiousConfig,
    default_config,
    from_json,
    to_json,
    validate,
    without_effect,
)
from samplr.envs import ENVIRONMENTS
from samplr.envs.icy_road import IcyRoad
from samplr.errors import SamplrError, UnknownNameError

ICY_ROAD = {"name": "icy_road"}


class TestMethods:
    def test_the_named_pairs_of_teacher_and_grounding(self):
        assert METHODS == {
            "dr": ("dr", "naive"),
            "plr": ("plr", "none"),
            "robust_plr": ("robust_plr", "none"),
            "naive": ("robust_plr", "naive"),
            "samplr": ("robust_plr", "fictitious"),
        }

    @pytest.mark.parametrize("method", METHODS)
    def test_a_configuration_knows_its_method(self, method):
        config = default_config("icy_road", method)
        assert (config.teacher, config.grounding) == METHODS[method]
        assert config.method == method

    def test_a_pair_without_a_name_is_spelt_out(self):
        assert default_config("icy_road", "dr", grounding="none").method == "dr+none"

    def test_an_unknown_method_lists_the_known(self):
        with pytest.raises(UnknownNameError, match="'ppo': choose one of dr, naive, plr, robust_plr, samplr"):
            default_config("icy_road", "ppo")


class TestDefaults:
    def test_of_the_environment_take_precedence(self):
        config = default_config("icy_road")
        assert config.env == IcyRoad()
        for name, value in IcyRoad.defaults.items():
            found = config
            for part in name.split("."):
                found = getattr(found, part)
            assert found == value
        # The rest are the paper's.
        assert (config.student.discount, config.student.epochs, config.replay.staleness) == (0.99, 3, 0.7)

    def test_changes_take_precedence_over_both(self):
        config = default_config("icy_road", workers=4, student__memory=16, replay__rate=0.25, fictitious__samples=4)
        assert (config.workers, config.student.memory, config.replay.rate) == (4, 16, 0.25)
        assert config.fictitious == FictitiousConfig(samples=4)
        assert config.student.learning_rate == 3e-3  # of the environment, not lost with the change beside it

    def test_an_environment_with_settings_of_its_own(self):
        env = IcyRoad(segments=5, show_counts=False)
        assert default_config(env).env is env

    @pytest.mark.parametrize("change", ["wrokers", "student__wrokers"])
    def test_an_unknown_field_lists_the_known(self, change):
        with pytest.raises(UnknownNameError, match=r"unknown configuration field '(student\.)?wrokers': choose"):
            default_config("icy_road", **{change: 3})
        known = "learning_rate" if "student" in change else "workers"
        with pytest.raises(UnknownNameError, match=known):
            default_config("icy_road", **{change: 3})

    @pytest.mark.parametrize(
        ("field", "known"),
        [
            ("teacher", "robust_plr"),
            ("grounding", "fictitious"),
            ("replay__prioritisation", "rank"),
            ("fictitious__trace", "matched"),
        ],
    )
    def test_an_unknown_name_lists_the_known(self, field, known):
        with pytest.raises(SamplrError, match=known):
            default_config("icy_road", **{field: "best"})

    def test_a_field_that_has_no_fields_is_refused(self):
        with pytest.raises(SamplrError, match="steps"):
            default_config("icy_road", steps__many=3)


class TestEnvironments:
    MODULE = """
from samplr.envs.icy_road import IcyRoad

class MyRoad(IcyRoad):
    potholes: int = 3
    defaults = {"workers": 8, "student.hidden": (8,)}

class HindsightRoad(IcyRoad):
    defaults = {"replay.score": "max_mc"}

NotOne = int
"""

    @pytest.fixture
    def package(self, tmp_path, monkeypatch):
        (tmp_path / "my_package_of_roads.py").write_text(self.MODULE)
        monkeypatch.syspath_prepend(tmp_path)
        yield "my_package_of_roads"
        sys.modules.pop("my_package_of_roads", None)

    def test_a_users_own_by_import_path(self, package):
        config = default_config(f"{package}:MyRoad")
        assert (type(config.env).__name__, config.env.potholes) == ("MyRoad", 3)
        assert (config.workers, config.student.hidden) == (8, (8,))

    def test_a_users_own_survives_json(self, package):
        config = default_config(f"{package}:MyRoad", workers=12)
        config = dataclasses.replace(config, env=type(config.env)(segments=5, potholes=1))
        data = json.loads(json.dumps(to_json(config)))
        assert data["env"]["name"] == f"{package}:MyRoad"
        assert from_json(data) == config

    def test_defaults_that_suit_only_some_methods_survive_json(self, package):
        config = default_config(f"{package}:HindsightRoad", "robust_plr")
        assert config.replay.score == "max_mc"
        assert from_json(to_json(config)) == config

    def test_an_unknown_name_lists_the_known(self):
        with pytest.raises(
            UnknownNameError, match=r"unknown environment 'mars': choose one of.*icy_road.*my_package:MyEnv"
        ):
            default_config("mars")

    @pytest.mark.parametrize(
        ("path", "complaint"),
        [
            ("no_such_package:Env", "cannot be imported: No module named 'no_such_package'"),
            ("my_package_of_roads:NoSuchRoad", "cannot be imported.*NoSuchRoad"),
            ("my_package_of_roads:NotOne", "not a subclass of"),
        ],
    )
    def test_a_wrong_import_path_says_what_is_wrong(self, package, path, complaint):
        with pytest.raises(SamplrError, match=complaint):
            default_config(path)


class TestValidate:
    @pytest.mark.parametrize("value", [0, -1])
    @pytest.mark.parametrize(
        "field",
        [
            "steps",
            "seeds",
            "workers",
            "rollout",
            "log_every",
            "gradient_updates",
            "student__epochs",
            "student__minibatches",
            "replay__capacity",
            "fictitious__samples",
        ],
    )
    def test_counts_are_at_least_one(self, field, value):
        flag = "--" + field.replace("__", ".").replace("_", "-")
        with pytest.raises(SamplrError, match=f"{flag} must be at least 1, not {value}"):
            default_config("icy_road", **{field: value})

    @pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
    @pytest.mark.parametrize("field", ["replay__rate", "replay__fill", "replay__staleness"])
    def test_shares_lie_between_zero_and_one(self, field, value):
        with pytest.raises(SamplrError, match="must lie between 0 and 1"):
            default_config("icy_road", **{field: value})

    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
    @pytest.mark.parametrize("name", ["replay.temperature", "student.learning_rate", "student.clip"])
    def test_what_is_positive(self, name, value):
        flag = "--" + name.replace("_", "-")
        with pytest.raises(SamplrError, match=f"{flag} must be a positive number, not {value:g}"):
            default_config("icy_road", **{name.replace(".", "__"): value})

    @pytest.mark.parametrize("value", [-0.1, math.nan])
    @pytest.mark.parametrize("name", ["student.entropy_coefficient", "checkpoint_seconds"])
    def test_what_is_not_negative(self, name, value):
        with pytest.raises(SamplrError, match="must not be negative"):
            default_config("icy_road", **{name.replace(".", "__"): value})

    @pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
    @pytest.mark.parametrize("name", ["discount", "gae_lambda"])
    def test_what_is_a_share(self, name, value):
        with pytest.raises(SamplrError, match="must lie between 0 and 1"):
            default_config("icy_road", **{f"student__{name}": value})

    def test_a_teacher_that_replays_must_replay(self):
        # PLR⊥ learns from replays only: at rate 0 it would never learn, and never reach its gradient updates.
        with pytest.raises(SamplrError, match="never replays a level: choose --teacher dr"):
            default_config("icy_road", "robust_plr", replay__rate=0.0)
        default_config("icy_road", "dr", replay__rate=0.0)

    def test_hindsight_is_refused_under_fictitious(self):
        with pytest.raises(SamplrError, match=r"max_mc judges by hindsight.*choose positive_value_loss"):
            default_config("icy_road", "samplr", replay__score="max_mc")
        default_config("icy_road", "robust_plr", replay__score="max_mc")
        default_config("icy_road", "dr", grounding="fictitious", replay__score="max_mc")  # scores nothing

    def test_minibatches_divide_the_steps_of_a_rollout(self):
        with pytest.raises(SamplrError, match="minibatches 5 does not divide the 768 workers × rollout steps"):
            default_config("icy_road", student__minibatches=5)
        default_config("icy_road", student__minibatches=6)

    def test_minibatches_divide_the_workers_of_a_recurrent_student(self):
        # Its sequences stay whole.
        with pytest.raises(SamplrError, match="minibatches 6 does not divide the 64 workers"):
            default_config("icy_road", student__minibatches=6, student__memory=8)

    def test_only_who_remembers_can_be_told_the_last_action(self):
        with pytest.raises(SamplrError, match=r"sees-actions needs a student that remembers"):
            default_config("icy_road", student__sees_actions=True)
        default_config("icy_road", student__sees_actions=True, student__memory=8)

    def test_a_critic_is_not_told_a_hidden_part_that_is_another_at_every_step(self):
        with pytest.raises(SamplrError, match="informed-critic judges an episode by its own θ′"):
            default_config("icy_road", "samplr", student__informed_critic=True)
        default_config("icy_road", "naive", student__informed_critic=True)

    def test_a_configuration_made_by_hand_is_checked_the_same(self):
        with pytest.raises(SamplrError, match="workers"):
            validate(Config(IcyRoad(), workers=0))


class TestJson:
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"student__hidden": (32, 16, 8), "fictitious__samples": "exact", "gradient_updates": 7},
            {"student__hidden": (), "fictitious__samples": 4, "gradient_updates": None, "fictitious__trace": "matched"},
        ],
    )
    def test_round_trip(self, changes):
        config = default_config(IcyRoad(segments=5, beta=3.5, show_counts=False), "naive", first_seed=3, **changes)
        again = from_json(json.loads(json.dumps(to_json(config))))
        assert again == config
        assert type(again.student.hidden) is tuple
        assert hash(again.student) == hash(config.student)

    def test_fields_left_out_take_the_environments_defaults(self):
        config = from_json({"env": {"name": "icy_road", "segments": 5}, "student": {"memory": 8}})
        expected = default_config(IcyRoad(segments=5), student__memory=8)
        assert config == expected

    def test_whole_numbers_will_do_for_floats(self):
        config = from_json({"env": {**ICY_ROAD, "beta": 3}, "student": {"learning_rate": 1}})
        assert (type(config.student.learning_rate), type(config.env.beta)) == (float, float)

    @pytest.mark.parametrize(
        ("data", "complaint"),
        [
            ({"steps": "many"}, "steps cannot be 'many': it must be int"),
            ({"steps": 1.5}, "steps cannot be 1.5"),
            ({"steps": None}, "steps cannot be None"),
            ({"workers": True}, "workers cannot be True"),
            ({"gradient_updates": "all"}, "gradient_updates cannot be 'all'"),
            ({"student": {"hidden": 64}}, r"student\.hidden cannot be 64"),
            ({"student": {"hidden": [64, "wide"]}}, r"student\.hidden cannot be 'wide'"),
            ({"student": {"learning_rate": "slow"}}, r"student\.learning_rate cannot be 'slow': it must be float"),
            ({"student": {"clip_values": 1}}, r"student\.clip_values cannot be 1: it must be bool"),
            ({"student": 3}, "student cannot be 3"),
            ({"fictitious": {"samples": "all"}}, r"fictitious\.samples cannot be 'all'.*exact"),
            ({"fictitious": {"samples": 1.5}}, r"fictitious\.samples cannot be 1.5"),
            ({"teacher": "best"}, "unknown teacher 'best': choose one of dr, fixed, plr, robust_plr"),
            ({"replay": {"prioritisation": "luck"}}, "'luck': choose one of power, rank"),
            ({"env": {**ICY_ROAD, "segments": "few"}}, "segments cannot be 'few'"),
            ({"workers": 0}, "workers must be at least 1"),
        ],
    )
    def test_a_wrong_type_or_value_is_refused_by_name(self, data, complaint):
        with pytest.raises(SamplrError, match=complaint):
            from_json({"env": ICY_ROAD, **data})

    @pytest.mark.parametrize(
        ("data", "field", "known"),
        [
            ({"wrokers": 3}, "wrokers", "workers"),
            ({"student": {"size": 3}}, r"student\.size", "hidden"),
            ({"env": {**ICY_ROAD, "tiles": 3}}, r"env\.tiles", "segments"),
        ],
    )
    def test_an_unknown_field_lists_the_known(self, data, field, known):
        with pytest.raises(UnknownNameError, match=f"unknown configuration field '{field}': choose one of .*{known}"):
            from_json({"env": ICY_ROAD, **data})

    @pytest.mark.parametrize("data", [{}, {"env": {}}, {"env": "icy_road"}, {"env": None}, {"env": {"name": 3}}])
    def test_the_environment_must_be_named(self, data):
        with pytest.raises(SamplrError):
            from_json(data)


@pytest.mark.parametrize(
    ("method", "changes", "told"),
    [
        ("dr", {"replay__rate": 0.3, "replay__capacity": 9}, ["--replay.rate has", "--replay.capacity has"]),
        ("plr", {"replay__rate": 0.3}, []),
        (
            "naive",
            {"fictitious__samples": 4},
            ["--fictitious.samples has no effect: grounding 'naive'"],
        ),
        ("samplr", {"fictitious__samples": 4}, []),
        ("samplr", {"belief__learning_rate": 0.1}, ["--belief.learning-rate has no effect: no posterior is learned"]),
        ("samplr", {"belief__learning_rate": 0.1, "fictitious__posterior": "learned"}, []),
        ("robust_plr", {"belief__bins": 4, "fictitious__posterior": "learned"}, ["--fictitious.post", "--belief.bins"]),
        ("dr", {"student__epochs": 9}, []),
    ],
)
def test_settings_that_a_method_does_not_use_are_named(method: str, changes: dict, told: list[str]) -> None:
    lines = without_effect(default_config("icy_road", method, **changes), default_config("icy_road", method))
    assert len(lines) == len(told)
    for line in told:
        assert any(found.startswith(line) for found in lines)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_defaults_change_nothing_in_vain(method: str, env: str) -> None:
    """An environment's defaults are for all methods, and not the user's doing."""
    config = default_config(env, method)
    assert without_effect(config, config) == []
