"""The rules: what each key means, kicks computed by hand, and the bottom lines."""

import jax.numpy as jnp
import numpy as np
import pytest

from samplr.envs.fruit_choice import rules
from samplr.envs.fruit_choice.rooms import check_rooms
from samplr.envs.fruit_choice.rules import Action, Eaten, Prompt

from .by_hand import APPLE, BANANA, DOOR, START, TERRAIN, act, game, level, luck, place, press, statistics, unchanged

N_, E, S, W, NE, SE, SW, NW, KICK, EAT = Action
COMPASS = [N_, E, S, W, NE, SE, SW, NW]


def test_the_level_is_one():
    check_rooms(level())


def test_clear_cells_are_the_terrains():
    cells = jnp.stack(jnp.meshgrid(jnp.arange(21), jnp.arange(79), indexing="ij"), -1).reshape(-1, 2)
    for broken in (False, True):
        flags = jnp.zeros(7, bool).at[0].set(broken)
        assert np.array_equal(rules._clear(TERRAIN, flags, cells), TERRAIN.clear(flags).ravel())


# --- Moving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "to"),
    list(zip(COMPASS, [(4, 12), (5, 13), (6, 12), (5, 11), (4, 13), (6, 13), (6, 11), (4, 11)], strict=True)),
)
def test_a_direction_is_a_step_and_a_turn(key, to):
    after = press(game(), key)
    assert place(after.scene.hero) == to
    assert after.turn == 2


@pytest.mark.parametrize(
    ("hero", "key"),
    [((4, 12), N_), ((4, 11), NW), ((5, 11), W), ((6, 15), SE), ((5, 15), E), ((4, 15), SE), ((6, 15), NE)],
    ids=["wall", "corner", "left wall", "right corner", "door", "door from above", "door from below"],
)
def test_walls_and_locked_doors_take_no_time(hero, key):
    assert unchanged(game(hero), press(game(hero), key))


@pytest.mark.parametrize(("hero", "key"), [((5, 15), E), ((4, 15), SE), ((6, 17), NW)])
def test_a_broken_door_is_entered_from_all_sides(hero, key):
    assert place(press(game(hero, broken=True), key).scene.hero) == DOOR


def test_walking_on_fruit_leaves_it():
    after = press(game((5, 17)), E)
    assert place(after.scene.hero) == place(after.scene.apple) == APPLE


# --- Kicking --------------------------------------------------------------------------------------------------------


def test_kick_asks_for_a_direction_and_takes_no_time():
    after = press(game(), KICK)
    assert after.prompt == Prompt.KICK
    assert after.turn == 1


@pytest.mark.parametrize("key", COMPASS)
def test_a_direction_is_then_kicked_in(key):
    after = press(game((5, 13)), KICK, key)
    assert after.prompt == Prompt.NONE
    assert place(after.scene.hero) == (5, 13)
    assert after.turn == 2


@pytest.mark.parametrize("key", [KICK, EAT])
def test_other_keys_are_strange_directions(key):
    assert unchanged(game(), press(game(), KICK, key))


def test_a_door_holds_or_breaks():
    before = game((5, 15))
    held, broke = press(before, KICK, E), press(before, KICK, E, chances=luck(opens=True))
    assert not held.scene.broken.any()
    assert broke.scene.broken.tolist() == [True] + 6 * [False]
    assert held.turn == broke.turn == 2
    assert held.hp == broke.hp == 12


@pytest.mark.parametrize(("hero", "key"), [((4, 15), SE), ((6, 15), NE)])
def test_a_door_is_kicked_diagonally_too(hero, key):
    assert press(game(hero), KICK, key, chances=luck(opens=True)).scene.broken[0]


@pytest.mark.parametrize(
    ("hero", "key"), [((4, 12), N_), ((4, 11), NW), ((5, 13), W)], ids=["wall", "corner", "stairs"]
)
def test_hard_things_hurt(hero, key):
    after = press(game(hero), KICK, key, chances=luck(damage=4, opens=True, strained=True))
    assert after.hp == 8
    assert after.turn == 2
    assert after.wound == 0
    assert not after.scene.broken.any()


