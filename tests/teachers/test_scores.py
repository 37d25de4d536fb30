"""What a level is worth: the scores, by hand and as a teacher that observes a rollout computes them."""

import functools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.envs.api import Level, Origin
from samplr.envs.icy_road import IcyRoad
from samplr.errors import UnknownNameError
from samplr.posteriors import BernoulliField
from samplr.student.networks import ActorCritic, build_network
from samplr.teachers.api import Outcome
from samplr.teachers.buffer import LevelBuffer, Prioritisation
from samplr.teachers.plr import PrioritisedLevelReplay
from samplr.teachers.scores import SCORES, l1_value_loss, max_mc, positive_value_loss, score_named

from .conftest import STEPS, Trained

DRY, ICY = False, True
# A prior under which ice is so likely that driving slow is always best.
ROAD = IcyRoad(segments=2, alpha=1.0, beta=1.0)


def roads(*bits: Sequence[bool]) -> Level:
    """A level for each pattern of ice, stacked."""
    return Level(
        None, BernoulliField(jnp.zeros(len(bits)), jnp.array(bits)), jnp.full(len(bits), Origin.PRIOR, jnp.int32)
    )


def outcome(
    levels: Level,
    *,
    advantages: Sequence[Sequence[float]] = ((0.0,),),
    values: Sequence[Sequence[float]] = ((0.0,),),
    best_return: Sequence[float] = (0.0,),
    return_scale: float = 1.0,
    network: ActorCritic | None = None,
) -> Outcome:
    """An outcome; time-major tables are given one row for each *level*, which reads better."""
    return Outcome(
        levels=levels,
        advantages=jnp.asarray(advantages, jnp.float32).T,
        values=jnp.asarray(values, jnp.float32).T,
        best_return=jnp.asarray(best_return, jnp.float32),
        return_scale=jnp.float32(return_scale),
        network=network,
    )


def teacher(score: str, env: IcyRoad = ROAD) -> PrioritisedLevelReplay:
    return PrioritisedLevelReplay(
        temperature=jnp.float32(1),
        staleness=jnp.float32(0),
        replay_rate=0.5,
        capacity=4,
        new_rollouts_first=1,
        prioritisation=Prioritisation.POWER,
        score=score_named(score, env),
        robust=True,
    )


@functools.partial(jit, runs_once=True)
def observe(plr: PrioritisedLevelReplay, buffer: LevelBuffer, seen: Outcome) -> LevelBuffer:
    """Let a teacher observe, in one compiled program rather than operation by operation, which takes seconds."""
    return plr.observe(buffer, ROAD, seen)


EMPTY = teacher("positive_value_loss").init(ROAD)


def score_of(buffer: LevelBuffer, *bits: bool) -> float:
    """The score that a buffer holds for a road."""
    same = np.all(np.asarray(buffer.levels.aleatoric.bits) == np.array(bits), axis=1) & np.asarray(buffer.filled)
    (slot,) = np.flatnonzero(same)
    return float(buffer.score[slot])


# --- by hand ----------------------------------------------------------------------------------------------------------

TWO_ROADS = roads((DRY, DRY), (DRY, ICY))


def test_positive_value_loss_is_the_mean_over_steps_of_the_positive_part() -> None:
    seen = outcome(TWO_ROADS, advantages=[[1, -2, 3, 0], [-1, -2, -3, -4]])
    # (1 + 0 + 3 + 0) / 4; and 0, never less, for a level on which everything went worse than expected.
    np.testing.assert_allclose(positive_value_loss(seen, seen.best_return), [1.0, 0.0])


def test_l1_value_loss_is_the_mean_over_steps_of_the_absolute_value() -> None:
    seen = outcome(TWO_ROADS, advantages=[[1, -2, 3, 0], [-1, -2, -3, -4]])
    # (1 + 2 + 3 + 0) / 4 and (1 + 2 + 3 + 4) / 4.
    np.testing.assert_allclose(l1_value_loss(seen, seen.best_return), [1.5, 2.5])


