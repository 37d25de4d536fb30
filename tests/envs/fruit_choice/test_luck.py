"""Luck by its odds: kicks, and the attributes of a hero."""

import jax
import numpy as np
import pytest
from scipy import stats

from samplr.compiling import jit
from samplr.envs.fruit_choice import rules
from samplr.envs.fruit_choice.rules import Chances

from .by_hand import game

N = 10_000


def many_chances(**attributes) -> Chances:
    now = game(**attributes)
    keys = jax.random.split(jax.random.key(5), 10 * N)
    return jit(jax.vmap(lambda key: rules.draw_chances(now, key=key)), runs_once=True)(keys)


def fair(outcomes, probability: float) -> bool:
    return stats.binomtest(int(outcomes.sum()), len(outcomes), probability).pvalue > 0.001


def uniform(values, low: int, high: int) -> bool:
    counts = np.bincount(np.asarray(values), minlength=high + 1)
    return not counts[:low].any() and len(counts) == high + 1 and stats.chisquare(counts[low:]).pvalue > 0.001


@pytest.mark.parametrize(
    ("strength", "dexterity", "constitution", "average", "most"),
    [(17, 15, 13, 15, 5), (9, 16, 15, 13, 5), (60, 18, 18, 18, 3), (10, 13, 16, 13, 3)],
)
def test_the_odds_of_kicks(strength, dexterity, constitution, average, most):
    drawn = many_chances(strength=strength, dexterity=dexterity, constitution=constitution)
    assert fair(drawn.door_opens, average / 35)
    assert uniform(drawn.damage, 1, most)
    assert fair(drawn.wounded, 1 / 3)
    assert uniform(drawn.wound_turns, 6, 10)
    assert fair(drawn.thump_hurts, 2 / 3)
    assert fair(drawn.strained, 1 / 3) if dexterity < 16 else not drawn.strained.any()


def a_rogue(dice: np.random.Generator) -> list[int]:
    """Attributes as NetHack rolls them, die by die."""
    points, most = [7, 7, 7, 10, 7, 6], [118, 18, 18, 18, 18, 18]
    while sum(points) < 75:
        x = int(dice.integers(100))
        i = next(i for i, upto in enumerate([20, 30, 40, 70, 90, 100]) if x <= upto)
        points[i] += points[i] < most[i]
    for i in range(6):
        if dice.integers(20) == 0:
            points[i] = min(points[i] + int(dice.integers(7)) - 2, most[i])
    return points


def test_heroes_are_rolled_as_in_nethack():
    dice = np.random.default_rng(0)
    theirs = np.array([a_rogue(dice) for _ in range(N)])
    draw = jit(jax.vmap(lambda key: rules.draw_attributes(key=key)), runs_once=True)
    ours = np.asarray(draw(jax.random.split(jax.random.key(4), N)))
    assert ours.dtype == np.int32
    # Each attribute, all of them together, and what a kick's odds go by.
    figures = [lambda a, i=i: a[:, i] for i in range(6)] + [
        lambda a: a.sum(axis=1),
        lambda a: a[:, [0, 3, 4]].sum(axis=1),
    ]
    for figure in figures:
        counts = [np.bincount(figure(a), minlength=150) for a in (ours, theirs)]
        table = np.array(counts)
        rare = table.sum(axis=0) < 20
        table = np.concatenate([table[:, ~rare], table[:, rare].sum(axis=1, keepdims=True)], axis=1)
        assert stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue > 0.001
