"""Our dice against NetHack's: heroes, doors, and what kicks do to those who kick.

One scripted hero per game of the real NetHack gives samples of everything. Luck is 0 in all of them: the environment
passes over seeds with a full moon or a Friday the 13th. Seeds are fixed, so that a test that passes goes on to.
"""

import importlib
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2_contingency

from samplr.compiling import jit
from samplr.envs.fruit_choice.rules import Attribute, begin, draw_attributes, draw_chances, effective_strength
from samplr.envs.fruit_choice.terrain import Rooms

pytest.importorskip("nle")
pytest.importorskip("minihack")
nethack = importlib.import_module("samplr.envs.fruit_choice.nethack")

NORTH, EAST, SOUTH, WEST, KICK = 0, 1, 2, 3, 8
STR25, DEX, CON, HP, TURN = 2, 4, 5, 10, 20
ATTRIBUTES = [3, 6, 7, 4, 5, 8]
"""Where blstats has Str, Int, Wis, Dex, Con and Cha."""
SAFE_HP = 6
OURS = 50_000
LEAST_P = 0.001
MOST_KICKS = 60


def hallway() -> Rooms:
    """The hero has a wall in the north, a locked door in the east, an apple against a wall in the south, floor west."""
    corners, sizes, doors = (np.zeros((number, 2), np.int32) for number in (8, 8, 7))
    corners[:2], sizes[:2], doors[0] = [(5, 20), (5, 24)], (4, 5), (6, 24)
    return Rooms(np.int32(2), corners, sizes, doors, *map(np.array, [(6, 23), (7, 23), (6, 26)]))


@dataclass
class Samples:
    """What befell the heroes."""

    attributes: list = field(default_factory=list)
    strained: list = field(default_factory=list)
    """Dexterity, and whether a kick at empty space strained a muscle."""
    thump_hurts: list = field(default_factory=list)
    hurts: list = field(default_factory=list)
    """Constitution, damage, and whether the leg was wounded."""
    wound_turns: list = field(default_factory=list)
    kicks: list = field(default_factory=list)
    """The average of attributes that matters at doors, and the number of kicks it took."""


