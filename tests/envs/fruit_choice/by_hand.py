"""A small level drawn by hand, games in the middle of it, and keys to press."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from samplr.compiling import jit
from samplr.envs.fruit_choice import rules
from samplr.envs.fruit_choice.rules import Action, Chances, Eaten, Game
from samplr.envs.fruit_choice.terrain import Rooms, terrain_of

#        10    16       25
#     2        ----------
#     3  -------........|
#     4  |.....|........|
#     5  |.<...+.a......|      the hero begins on the stairs, a is the apple,
#     6  |.....|...b....|      b the banana
#     7  -----------------

START, DOOR, APPLE, BANANA = (5, 12), (5, 16), (5, 18), (6, 20)


def level() -> Rooms:
    none = jnp.zeros((8, 2), jnp.int32)
    return Rooms(
        count=jnp.int32(2),
        corners=none.at[:2].set(jnp.array([(3, 10), (2, 16)])),
        sizes=none.at[:2].set(jnp.array([(5, 7), (6, 10)])),
        doors=none[1:].at[0].set(jnp.array(DOOR)),
        start=jnp.array(START),
        apple=jnp.array(APPLE),
        banana=jnp.array(BANANA),
    )


ATTRIBUTES = {"strength": 17, "intelligence": 11, "wisdom": 8, "dexterity": 15, "constitution": 13, "charisma": 8}
TERRAIN = terrain_of(level())
act = jit(rules.act)
statistics = jit(rules.blstats)


def game(
    hero=START, *, apple=APPLE, banana=BANANA, banana_on_top=False, broken=False, hp=12, turn=1, wound=0, **changes
):
    attributes = jnp.array(list({**ATTRIBUTES, **changes}.values()), jnp.int32)
    now = rules.begin(level(), attributes)
    return eqx.tree_at(
        lambda now: (
            now.scene.hero,
            now.scene.apple,
            now.scene.banana,
            now.scene.banana_on_top,
            now.scene.broken,
            now.hp,
            now.turn,
            now.wound,
        ),
        now,
        (
            jnp.array(hero),
            jnp.array(apple),
            jnp.array(banana),
            jnp.array(banana_on_top),
            now.scene.broken.at[0].set(broken),
            jnp.int32(hp),
            jnp.int32(turn),
            jnp.int32(wound),
        ),
    )


def luck(opens=False, damage=2, wounded=False, turns=6, strained=False, thump_hurts=False) -> Chances:
    return Chances(
        jnp.array(opens),
        jnp.int32(damage),
        jnp.array(wounded),
        jnp.int32(turns),
        jnp.array(strained),
        jnp.array(thump_hurts),
    )


def press(now: Game, *keys: Action, chances: Chances | None = None) -> Game:
    """Press some keys, none of which eats anything."""
    for key in keys:
        now, eaten = act(TERRAIN, now, jnp.int32(key), chances or luck())
        assert eaten == Eaten.NOTHING
    return now


def place(cell) -> tuple[int, int]:
    row, column = np.asarray(cell).tolist()
    return row, column


def unchanged(before: Game, after: Game) -> bool:
    return bool(eqx.tree_equal(before, after))