def test_hard_things_may_wound():
    # The turn of the kick is the first of the wound's.
    assert press(game((4, 12)), KICK, N_, chances=luck(wounded=True, turns=6)).wound == 5


def test_empty_space_may_strain_but_not_hurt():
    for broken, key in ((False, S), (True, E)):
        before = game((5, 15), broken=broken)
        after = press(before, KICK, key, chances=luck(strained=True, wounded=True, turns=10))
        assert after.hp == 12
        assert after.wound == 9
        assert press(before, KICK, key, chances=luck(wounded=True)).wound == 0


@pytest.mark.parametrize(
    ("strength", "to"), [(5, (5, 19)), (7, (5, 20)), (9, (5, 21)), (12, (5, 23)), (17, (5, 24)), (118, (5, 24))]
)
def test_a_fruit_flies_half_the_strength_or_to_the_wall(strength, to):
    after = press(game((5, 17), strength=strength), KICK, E)
    assert place(after.scene.apple) == to
    assert place(after.scene.banana) == BANANA
    assert after.hp == 12
    assert after.turn == 2


@pytest.mark.parametrize(
    ("strength", "effective"), [(3, 3), (18, 18), (19, 19), (49, 19), (50, 20), (99, 20), (100, 21), (118, 21)]
)
def test_strength_above_18_counts_for_less(strength, effective):
    assert rules.effective_strength(game(strength=strength)) == effective
    assert statistics(game(strength=strength))[2:4].tolist() == [effective, strength]


def test_a_fruit_stops_before_a_locked_door_and_passes_a_broken_one():
    before = {broken: game((5, 19), broken=broken) for broken in (False, True)}
    locked, broken = (press(before[broken], KICK, W) for broken in (False, True))
    assert place(locked.scene.apple) == (5, 17)
    # Strength 17: eight cells from the hero, and over the stairs.
    assert place(broken.scene.apple) == (5, 11)
    assert place(press(game((5, 19), broken=True, strength=7), KICK, W).scene.apple) == DOOR


def test_a_fruit_flies_diagonally():
    after = press(game((3, 17), apple=(4, 18)), KICK, SE)
    assert place(after.scene.apple) == (6, 20)


@pytest.mark.parametrize("hurts", [False, True])
def test_a_fruit_at_the_wall_stays(hurts):
    before = game((5, 23), apple=(5, 24))
    after = press(before, KICK, E, chances=luck(thump_hurts=hurts, damage=3, wounded=True))
    assert place(after.scene.apple) == (5, 24)
    assert after.hp == (9 if hurts else 12)
    assert after.wound == (5 if hurts else 0)
    assert after.turn == 2


def test_a_fruit_on_the_stairs_is_what_is_kicked():
    after = press(game((5, 13), apple=START), KICK, W, chances=luck(damage=5))
    assert place(after.scene.apple) == (5, 11)
    assert after.hp == 12


def test_a_fruit_in_a_broken_door_can_be_kicked_on():
    after = press(game((5, 15), apple=DOOR, broken=True, strength=8), KICK, E)
    assert place(after.scene.apple) == (5, 19)


# --- Wounds, healing, death -----------------------------------------------------------------------------------------


def test_the_wounded_cannot_kick_and_the_direction_is_a_move():
    before = game(wound=3)
    asked = press(before, KICK)
    assert unchanged(before, asked)
    assert place(press(asked, E).scene.hero) == (5, 13)


def test_a_wound_costs_dexterity_until_it_heals():
    now, shown = game(wound=3), []
    for key in (E, N_, N_, W, W):  # the second step north is into the wall
        now = press(now, key)
        shown.append(int(statistics(now)[4]))
    assert shown == [14, 14, 14, 15, 15]
    assert now.wound == 0
    assert press(now, KICK).prompt == Prompt.KICK


def test_every_fifteenth_turn_heals_a_point():
    for turn, hp, after in ((13, 5, 5), (14, 5, 6), (29, 11, 12), (14, 12, 12), (15, 5, 5)):
        assert press(game(hp=hp, turn=turn), E).hp == after


def test_no_time_no_healing():
    assert press(game((4, 12), hp=5, turn=14), N_).hp == 5