class Hero:
    """One game, kicked through."""

    def __init__(self, env, samples: Samples, seed: int):
        self.env, self.samples = env, samples
        self.now = env.reset(seed=seed, options={"rooms": hallway(), "apple_is_right": True})[0]["blstats"]
        self.first = self.now
        samples.attributes.append(self.first[ATTRIBUTES])

    def press(self, *keys: int) -> None:
        for key in keys:
            self.now = self.env.step(key)[0]["blstats"]

    def kick(self, way: int) -> int:
        """The damage of a kick."""
        before = self.now[HP]
        self.press(KICK, way)
        return int(before - self.now[HP]) + (self.now[TURN] % 15 == 0 and before < 12)

    @property
    def wounded(self) -> bool:
        return bool(self.now[DEX] < self.first[DEX])

    def rest(self) -> None:
        """Walk up and down until the leg is well, and come back."""
        if not self.wounded:
            return
        since, ways = self.now[TURN], 0
        while self.wounded:
            self.press((WEST, EAST)[ways % 2])
            ways += 1
        self.samples.wound_turns.append(int(self.now[TURN] - since) + 1)
        if ways % 2:
            self.press(EAST)

    def kick_what_hurts(self, way: int) -> bool:
        damage = self.kick(way)
        hurt = "Ouch" in self.env.message
        if hurt:
            self.samples.hurts.append((int(self.first[CON]), damage, self.wounded))
        self.rest()
        return hurt

    def live(self) -> None:
        self.kick(WEST)
        self.samples.strained.append((int(self.first[DEX]), self.wounded))
        self.rest()
        self.samples.thump_hurts.append(self.kick_what_hurts(SOUTH))
        while self.now[HP] >= SAFE_HP:
            self.kick_what_hurts(NORTH)
        kicks = 0
        while "open" not in self.env.message and "shatters" not in self.env.message:
            self.press(KICK, EAST)
            kicks += 1
        self.samples.kicks.append((int(self.first[[STR25, DEX, CON]].sum()) // 3, kicks))


@pytest.fixture(scope="module", params=[1000, pytest.param(14_000, marks=pytest.mark.slow)])
def real(request) -> Samples:
    samples = Samples()
    env = nethack.RealFruitChoice()
    for seed in range(request.param):
        Hero(env, samples, seed).live()
    env.close()
    return samples


@dataclass
class OurSamples:
    """What our dice give as many heroes, and how many kicks a door takes them."""

    attributes: np.ndarray
    average: np.ndarray
    chances: object
    kicks: np.ndarray


@pytest.fixture(scope="module")
def ours() -> OurSamples:
    @jit
    @jax.vmap
    def hero(key):
        attributes_key, chances_key, door_key = jax.random.split(key, 3)
        game = begin(hallway(), draw_attributes(key=attributes_key))
        average = (effective_strength(game) + game.attributes[3] + game.attributes[4]) // 3
        doors = jax.vmap(lambda key: draw_chances(game, key=key).door_opens)(jax.random.split(door_key, MOST_KICKS))
        return game.attributes, average, draw_chances(game, key=chances_key), jnp.argmax(doors) + 1

    return OurSamples(*jax.device_get(hero(jax.random.split(jax.random.key(0), OURS))))


def p_value(real: np.ndarray, ours: np.ndarray, *, least: int = 5) -> float:
    """Chi-square of two samples of whole numbers being from one distribution; rare values are taken together."""
    values = np.union1d(real, ours)
    table = np.array([[np.sum(sample == value) for value in values] for sample in (real, ours)])
    expected = table.sum(axis=0) * len(real) / (len(real) + len(ours))
    rare = expected < least
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
    table = table[:, table.sum(axis=0) > 0]
    return 1.0 if table.shape[1] < 2 else float(chi2_contingency(table, correction=False).pvalue)


def test_the_test_can_fail():
    rng = np.random.default_rng(0)
    die, loaded = rng.integers(1, 7, 10_000), rng.choice([1, 2, 3, 4, 5, 6, 6], 1000)
    assert p_value(rng.integers(1, 7, 1000), die) > LEAST_P
    assert p_value(loaded, die) < LEAST_P


@pytest.mark.parametrize("attribute", list(Attribute), ids=lambda attribute: attribute.name.lower())
def test_attributes(real, ours, attribute):
    theirs = np.array(real.attributes)[:, attribute]
    p = p_value(theirs, ours.attributes[:, attribute])
    print(f"{attribute.name}: p {p:.3f}, n {len(theirs)}")
    assert p > LEAST_P


def test_kicks_to_open_a_door(real, ours):
    average, kicks = np.array(real.kicks).T
    print(f"{len(kicks)} doors")
    for value in np.unique(average):
        mine = ours.kicks[ours.average == value]
        if np.sum(average == value) < 50:
            continue
        p = p_value(kicks[average == value], mine)
        print(f"average {value}: p {p:.3f}, n {np.sum(average == value)}")
        assert p > LEAST_P


def test_damage(real, ours):
    constitution, damage, _ = np.array(real.hurts).T
    our_constitution = ours.attributes[:, Attribute.CONSTITUTION]
    for low, high in [(3, 14), (15, 15), (16, 16), (17, 18)]:
        theirs = damage[(low <= constitution) & (constitution <= high)]
        mine = ours.chances.damage[(low <= our_constitution) & (our_constitution <= high)]
        p = p_value(theirs, mine)
        print(f"constitution {low} to {high}: p {p:.3f}, n {len(theirs)}")
        assert p > LEAST_P


def test_wounds(real, ours):
    wounded = np.array(real.hurts)[:, 2]
    p_rate, p_turns = (
        p_value(wounded, ours.chances.wounded),
        p_value(np.array(real.wound_turns), ours.chances.wound_turns),
    )
    print(f"rate: p {p_rate:.3f}, n {len(wounded)}; turns: p {p_turns:.3f}, n {len(real.wound_turns)}")
    assert p_rate > LEAST_P
    assert p_turns > LEAST_P


def test_strains(real, ours):
    dexterity, strained = np.array(real.strained).T
    clumsy, our_clumsy = dexterity < 16, ours.attributes[:, Attribute.DEXTERITY] < 16
    p = p_value(strained[clumsy], ours.chances.strained[our_clumsy])
    print(f"p {p:.3f}, n {clumsy.sum()}")
    assert p > LEAST_P
    assert not strained[~clumsy].any()
    assert not ours.chances.strained[~our_clumsy].any()


def test_thumps(real, ours):
    p = p_value(np.array(real.thump_hurts), ours.chances.thump_hurts)
    print(f"p {p:.3f}, n {len(real.thump_hurts)}")
    assert p > LEAST_P
