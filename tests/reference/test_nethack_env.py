"""The real game as an environment: our levels where we mean them, our rewards and ends, and nothing of MiniHack's."""

import importlib
import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

from samplr.envs.fruit_choice.glyphs import Glyph
from samplr.envs.fruit_choice.terrain import Rooms
from samplr.errors import SamplrError

pytest.importorskip("nle")
pytest.importorskip("minihack")
nethack = importlib.import_module("samplr.envs.fruit_choice.nethack")

N, E, S, W, NE, SE, SW, NW, KICK, EAT = range(10)
YES, NO = NW, SE
DEX, HP, TURN = 4, 10, 20


def one_room(corner=(5, 20), size=(5, 6)) -> Rooms:
    """The hero in the upper left, the apple on the right of it and the banana below."""
    start = np.add(corner, 1)
    corners, sizes = np.zeros((2, 8, 2), np.int32)
    corners[0], sizes[0] = corner, size
    apple, banana = np.add(start, (0, 1)), np.add(start, (1, 0))
    return Rooms(np.int32(1), corners, sizes, np.zeros((7, 2), np.int32), start, apple, banana)


@pytest.fixture(scope="module")
def env():
    env = nethack.RealFruitChoice()
    yield env
    env.close()


def reset(env, *, seed=0, rooms=None, apple_is_right=True):
    return env.reset(seed=seed, options={"rooms": rooms or one_room(), "apple_is_right": apple_is_right})[0]


def play(env, *keys):
    """The last of the answers to some keys, of which only the last may end the episode."""
    for i, key in enumerate(keys):
        answer = env.step(key)
        assert i == len(keys) - 1 or not (answer[2] or answer[3])
    return answer


class TestLevels:
    @pytest.mark.parametrize("corner", [(0, 2), (0, 72), (16, 2), (16, 72), (7, 31)])
    def test_cells_are_where_we_mean_them(self, env, corner):
        rooms = one_room(corner)
        seen = reset(env, rooms=rooms)
        (row, column), (height, width) = corner, (5, 6)
        shown = np.full((21, 79), Glyph.STONE)
        shown[row : row + height, column : column + width] = Glyph.FLOOR
        shown[[row, row + height - 1], column : column + width] = Glyph.HORIZONTAL_WALL
        shown[row : row + height, [column, column + width - 1]] = Glyph.VERTICAL_WALL
        shown[row, [column, column + width - 1]] = Glyph.TOP_LEFT_CORNER, Glyph.TOP_RIGHT_CORNER
        shown[row + height - 1, [column, column + width - 1]] = Glyph.BOTTOM_LEFT_CORNER, Glyph.BOTTOM_RIGHT_CORNER
        shown[tuple(rooms.start)], shown[tuple(rooms.apple)] = Glyph.HERO, Glyph.APPLE
        shown[tuple(rooms.banana)] = Glyph.BANANA
        np.testing.assert_array_equal(seen["glyphs"], shown)
        assert (seen["blstats"][1], seen["blstats"][0]) == tuple(rooms.start)

    def test_a_compiled_level_is_kept(self, env):
        reset(env, rooms=one_room((3, 3)))
        before = nethack._compiled.cache_info()
        reset(env, rooms=one_room((3, 3)), apple_is_right=False)
        after = nethack._compiled.cache_info()
        assert (after.hits, after.misses) == (before.hits + 1, before.misses)

    def test_the_last_level_given_is_played(self, env):
        for corner in [(3, 3), (9, 40), (3, 3)]:
            assert np.argwhere(reset(env, rooms=one_room(corner))["glyphs"] == Glyph.HERO)[0].tolist() == [
                corner[0] + 1,
                corner[1] + 1,
            ]

    def test_sampled_levels(self, env):
        views = [env.reset(seed=seed)[0]["glyphs"] for seed in (1, 2, 1)]
        np.testing.assert_array_equal(views[0], views[2])
        assert np.any(views[0] != views[1])

    def test_a_level_has_both_parts(self, env):
        with pytest.raises(SamplrError, match="apple_is_right"):
            env.reset(options={"rooms": one_room()})


class TestRewards:
    @pytest.mark.parametrize(
        ("apple_is_right", "way", "reward"), [(True, E, 3), (True, S, 0), (False, E, 0), (False, S, 10)]
    )
    def test_eating(self, env, apple_is_right, way, reward):
        reset(env, apple_is_right=apple_is_right)
        assert play(env, way, EAT)[1:4] == (0, False, False)
        assert play(env, YES)[1:4] == (reward, True, False)

    def test_the_rules_are_ours(self):
        env = nethack.RealFruitChoice(q=0.0, banana_reward=7.0, step_limit=4)
        env.reset(seed=0)
        assert env._right == "banana"
        reset(env, apple_is_right=False)
        assert play(env, S, EAT, YES)[1:4] == (7, True, False)
        reset(env)
        assert play(env, N, N, N, N)[2:4] == (False, True)
        env.close()

    def test_no_pay_for_saying_no(self, env):
        reset(env)
        assert play(env, E, EAT, NO)[1:4] == (0, False, False)
        assert env.message == "You don't have anything to eat."

    def test_the_right_fruit_changes_nothing_else(self, env):
        """Trap: a des-file that told it would change the level."""
        keys = np.random.default_rng(0).choice([N, E, S, W, KICK], 30)
        views = []
        for apple_is_right in (True, False):
            reset(env, seed=3, apple_is_right=apple_is_right)
            views.append([env.step(key)[0] for key in keys])
        jax.tree.map(np.testing.assert_array_equal, *views)

    def test_rotten_fruit_pays_once(self, env):
        """Trap: MiniHack counts a rotten bite as eating the apple and the banana."""
        rotten = 0
        for seed in range(40):
            reset(env, seed=seed)
            play(env, *[SE, NW] * 16, E, EAT)
            assert play(env, YES)[1:4] == (3, True, False)
            rotten += "Rotten" in env.message or "Blecch" in env.message
        assert rotten > 0

    def test_there_is_one_of_each_fruit(self, env):
        """Trap: a sixth of the fruit that NetHack makes comes in pairs."""
        for seed in range(40):
            reset(env, seed=seed)
            play(env, E, EAT)
            assert env.message == "There is an apple here; eat it? [ynq] (n) "

    def test_standing_still_costs_nothing(self, env):
        """Trap: MiniHack takes 0.01 for each step in which no time passes."""
        reset(env)
        for key in [N, W, KICK, EAT, EAT]:
            seen, reward, *_ = env.step(key)
            assert (reward, seen["blstats"][TURN]) == (0, 1)