def test_the_dead_have_no_more_turns():
    after = press(game((4, 12), hp=3, turn=14), KICK, N_, chances=luck(damage=3))
    assert after.hp == 0
    assert after.turn == 14


# --- Eating ---------------------------------------------------------------------------------------------------------


def test_eat_asks_only_where_there_is_fruit():
    assert unchanged(game(), press(game(), EAT))
    for hero in (APPLE, BANANA):
        after = press(game(hero), EAT)
        assert after.prompt == Prompt.EAT
        assert after.turn == 1


@pytest.mark.parametrize(("hero", "fruit"), [(APPLE, Eaten.APPLE), (BANANA, Eaten.BANANA)])
def test_northwest_is_yes(hero, fruit):
    after, eaten = act(TERRAIN, press(game(hero), EAT), jnp.int32(NW), luck())
    assert eaten == fruit
    assert after.prompt == Prompt.NONE
    assert place(after.scene.hero) == hero


def test_southeast_is_no():
    assert unchanged(game(APPLE), press(game(APPLE), EAT, SE))


@pytest.mark.parametrize("key", [N_, E, S, W, NE, SW, KICK, EAT])
def test_other_keys_are_no_answer(key):
    asked = press(game(APPLE), EAT)
    assert unchanged(asked, press(asked, key))


def test_a_wound_does_not_keep_from_eating():
    assert press(game(APPLE, wound=4), EAT).prompt == Prompt.EAT


class TestPiles:
    CELL = (5, 21)

    @pytest.mark.parametrize("banana_on_top", [False, True])
    def test_the_upper_fruit_is_asked_for_first(self, banana_on_top):
        upper, lower = (Eaten.BANANA, Eaten.APPLE) if banana_on_top else (Eaten.APPLE, Eaten.BANANA)
        before = game(self.CELL, apple=self.CELL, banana=self.CELL, banana_on_top=banana_on_top)
        assert act(TERRAIN, press(before, EAT), jnp.int32(NW), luck())[1] == upper
        asked_again = press(before, EAT, SE, KICK, N_)
        assert asked_again.prompt == Prompt.EAT_LOWER
        assert asked_again.turn == 1
        assert act(TERRAIN, asked_again, jnp.int32(NW), luck())[1] == lower
        assert unchanged(before, press(asked_again, SE))

    @pytest.mark.parametrize("banana_on_top", [False, True])
    def test_the_upper_fruit_is_kicked(self, banana_on_top):
        before = game((5, 20), apple=self.CELL, banana=self.CELL, banana_on_top=banana_on_top, strength=6)
        after = press(before, KICK, E)
        flown, left = (after.scene.banana, after.scene.apple)[:: 1 if banana_on_top else -1]
        assert place(flown) == (5, 23)
        assert place(left) == self.CELL

    @pytest.mark.parametrize("kicked", ["apple", "banana"])
    @pytest.mark.parametrize("banana_on_top", [False, True])
    def test_what_is_kicked_comes_to_lie_on_top(self, kicked, banana_on_top):
        other = "banana" if kicked == "apple" else "apple"
        before = game((5, 20), banana_on_top=banana_on_top, **{kicked: self.CELL, other: (5, 24)})
        after = press(before, KICK, E)
        assert place(after.scene.apple) == place(after.scene.banana) == (5, 24)
        assert bool(after.scene.banana_on_top) == (kicked == "banana")


# --- The bottom lines -----------------------------------------------------------------------------------------------


def test_bottom_lines_are_the_real_games():
    # As NetHack showed them at the first turn of a hero with these attributes, in the map's upper left corner.
    real = [3, 1, 17, 17, 18, 13, 11, 8, 8, 0, 12, 12, 1, 0, 2, 2, 7, 0, 1, 0, 1, 1, 0, 0, 1, 0, -1]
    assert statistics(game((1, 3), dexterity=18)).tolist() == real


def test_bottom_lines_follow_the_game():
    shown = statistics(game((6, 11), hp=7, turn=42, wound=2))
    assert shown[jnp.array([0, 1, 4, 10, 11, 20])].tolist() == [11, 6, 14, 7, 12, 42]


def test_the_dead_have_no_points_left_and_not_fewer():
    assert statistics(game(hp=-2))[10] == 0
