"""Fruit choice as a world: its laws, what an episode pays, the posterior, levels and suites."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import samplr.envs.fruit_choice.world
from samplr.compiling import jit
from samplr.config import default_config
from samplr.envs import make_environment
from samplr.envs.api import Level
from samplr.envs.fruit_choice import FruitChoice
from samplr.envs.fruit_choice.rules import Action
from samplr.envs.fruit_choice.terrain import Rooms
from samplr.envs.fruit_choice.world import RightFruit
from samplr.errors import LevelError, SamplrError
from samplr.grounding import Fictitious, Moment, Naive
from samplr.testing import check_environment

ENV = FruitChoice(step_limit=12)
KEY = jax.random.key(0)
APPLE, BANANA = RightFruit(jnp.array(True)), RightFruit(jnp.array(False))


def one_room() -> Rooms:
    """Floor of three rows and five columns: the apple is east of the start, the banana south of it."""
    none = jnp.zeros((8, 2), jnp.int32)
    return Rooms(
        count=jnp.int32(1),
        corners=none.at[0].set(jnp.array([4, 20])),
        sizes=none.at[0].set(jnp.array([5, 7])),
        doors=none[1:],
        start=jnp.array([5, 21]),
        apple=jnp.array([5, 22]),
        banana=jnp.array([6, 21]),
    )


WORLD = jit(ENV.build)(one_room())
step = jit(ENV.step)


@pytest.fixture(scope="module")
def reset():
    return jit(ENV.reset)


def play(state, *keys: Action):
    """The steps that some keys make."""
    steps = []
    for i, key in enumerate(keys):
        steps.append(step(WORLD, state, jnp.int32(key), key=jax.random.fold_in(KEY, i)))
        state = steps[-1].state
    return steps


TO_APPLE, TO_BANANA = (Action.E, Action.EAT, Action.NW), (Action.S, Action.EAT, Action.NW)


# --- The laws -------------------------------------------------------------------------------------------------------


def test_keeps_the_laws_of_the_contract():
    check_environment(FruitChoice(max_rooms=2), episodes=8)


def test_goes_by_its_name():
    assert isinstance(make_environment("fruit_choice"), FruitChoice)


# --- An episode -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "right", "reward"),
    [(TO_APPLE, APPLE, 3.0), (TO_APPLE, BANANA, 0.0), (TO_BANANA, APPLE, 0.0), (TO_BANANA, BANANA, 10.0)],
)
def test_the_right_fruit_pays(reset, keys, right, reward):
    steps = play(reset(WORLD, right, key=KEY)[0], *keys)
    assert [float(s.reward) for s in steps] == [0, 0, reward]
    assert [bool(s.terminated) for s in steps] == [False, False, True]
    assert not any(s.truncated for s in steps)
    ate_apple = keys == TO_APPLE
    assert {name: float(value) for name, value in steps[-1].metrics.items()} == {
        "solved": 1,
        "ate_apple": ate_apple,
        "ate_banana": not ate_apple,
        "died": 0,
        "rooms": 1,
        "rooms_solved": 1,
    }


def test_rewards_are_settings(reset):
    env = FruitChoice(apple_reward=-1.0, banana_reward=4.0)
    asked = play(reset(WORLD, APPLE, key=KEY)[0], Action.E, Action.EAT)[-1].state
    assert jit(lambda key: env.step(WORLD, asked, jnp.int32(Action.NW), key=key).reward, runs_once=True)(KEY) == -1


def test_an_episode_is_truncated_at_its_limit(reset):
    steps = play(reset(WORLD, APPLE, key=KEY)[0], *[Action.E, Action.W] * 6)
    assert [bool(s.truncated) for s in steps] == [False] * 11 + [True]
    assert not any(s.terminated for s in steps)
    assert steps[-1].metrics["rooms"] == 1
    assert steps[-1].metrics["rooms_solved"] == steps[-1].metrics["solved"] == 0


def test_eating_at_the_limit_is_eating(reset):
    keys = [Action.E, Action.W] * 4 + [Action.N, *TO_APPLE]
    last = play(reset(WORLD, APPLE, key=KEY)[0], *keys)[-1]
    assert last.state.steps == 12
    assert last.terminated
    assert not last.truncated
    assert last.reward == 3


def test_kicking_walls_kills(reset):
    state, _ = reset(WORLD, APPLE, key=KEY)
    weak = eqx.tree_at(lambda state: state.game.hp, state, jnp.int32(1))
    last = play(weak, Action.KICK, Action.N)[-1]
    assert last.terminated
    assert not last.truncated
    assert last.reward == 0
    assert last.metrics["died"] == 1
    assert last.metrics["solved"] == 0


def test_dying_at_the_limit_is_dying(reset):
    state, _ = reset(WORLD, APPLE, key=KEY)
    weak = eqx.tree_at(lambda state: (state.game.hp, state.steps), state, (jnp.int32(1), jnp.int32(10)))
    last = play(weak, Action.KICK, Action.N)[-1]
    assert last.state.steps == ENV.step_limit
    assert last.terminated
    assert not last.truncated


def test_heroes_differ_and_begin_on_the_stairs(reset):
    observations = [reset(WORLD, APPLE, key=jax.random.key(i))[1] for i in range(8)]
    assert all(o["blstats"][:2].tolist() == [21, 5] for o in observations)
    assert len({tuple(o["blstats"][2:9].tolist()) for o in observations}) > 1
    assert all(np.array_equal(o["glyphs"], observations[0]["glyphs"]) for o in observations)


def test_an_observation_is_what_nethack_gives(reset):
    _, observation = reset(WORLD, APPLE, key=KEY)
    glyphs, blstats = observation["glyphs"], observation["blstats"]
    assert (glyphs.dtype, glyphs.shape) == (jnp.int16, (21, 79))
    assert (blstats.dtype, blstats.shape) == (jnp.int32, (27,))
    # The hero on the stairs, the apple, the banana, and floor.
    assert glyphs[5:7, 21:23].tolist() == [[337, 2158], [2162, 2378]]


def test_luck_is_in_the_key(reset):
    # Into empty space: only the strain is luck, and only for clumsy heroes.
    state, _ = reset(WORLD, APPLE, key=KEY)
    clumsy = eqx.tree_at(lambda state: state.game.attributes, state, jnp.array([12, 9, 9, 10, 10, 9]))
    asked = play(clumsy, Action.KICK)[-1].state
    keys = jax.random.split(KEY, 300)
    kicks = jit(jax.vmap(lambda key: ENV.step(WORLD, asked, jnp.int32(Action.SE), key=key).state.game.wound > 0))(keys)
    assert stats.binomtest(int(kicks.sum()), 300, 1 / 3).pvalue > 0.001


# --- Grounding ------------------------------------------------------------------------------------------------------


def test_the_posterior_is_the_prior(reset):
    state, _ = reset(WORLD, APPLE, key=KEY)
    for now in (state, play(state, *TO_APPLE[:2])[-1].state):
        candidates, weights = ENV.posterior.support(None, ENV.evidence(now))
        assert candidates.apple_is_right.tolist() == [True, False]
        assert weights == pytest.approx([0.7, 0.3])
    keys = jax.random.split(KEY, 10_000)
    drawn = jax.vmap(lambda key: ENV.posterior.sample(None, None, key=key).apple_is_right)(keys)
    truth = jax.vmap(lambda key: ENV.sample_aleatoric(one_room(), key=key).apple_is_right)(keys)
    for apples in (drawn, truth):
        assert stats.binomtest(int(apples.sum()), 10_000, 0.7).pvalue > 0.001


@pytest.mark.parametrize("q", [0.0, 1.0])
def test_a_certain_fruit_is_certain(q):
    env = FruitChoice(q=q)
    _, weights = env.posterior.support(None, None)
    assert weights.tolist() == [q, 1 - q]
    assert float(env.posterior.sample(None, None, key=KEY).apple_is_right) == q


def test_substituting_changes_the_fruit_alone(reset):
    state, observation = reset(WORLD, APPLE, key=KEY)
    later = play(state, Action.E)[-1]
    for now, seen in ((state, observation), (later.state, later.observation)):
        other = ENV.substitute(now, BANANA)
        assert not other.right.apple_is_right
        assert eqx.tree_equal(ENV.substitute(other, APPLE), now)
        assert eqx.tree_equal(ENV.observe(WORLD, other), seen)


@pytest.fixture(scope="module")
def groundings():
    """One step as `fictitious` takes it (with several draws), and as `naive` does, with the same key."""

    def both(state, action, key):
        moment = Moment(WORLD, state, action, state.right, None, key)
        return Fictitious(8).step(ENV, moment, key=jax.random.fold_in(key, 1)), Naive().step(ENV, moment, key=key)

    return jit(both)


def test_before_the_end_fictitious_transitions_are_the_real_ones(reset, groundings):
    # As the paper says: in this world SAMPLR comes down to naive grounding.
    state, _ = reset(WORLD, BANANA, key=KEY)
    keys = [Action.KICK, Action.SE, Action.KICK, Action.E, Action.S, Action.EAT, Action.SE, Action.KICK, Action.W]
    for i, key in enumerate(keys):
        (real, primed), (same, naive) = groundings(state, jnp.int32(key), jax.random.fold_in(KEY, i))
        assert eqx.tree_equal(real, same)
        assert primed.matched == pytest.approx(1)
        for draw in range(8):
            version = jax.tree.map(lambda leaf: leaf[draw], (primed.observation, primed.reward, primed.terminated))  # noqa: B023
            expected = jax.tree.map(lambda leaf: leaf[0], (naive.observation, naive.reward, naive.terminated))
            assert eqx.tree_equal(version, expected)
        state = real.state
    assert state.game.turn > 1


def test_at_the_end_they_differ_by_the_fruit_drawn(reset):
    asked = play(reset(WORLD, BANANA, key=KEY)[0], *TO_BANANA[:2])[-1].state
    moment = Moment(WORLD, asked, jnp.int32(Action.NW), asked.right, None, KEY)
    real, primed = jit(lambda key: Fictitious("exact").step(ENV, moment, key=key), runs_once=True)(KEY)
    assert real.reward == 10
    # First the apple is right, then the banana.
    assert primed.reward.tolist() == [0, 10]
    assert primed.weight == pytest.approx([0.7, 0.3])
    assert primed.terminated.all()
    assert primed.matched == pytest.approx(0.3)
    for name, part in primed.observation.items():
        assert np.array_equal(part[0], part[1])
        assert np.array_equal(part[0], real.observation[name])


def test_the_banana_is_the_better_bet():
    # The paper's figures: 2.1 for apples, 3.0 for bananas.
    env = FruitChoice()
    assert env.q * env.apple_reward == pytest.approx(2.1)
    assert (1 - env.q) * env.banana_reward == pytest.approx(3.0)


def test_the_summary_is_the_apples_share():
    assert ENV.summaries(APPLE) == {"apple": 1}
    assert ENV.summaries(BANANA) == {"apple": 0}


# --- Levels and suites ----------------------------------------------------------------------------------------------


def test_suites_go_by_the_number_of_rooms():
    suites = FruitChoice(max_rooms=3).suites()
    assert list(suites) == ["ground_truth", "rooms"]
    assert list(suites["rooms"]) == ["1 room", "2 rooms", "3 rooms"]
    assert list(FruitChoice().suites()["rooms"])[-1] == "8 rooms"
    keys = jax.random.split(KEY, 2000)
    for i, sample in enumerate(suites["rooms"].values()):
        counts, apples = jit(
            jax.vmap(lambda key: (sample(key).layout.count, sample(key).aleatoric.apple_is_right)),  # noqa: B023
            runs_once=True,
        )(keys)
        assert (counts == i + 1).all()
        assert stats.binomtest(int(apples.sum()), 2000, 0.7).pvalue > 0.001


def test_levels_survive_json():
    level = Level(one_room(), BANANA)
    data = json.loads(json.dumps(ENV.level_to_json(level)))
    assert data["layout.start"] == [5, 21]
    assert data["aleatoric.apple_is_right"] is False
    assert eqx.tree_equal(ENV.level_from_json(data), level)


def test_levels_that_cannot_be_played_are_refused():
    data = ENV.level_to_json(Level(one_room(), BANANA))
    with pytest.raises(LevelError, match="the apple and the banana share a cell, row 5, column 22"):
        ENV.level_from_json({**data, "layout.banana": [5, 22]})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"q": 1.5}, "a q between 0 and 1, not 1.5"),
        ({"q": float("nan")}, "a q between 0 and 1, not nan"),
        ({"max_rooms": 0}, "max_rooms between 1 and 8, not 0"),
        ({"max_rooms": 9}, "max_rooms between 1 and 8, not 9"),
        ({"step_limit": 0}, "a step_limit of at least 1, not 0"),
    ],
)
def test_settings_that_make_no_world_are_refused(setting, message):
    with pytest.raises(SamplrError, match=message):
        FruitChoice(**setting)


def test_the_defaults_are_the_papers():
    config = default_config("fruit_choice")
    student, replay = config.student, config.replay
    assert (student.discount, student.gae_lambda, student.learning_rate) == (0.995, 0.95, 1e-4)
    assert (student.epochs, student.minibatches, student.clip, student.clip_values) == (5, 1, 0.2, True)
    assert (student.value_coefficient, student.entropy_coefficient, student.normalise_returns) == (0.5, 0.0, False)
    assert (replay.rate, replay.capacity, replay.temperature, replay.staleness) == (0.95, 4000, 0.3, 0.3)
    assert (replay.prioritisation, replay.score) == ("rank", "positive_value_loss")
    assert (config.workers, config.rollout, config.steps) == (32, 256, 200_000_000)
    assert student.memory == 512
    assert student.encoder in ENV.encoders()


def test_a_picture_shows_more_than_the_agent_sees(reset):
    state, _ = reset(WORLD, APPLE, key=KEY)
    shown = ENV.render(WORLD, state)
    assert shown.dtype == np.uint8
    assert shown.ndim == 3
    assert not np.array_equal(shown, ENV.render(WORLD, ENV.substitute(state, BANANA)))
    level = ENV.render_level(WORLD, state)
    assert level.shape == (320, 480, 3)
    assert not np.array_equal(level, ENV.render_level(WORLD, ENV.substitute(state, BANANA)))


@pytest.mark.parametrize(("fruit", "place"), [(APPLE, (5, 22)), (BANANA, (6, 21))], ids=["apple", "banana"])
def test_the_frame_is_around_the_right_fruit(reset, monkeypatch, fruit, place):
    monkeypatch.setattr(samplr.envs.fruit_choice.world, "level_picture", lambda glyphs, right: right)
    assert ENV.render_level(WORLD, reset(WORLD, fruit, key=KEY)[0]) == place
