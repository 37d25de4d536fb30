"""What can never happen, whatever the level and the keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samplr.compiling import jit
from samplr.envs.fruit_choice import rules
from samplr.envs.fruit_choice.rooms import sample_rooms
from samplr.envs.fruit_choice.rules import Action, Eaten
from samplr.envs.fruit_choice.terrain import terrain_of

N_, E, S, W, NE, SE, SW, NW, KICK, EAT = Action
COMPASS = [N_, E, S, W, NE, SE, SW, NW]
STEPS = 80


@pytest.fixture(scope="module")
def play():
    """Any level, any keys; returns the terrain and the games from the first to the last."""

    def run(key, actions):
        level_key, hero_key, steps_key = jax.random.split(key, 3)
        rooms = sample_rooms(3, key=level_key)
        terrain = terrain_of(rooms)
        first = rules.begin(rooms, rules.draw_attributes(key=hero_key))

        def step(now, inputs):
            action, key = inputs
            after, eaten = rules.act(terrain, now, action, rules.draw_chances(now, key=key))
            return after, (after, eaten, terrain.clear(after.scene.broken)[tuple(after.scene.hero)])

        _, (games, eaten, on_clear) = jax.lax.scan(step, first, (actions, jax.random.split(steps_key, STEPS)))
        games = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, games)
        return terrain, games, eaten, on_clear

    return jit(run)


# Kicks open doors only where a direction follows, which random keys seldom are.
keys = st.lists(
    st.one_of(
        st.sampled_from(COMPASS).map(lambda key: [key]),
        st.sampled_from(COMPASS).map(lambda key: [KICK, key]),
        st.sampled_from([[KICK], [EAT], [EAT, NW]]),
    ),
    min_size=STEPS,
    max_size=STEPS,
).map(lambda parts: [int(key) for part in parts for key in part][:STEPS])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), actions=keys)
def test_what_never_happens(play, seed, actions):
    terrain, games, eaten, on_clear = jax.tree.map(np.asarray, play(jax.random.key(seed), jnp.array(actions)))
    assert on_clear.all()
    assert np.all(games.hp <= 12)
    broken = games.scene.broken
    assert not np.any(broken[:-1] & ~broken[1:])
    assert not broken[:, terrain.count - 1 :].any()
    alive = games.hp[:-1] > 0
    assert np.isin(np.diff(games.turn), [0, 1]).all()
    assert np.all(games.wound >= 0)
    assert np.all(games.wound[games.hp > 0] <= 9)
    moved = np.abs(np.diff(games.scene.hero, axis=0)).max(axis=1)
    assert np.all(moved <= 1)
    assert np.all(np.diff(games.turn)[(moved == 1) & alive] == 1)
    # Nothing but a door is broken, nothing is eaten but what lies under the hero, and fruit stays where one can walk.
    here = [np.all(cell == games.scene.hero, axis=1)[:-1] for cell in (games.scene.apple, games.scene.banana)]
    assert np.all(here[0][eaten == Eaten.APPLE])
    assert np.all(here[1][eaten == Eaten.BANANA])
    clear = np.asarray(jax.vmap(terrain.clear)(jnp.asarray(broken)))
    for cell in (games.scene.apple, games.scene.banana):
        assert clear[np.arange(len(cell)), cell[:, 0], cell[:, 1]].all()