def test_max_mc_is_the_mean_over_steps_of_best_return_minus_value() -> None:
    seen = outcome(TWO_ROADS, values=[[1, 2, 3, 0], [-3, -3, -3, -3]])
    # Mean of 6 − 1, 6 − 2, 6 − 3, 6 − 0 = 4.5; and −4 − (−3) = −1: negative returns count as they are.
    np.testing.assert_allclose(max_mc(seen, jnp.array([6.0, -4.0])), [4.5, -1.0])


def test_max_mc_brings_returns_to_the_scale_of_the_values() -> None:
    # The critic of a student with normalised returns speaks of returns divided by 2.
    seen = outcome(TWO_ROADS, values=[[1, 2, 3, 0], [-3, -3, -3, -3]], return_scale=2.0)
    # 6/2 − 1.5 and −4/2 + 3.
    np.testing.assert_allclose(max_mc(seen, jnp.array([6.0, -4.0])), [1.5, 1.0])


# --- as a teacher observes --------------------------------------------------------------------------------------------


def test_max_mc_remembers_the_best_return_from_one_observation_to_the_next() -> None:
    plr = teacher("max_mc")
    flat = [[1, 1], [1, 1]]
    first = observe(plr, EMPTY, outcome(TWO_ROADS, values=flat, best_return=[5, -3], return_scale=2.0))
    assert score_of(first, DRY, DRY) == pytest.approx(5 / 2 - 1)
    assert score_of(first, DRY, ICY) == pytest.approx(-3 / 2 - 1)

    # This time the dry road went worse (2 < 5) and the icy one better (−1 > −3); the scale has moved on as well, and
    # applies to what is remembered too, because what is remembered is a return.
    higher = [[2, 2], [2, 2]]
    second = observe(plr, first, outcome(TWO_ROADS, values=higher, best_return=[2, -1], return_scale=4.0))
    assert score_of(second, DRY, DRY) == pytest.approx(5 / 4 - 2)
    assert score_of(second, DRY, ICY) == pytest.approx(-1 / 4 - 2)
    np.testing.assert_allclose(sorted(np.asarray(second.best_return)), [-np.inf, -np.inf, -1, 5])


def test_max_mc_of_equal_levels_in_a_batch_takes_the_best_of_all_of_them() -> None:
    plr = teacher("max_mc")
    same_road = roads((DRY, ICY), (DRY, ICY))
    seen = outcome(same_road, values=[[1, 1], [3, 3]], best_return=[-8, 4])
    # Both copies score against 4: 4 − 1 and 4 − 3, mean 2.
    assert score_of(observe(plr, EMPTY, seen), DRY, ICY) == pytest.approx(2.0)


def test_a_dry_level_that_was_stored_is_scored_anew_with_the_latest_advantages() -> None:
    plr = teacher("positive_value_loss")
    buffer = observe(plr, EMPTY, outcome(TWO_ROADS, advantages=[[4, 2], [1, 1]]))
    assert score_of(buffer, DRY, DRY) == pytest.approx(3.0)
    buffer = observe(plr, buffer, outcome(TWO_ROADS, advantages=[[-1, 1], [2, 2]]))
    assert score_of(buffer, DRY, DRY) == pytest.approx(0.5)
    assert int(jnp.sum(buffer.filled)) == 2


@pytest.fixture(scope="module")
def three_quarters_fast() -> ActorCritic:
    """A student that drives fast with probability 3/4 whatever it sees."""
    build = jit(lambda key: build_network(ROAD, "mlp", (), 0, key=key), runs_once=True)
    network = build(jax.random.key(0))
    actor = network.actor
    return eqx.tree_at(
        lambda n: (n.actor.weight, n.actor.bias),
        network,
        (jnp.zeros_like(actor.weight), jnp.array([0.0, jnp.log(3.0)])),
    )


ALL_ROADS = roads((DRY, DRY), (DRY, ICY), (ICY, DRY))


