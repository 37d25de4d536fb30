"""Transfer: both simulators play the same levels, and what is kept is a share with an interval."""

import jax
import numpy as np
import pytest

from samplr.envs.black_ice import BlackIce
from samplr.envs.fruit_choice import FruitChoice
from samplr.envs.icy_road import IcyRoad
from samplr.errors import SamplrError, UnknownNameError
from samplr.evaluation import Condition
from samplr.student.networks import build_network
from samplr.transfer import ALL, Transferred, on_backend, transfer


def transferred(ours: np.ndarray, real: np.ndarray) -> Transferred:
    return Transferred(Condition({"return": ours}), Condition({"return": real}))


class TestKept:
    def test_is_the_ratio_of_the_means_over_runs_and_levels(self) -> None:
        kept = transferred(np.array([[4.0, 6.0], [2.0, 8.0]]), np.array([[3.0, 6.0], [1.0, 8.0]])).kept("return")
        assert kept.value == pytest.approx(18 / 20)
        assert kept.low <= kept.value <= kept.high

    def test_its_interval_holds_the_truth_about_95_times_in_100(self) -> None:
        rng = np.random.default_rng(0)
        held = 0
        for _ in range(100):
            ours = rng.normal(10, 3, (1, 60))
            kept = transferred(ours, 0.8 * ours + rng.normal(0, 1, (1, 60))).kept("return")
            held += kept.low <= 0.8 <= kept.high
        assert 88 <= held <= 100

    def test_levels_are_paired(self) -> None:
        # Levels differ far more than simulators do: unpaired, the interval would be wide.
        ours = np.linspace(1, 1000, 50)[None]
        kept = transferred(ours, 0.9 * ours).kept("return")
        assert kept.high - kept.low < 1e-6

    def test_is_unknown_where_there_is_nothing_to_keep(self) -> None:
        assert np.isnan(transferred(np.zeros((2, 3)), np.ones((2, 3))).kept("return").value)
        assert transferred(np.zeros((2, 3)), np.ones((2, 3))).to_json()["kept"]["return"]["value"] is None

    def test_of_something_rare_has_an_interval(self) -> None:
        ours, real = np.zeros((1, 10)), np.zeros((1, 10))
        ours[0, 0] = real[0, 0] = 1
        kept = transferred(ours, real).kept("return")
        assert (kept.low, kept.value, kept.high) == (1, 1, 1)

    def test_of_a_single_level_has_no_interval(self) -> None:
        kept = transferred(np.ones((2, 1)), np.ones((2, 1))).kept("return")
        assert kept.value == 1
        assert np.isnan(kept.low)


class TestBackends:
    def test_take_over_the_settings(self) -> None:
        pytest.importorskip("Box2D")
        real = on_backend(BlackIce(alpha=2.0, frame_stack=2), "box2d")
        assert isinstance(real, BlackIce)
        assert (real.alpha, real.frame_stack) == (2.0, 2)

    def test_of_a_world_without_any_are_refused(self) -> None:
        with pytest.raises(SamplrError, match="imitates no real simulator"):
            on_backend(IcyRoad(), "box2d")

    def test_that_are_unknown_are_listed(self) -> None:
        with pytest.raises(UnknownNameError, match="box2d"):
            on_backend(BlackIce(), "bullet")


def test_students_play_the_same_levels_in_nethack() -> None:
    pytest.importorskip("minihack")
    env = FruitChoice(max_rooms=2, step_limit=30)
    networks = jax.vmap(lambda key: build_network(env, "compact", (8,), 4, key=key))(
        jax.random.split(jax.random.key(0), 2)
    )
    results = transfer(env, "nethack", networks, env.suites()["rooms"], episodes=3, processes=0)
    assert list(results) == ["1 room", "2 rooms", ALL]
    both = results[ALL]
    for side in (both.ours, both.real):
        assert side.figures["return"].shape == (2, 6)
        np.testing.assert_array_equal(side.figures["rooms"], [[1, 1, 1, 2, 2, 2]] * 2)
    assert set(both.ours.figures) == set(both.real.figures)