class TestEnds:
    def test_the_first_step_ends_nothing(self, env):
        """Trap: with MiniHack's reward manager it may."""
        reset(env)
        assert play(env, SE)[2:4] == (False, False)

    def test_the_limit_truncates(self, env):
        """Trap: MiniHack says terminated."""
        reset(env)
        *_, terminated, truncated, _ = play(env, *[N] * 250)
        assert (terminated, truncated) == (False, True)

    def test_eating_at_the_limit(self, env):
        reset(env)
        assert play(env, *[N] * 247, E, EAT, YES)[1:4] == (3, True, False)

    def test_death(self, env):
        """Kicks at the wall until it kills; a wounded leg has to heal before it kicks again."""
        seen, over, corner = reset(env), False, one_room()
        healthy = seen["blstats"][DEX]
        while not over:
            keys = [KICK, NE] if seen["blstats"][DEX] == healthy else [SE, NW]
            for key in keys:
                seen, reward, terminated, truncated, _ = env.step(key)
                if over := terminated or truncated:
                    break
        assert (reward, terminated, truncated) == (0, True, False)
        # Trap: the game wipes what it showed.
        assert seen["blstats"][HP] == 0
        assert seen["blstats"][TURN] > 1
        assert seen["glyphs"][tuple(corner.start)] == Glyph.HERO

    def test_the_last_observation_is_not_wiped(self, env):
        """Trap: MiniHack quits the game first, and then shows zeros."""
        reset(env)
        seen, *_ = play(env, *[N] * 250)
        assert seen["blstats"][HP] == 12
        assert seen["glyphs"][tuple(one_room().start)] == Glyph.HERO


class TestTheGame:
    def test_seeds(self, env):
        """Trap: gymnasium's seed is not NetHack's."""
        keys = np.random.default_rng(1).choice([S, E, KICK], 60)
        played = []
        for seed in (5, 6, 5):
            seen = [reset(env, seed=seed)]
            for key in keys:
                seen.append(env.step(key)[0])
                if seen[-1]["blstats"][HP] == 0:
                    break
            played.append(seen)
        jax.tree.map(np.testing.assert_array_equal, played[0], played[2])
        assert np.any(played[0][0]["blstats"] != played[1][0]["blstats"])

    def test_observations_are_copies(self, env):
        """Trap: the game writes its next frame to the same arrays."""
        first = reset(env)
        before = {name: array.copy() for name, array in first.items()}
        after = play(env, SE)[0]
        jax.tree.map(np.testing.assert_array_equal, first, before)
        assert np.any(after["glyphs"] != first["glyphs"])

    def test_fruit_is_not_picked_up(self, env):
        """Trap: autopickup."""
        reset(env)
        seen = play(env, E, E)[0]
        assert seen["glyphs"][tuple(one_room().apple)] == Glyph.APPLE

    def test_luck(self, env):
        """Trap: with a full moon more doors open, and on Friday the 13th fewer; our seeds bring neither."""
        reset(env)
        plainly, said = super(nethack.RealFruitChoice, env).reset, set()
        for seed in range(100):
            env.seed(seed, seed, reseed=False)
            plainly()
            said.add(env.message)
        assert {"You are lucky!  Full moon tonight.", "Watch out!  Bad things can happen on Friday the 13th."} < said
        for seed in range(100):
            reset(env, seed=seed)
            assert not any(sign in env.message for sign in ("lucky", "Friday"))

    def test_gymnasium_agrees(self):
        check_env = importlib.import_module("gymnasium.utils.env_checker").check_env
        env = nethack.RealFruitChoice(max_rooms=2)
        check_env(env, skip_render_check=True)
        env.close()

    def test_nothing_is_left_behind(self):
        packaged = Path(nethack.HACKDIR, "nhdat").read_bytes()
        env = nethack.RealFruitChoice()
        reset(env)
        folder = Path(env.nethack._vardir)
        assert folder.exists()
        env.close()
        assert not folder.exists()
        assert Path(nethack.HACKDIR, "nhdat").read_bytes() == packaged


def test_without_nethack(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nle" else found(name))
    again = importlib.util.spec_from_file_location("again", nethack.__file__)
    with pytest.raises(SamplrError, match=r'the real game needs nle: pip install "samplr\[nethack\]"'):
        again.loader.exec_module(importlib.util.module_from_spec(again))