def test_the_exact_regret_of_a_road_is_what_a_driver_told_the_ice_would_gain(three_quarters_fast: ActorCritic) -> None:
    plr = teacher("exact_regret")
    buffer = observe(plr, EMPTY, outcome(ALL_ROADS, best_return=[0] * 3, network=three_quarters_fast))
    # The student gets 1/4·1 + 3/4·2 = 1.75 on a dry segment and 1/4·1 − 3/4·8 = −5.75 on ice; told, 2 and 1.
    assert score_of(buffer, DRY, DRY) == pytest.approx((2 + 2) - (1.75 + 1.75))
    assert score_of(buffer, DRY, ICY) == pytest.approx((2 + 1) - (1.75 - 5.75))
    assert score_of(buffer, ICY, DRY) == pytest.approx((1 + 2) - (-5.75 + 1.75))


def test_the_grounded_regret_of_a_road_is_that_of_the_histories_it_leads_to(three_quarters_fast: ActorCritic) -> None:
    plr = teacher("grounded_regret")
    buffer = observe(plr, EMPTY, outcome(ALL_ROADS, best_return=[0] * 3, network=three_quarters_fast))
    # P̄(next is icy) is 1/2 at first, 1/3 after a dry and 2/3 after an icy segment. Driving slow (1) is best everywhere,
    # driving fast gives 2 − 10p, so each step loses 3/4·(10p − 1): 3, then 7/4 or 17/4. At the start the student still
    # has 3 + (7/4 + 17/4)/2 = 6 to lose. The score is the mean over the two histories at which it decides.
    assert score_of(buffer, DRY, DRY) == pytest.approx((6 + 7 / 4) / 2)
    assert score_of(buffer, ICY, DRY) == pytest.approx((6 + 17 / 4) / 2)
    # What the last segment is like no decision can have known: it does not matter.
    assert score_of(buffer, DRY, ICY) == pytest.approx(score_of(buffer, DRY, DRY))


def test_where_no_episode_finished_max_mc_goes_by_what_the_critic_expects_in_the_units_of_returns(
    robust_plr: Trained,
) -> None:
    # A student that always drives slow (+1 a step) and whose critic says 4 whatever it sees.
    state = robust_plr.fresh()
    network = state.runs.network
    always_slow, always_four = jnp.array([[50.0, -50.0]]), jnp.array([[4.0]])
    state = eqx.tree_at(
        lambda s: (
            s.runs.network.actor.weight,
            s.runs.network.actor.bias,
            s.runs.network.critic.weight,
            s.runs.network.critic.bias,
        ),
        state,
        (jnp.zeros_like(network.actor.weight), always_slow, jnp.zeros_like(network.critic.weight), always_four),
    )
    state, _ = robust_plr.training.advance(state, 1)
    # The discounted returns so far are 1 and 1 + γ, whose standard deviation is γ/2 = 0.495.
    deviation = 0.99 / 2
    np.testing.assert_allclose(state.runs.scale.deviation, [deviation], rtol=1e-5)
    # After two steps the return is 2, and the critic expects 4 deviations more.
    buffer = state.runs.teacher
    filled = np.asarray(buffer.filled)
    np.testing.assert_allclose(np.asarray(buffer.best_return)[filled], STEPS + 4 * deviation, rtol=1e-5)
    # So that against the value of 4 at every step what is left is the return so far, 2, in deviations.
    np.testing.assert_allclose(np.asarray(buffer.score)[filled], STEPS / deviation, rtol=1e-5)


# --- names ------------------------------------------------------------------------------------------------------------


def test_scores_are_found_by_name() -> None:
    assert {name: score_named(name, ROAD) for name in SCORES} == dict(SCORES)


def test_an_unknown_score_is_refused_with_the_known_ones_and_the_oracles() -> None:
    with pytest.raises(UnknownNameError) as error:
        score_named("regret", ROAD)
    assert str(error.value) == (
        "unknown score 'regret': choose one of "
        "exact_regret, grounded_regret, l1_value_loss, max_mc, positive_value_loss"
    )
