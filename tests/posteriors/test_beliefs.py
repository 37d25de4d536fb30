"""Beliefs in training: they learn from new levels alone, are part of the run, and ground the student well."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import samplr
from gym_icy_road import HostIcyRoad
from samplr import demo
from samplr.compiling import jit
from samplr.config import default_config
from samplr.envs.api import GroundedEnvironment
from samplr.envs.black_ice import BlackIce
from samplr.envs.fruit_choice import FruitChoice
from samplr.envs.icy_road import IcyRoad, solution
from samplr.errors import SamplrError
from samplr.host.training import HostTraining
from samplr.posteriors.calibration import calibration
from samplr.posteriors.priors import BetaEstimate
from samplr.testing import ContractError, check_environment
from samplr.training import Training
from tiny import UPDATES, SharedTraining, assert_same_run, sharing_programs, tiny_config

LEARNED = {"fictitious__posterior": "learned", "belief__memory": 8, "belief__bins": 8, "belief__epochs": 2}
ESTIMATED = {"fictitious__prior": "estimated"}
KINDS = {"learned": LEARNED, "estimated": ESTIMATED}


@pytest.fixture(autouse=True)
def _shared_programs() -> Iterator[None]:
    with sharing_programs():
        yield


def arrays(tree) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("kind", KINDS)
class TestTraining:
    def test_beliefs_learn_from_new_levels_alone(self, kind: str) -> None:
        training = SharedTraining(tiny_config(seeds=2, **KINDS[kind]))
        state, changed, new = training.init(), [], []
        for update in range(8):
            new.append(int(training.hyperparameters.teacher.schedule(jnp.int32(update))) == 0)
            before = arrays(state.runs.beliefs)
            state, log = training.advance(state, 1)
            after = arrays(state.runs.beliefs)
            changed.append(any((a != b).any() for a, b in zip(before, after, strict=True)))
            told = {name for name, mean in log.metrics.items() if name.startswith(("belief/", "prior/"))}
            assert told
            assert all((np.asarray(log.metrics[name].count) == new[-1]).all() for name in told)
        assert changed == new
        assert 2 <= sum(new) < 8
        if kind == "estimated":
            # Every new level was counted once, by each run.
            assert state.runs.beliefs.levels.tolist() == [8.0 * sum(new)] * 2

    def test_a_resumed_run_is_the_run_that_was_not_stopped(self, kind: str, tmp_path: Path) -> None:
        config = tiny_config(seeds=2, **KINDS[kind])
        samplr.train(config, tmp_path / "whole")
        samplr.train(dataclasses.replace(config, steps=config.steps // 2), tmp_path / "parts")
        run = samplr.train(config, tmp_path / "parts", resume=True)
        assert_same_run(tmp_path / "parts", tmp_path / "whole")
        assert run.summary["updates"] == UPDATES
        for one, other in zip(arrays(run.beliefs), arrays(samplr.load(tmp_path / "whole").beliefs), strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.slow
def test_simulators_on_the_host_have_beliefs_too() -> None:
    sizes = {"workers": 4, "seeds": 1, "replay__capacity": 8, "student__minibatches": 1, "processes": 0}
    trainings = [HostTraining(tiny_config(HostIcyRoad(), **sizes, **LEARNED))]
    trainings.append(Training(tiny_config(IcyRoad(), **sizes, **LEARNED)))
    ends = [training.advance(training.init(), 3) for training in trainings]
    for one, other in zip(*(arrays(state.runs.beliefs) for state, _ in ends), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert ends[0][1].metrics.keys() == ends[1][1].metrics.keys()


class Unknown(IcyRoad):
    """Icy road, if nobody could write its posterior down."""

    posterior = GroundedEnvironment.posterior

    def sample_aleatoric(self, layout, *, key):
        return IcyRoad().sample_aleatoric(layout, key=key)

    def oracle_scores(self):
        return {}


class TestWithoutAnExactPosterior:
    def test_a_learned_one_will_do(self) -> None:
        training = Training(tiny_config(Unknown(), seeds=1, **LEARNED))
        # Traced, not compiled: wherever the posterior were asked for, there would be an error.
        state = training.init()
        log = jax.eval_shape(training._advance_uncompiled, training.hyperparameters, state, jnp.int32(1))[1]
        assert "belief/cross_entropy" in log.metrics

    def test_an_exact_one_is_missed(self) -> None:
        for prior in ("known", "estimated"):
            with pytest.raises(SamplrError, match=r"Unknown has no exact posterior: choose --fictitious\.posterior le"):
                Training(tiny_config(Unknown(), fictitious__prior=prior))

    def test_the_laws_are_checked_all_the_same(self) -> None:
        check_environment(Unknown(), episodes=2)

        class Leaky(Unknown):
            def substitute(self, state, aleatoric):
                return state

        with pytest.raises(ContractError, match="law 2"):
            check_environment(Leaky(), episodes=8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fictitious__posterior": "learned", "fictitious__samples": "exact"}, "cannot: give a number"),
        ({"fictitious__posterior": "learned", "fictitious__prior": "estimated"}, "is for exact posteriors"),
        ({"belief__bins": 1}, "--belief.bins must be at least 2, not 1"),
        ({"belief__memory": 0}, "--belief.memory must be at least 1, not 0"),
        ({"belief__learning_rate": -1.0}, "--belief.learning-rate must be a positive number"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message) -> None:
    with pytest.raises(SamplrError, match=message):
        default_config("icy_road", "samplr", **changes)


@pytest.mark.parametrize("env", [IcyRoad(), FruitChoice(max_rooms=1), BlackIce()], ids=lambda env: type(env).__name__)
def test_worlds_fill_in_what_a_belief_leaves_open(env: GroundedEnvironment) -> None:
    def fill(key):
        level = env.sample_level(key=key)
        hidden = env.hidden(level.aleatoric)
        # All that `evidence` needs of a state differs from world to world; with nothing revealed this will do.
        nothing = jax.tree.map(jnp.zeros_like, _evidence_shapes(env))
        return level.aleatoric, hidden, env.complete(hidden, nothing, key=key)

    aleatoric, hidden, filled = jit(fill, runs_once=True)(jax.random.key(0))
    assert jax.tree.structure(filled) == jax.tree.structure(aleatoric)
    np.testing.assert_array_equal(env.hidden(filled), hidden)


def _evidence_shapes(env: GroundedEnvironment):
    def evidence(key):
        level = env.sample_level(key=key)
        return env.evidence(env.reset(env.build(level.layout), level.aleatoric, key=key)[0])

    return jax.eval_shape(evidence, jax.random.key(0))


@pytest.mark.slow
def test_black_ice_can_be_trained_with_a_learned_belief() -> None:
    sizes = {"workers": 2, "rollout": 3, "replay__capacity": 2, "student__minibatches": 1, "student__epochs": 1}
    training = Training(default_config("black_ice", "samplr", seeds=1, **sizes, **LEARNED))
    state, log = training.advance(training.init(), 2)
    loss = log.metrics["belief/cross_entropy"]
    assert float(loss.count[0]) >= 1
    # Nothing learned yet, so all eight bins are as likely.
    assert float(loss.total[0] / loss.count[0]) == pytest.approx(np.log(8), rel=0.05)
    assert all(np.isfinite(leaf).all() for leaf in arrays(state.runs.beliefs))


SEEDS = range(200, 204)
"""Seeds that no setting was chosen by."""


@pytest.mark.slow
class TestBars:
    """The demo's settings; the share of the Bayes optimum is exact, by dynamic programming."""

    @pytest.fixture(scope="class", params=["learned", "estimated"])
    @staticmethod
    def run(request: pytest.FixtureRequest) -> samplr.Run:
        chosen = {"learned": {"fictitious__posterior": "learned"}, "estimated": ESTIMATED}[request.param]
        updates = {"seeds": len(SEEDS), "first_seed": SEEDS[0], "gradient_updates": 250}
        return samplr.train(default_config("icy_road", "samplr", **updates, **chosen))

    def test_reach_98_percent_of_the_bayes_optimum(self, run: samplr.Run) -> None:
        tabulate = jit(jax.vmap(lambda network: solution.tabulate(run.env, network)), runs_once=True)
        students = demo.Students(tabulate(run.networks), jnp.zeros(len(SEEDS)))
        assert demo.measure({"samplr": students})["samplr"]["share"] >= 0.98

    def test_have_a_calibration_error_below_3_percent(self, run: samplr.Run) -> None:
        assert max(found.error for found in calibration(run, episodes=4096)) <= 0.03


def test_a_prior_estimated_from_1000_levels_costs_little() -> None:
    """What a student loses that acts best for P̂ instead of P̄, exactly; for 16 samples of 1,024 levels."""

    def share(key):
        env, per_rollout = IcyRoad(), 64

        def see(estimate, key):
            drawn = jax.vmap(lambda key: env.sample_aleatoric(None, key=key))(jax.random.split(key, per_rollout))
            return estimate.observe(drawn, jnp.ones(per_rollout, bool)), None

        estimate, _ = jax.lax.scan(see, BetaEstimate.empty(env.segments), jax.random.split(key, 1024 // per_rollout))
        predictive = (estimate.alpha + solution.icy_counts(env)) / (
            estimate.alpha + estimate.beta + solution.depths(env)
        )
        fast = (10 * predictive < 1).astype(jnp.float32)  # 2(1 − p) − 8p > 1
        return solution.utility(env, fast)[0] / solution.utility(env, solution.bayes_optimal(env))[0]

    shares = jit(jax.vmap(share), runs_once=True)(jax.random.split(jax.random.key(0), 16))
    assert float(shares.min()) >= 0.99
