"""Training: runs side by side are the runs alone, and what the student learns from is as the method says."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import samplr
from samplr.compiling import jit
from samplr.config import default_config
from samplr.envs.icy_road import IcyRoad, solution
from samplr.reproduce.learned import ice_of
from samplr.rollout import Rollout
from samplr.shift import ShiftMonitor
from samplr.training import Training, TrainState, build_hyperparameters, memory_warning, over_devices
from samplr.trees import repeat
from tiny import tiny_config

UPDATES = 20
FIRST_SEED = 3


def small(seeds: int, first_seed: int = FIRST_SEED, **changes):
    """A small `samplr` run: two rollouts of new levels, then mostly replay."""
    sizes = {"workers": 8, "rollout": 12, "replay__capacity": 32, "student__hidden": (16,)}
    return default_config("icy_road", "samplr", seeds=seeds, first_seed=first_seed, **sizes, **changes)


def sharing(program: Training, training: Training) -> Training:
    """A training that uses another's compiled program, which compiling again would give: it differs in its inputs."""
    training._advance = program._advance
    return training


def figures(log) -> dict[str, np.ndarray]:
    """Everything a log tells, one number for each run."""
    means = {
        name: np.asarray(mean.total) / np.where(np.asarray(mean.count) > 0, mean.count, np.nan)
        for name, mean in log.metrics.items()
    }
    shift = {
        f"{kind}/{name}/{i}": np.asarray(count)
        for kind, histograms in (("real", log.shift.real), ("met", log.shift.met))
        for name, histogram in histograms.items()
        for i, count in enumerate(np.asarray(histogram.counts).T)
    }
    return means | shift


def arrays(tree) -> list[np.ndarray]:
    keys = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [np.asarray(jax.random.key_data(leaf) if keys(leaf) else leaf) for leaf in jax.tree.leaves(tree)]


def cut_out(state: TrainState, run: int) -> TrainState:
    """One run of a batch, as a batch of its own."""
    return TrainState(jax.tree.map(lambda leaf: leaf[run : run + 1], state.runs), state.update)


@pytest.fixture(scope="module", autouse=True)
def one_monitor_for_each_environment():
    """The monitor samples the ground truth when it is made: here once for all trainings in the same world."""

    class Remembered(ShiftMonitor):
        of = functools.cache(ShiftMonitor.of)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samplr.training, "ShiftMonitor", Remembered)
        yield


@pytest.fixture(scope="module")
def four() -> Training:
    return Training(small(seeds=4))


@pytest.fixture(scope="module")
def beginning(four):
    """A copy of the state before the first update, for `advance` to consume."""
    state = four.init()
    return lambda: jax.tree.map(jnp.copy, state)


@pytest.fixture(scope="module")
def together(four, beginning):
    """Four runs side by side: where they ended, and what they logged."""
    return four.advance(beginning(), UPDATES)


class TestRunsSideBySide:
    @pytest.fixture(scope="class")
    @staticmethod
    def program():
        return Training(small(seeds=1))

    @pytest.fixture(scope="class")
    @staticmethod
    def alone(program, beginning):
        """Each of the four on its own, from where it began."""
        return [program.advance(cut_out(beginning(), run), UPDATES) for run in range(4)]

    def test_begin_as_the_runs_alone(self, beginning):
        # Each depends on its own seed, not on its place in the batch.
        alone = Training(small(seeds=1, first_seed=FIRST_SEED + 2)).init()
        for one, other in zip(arrays(cut_out(beginning(), 2)), arrays(alone), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)

    def test_give_the_metrics_of_the_runs_alone(self, together, alone):
        found = figures(together[1])
        assert {"new/return", "replay/return", "student/policy", "student/kl", "buffer/score"} < set(found)
        for run, (_, log) in enumerate(alone):
            for name, value in figures(log).items():
                assert np.isfinite(value).all(), name
                assert found[name][run] == pytest.approx(value[0], rel=1e-5, abs=1e-5), name

    def test_give_the_students_of_the_runs_alone(self, together, alone):
        for run, (state, _) in enumerate(alone):
            for one, other in zip(arrays(cut_out(together[0], run)), arrays(state), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)

    def test_are_different_runs(self, together):
        for name in ("student/entropy", "replay/advantage"):
            assert len(np.unique(figures(together[1])[name])) == 4


class TestUpdates:
    def test_may_be_split_over_calls_in_any_way(self, four, beginning, together):
        state, logs = beginning(), []
        for updates in (1, 6, 0, 13):
            state, log = four.advance(state, updates)
            logs.append(log)
        assert int(state.update) == int(together[0].update) == UPDATES
        for one, other in zip(arrays(state), arrays(together[0]), strict=True):
            assert one.tobytes() == other.tobytes()
        # The logs add up; sums of floats to rounding, counts exactly.
        total = jax.tree.map(lambda *leaves: sum(leaves), *logs)
        for name, mean in together[1].metrics.items():
            np.testing.assert_array_equal(total.metrics[name].count, mean.count)
            np.testing.assert_allclose(total.metrics[name].total, mean.total, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(total.shift.real["ice"].counts, together[1].shift.real["ice"].counts)

    def test_robust_plr_takes_no_gradient_on_new_levels(self, four, beginning, together):
        first = beginning()
        learned = four.gradient_updates(UPDATES)
        assert learned[:2].tolist() == [0, 0]  # half of a buffer of 32 with 8 workers: two rollouts of new levels
        before = arrays(first.runs.network)
        after, log = four.advance(first, 2)
        for one, other in zip(before, arrays(after.runs.network), strict=True):
            assert one.tobytes() == other.tobytes()
        assert np.asarray(after.runs.teacher.filled).sum() > 0
        assert not np.asarray(log.shift.real["ice"].counts).any()  # the monitor counts what was learned from
        # Over all updates, the student learned exactly as often as the schedule says.
        assert 0 < learned[-1] < UPDATES
        assert np.asarray(together[1].metrics["student/policy"].count).tolist() == [learned[-1]] * 4
        assert together[1].shift.real["ice"].counts.sum(axis=-1).tolist() == [8 * learned[-1]] * 4


def test_what_a_critic_supposes_when_it_is_not_told_is_not_learned():
    sizes = {"workers": 8, "rollout": 12, "student__hidden": (16,)}
    training = Training(default_config("icy_road", "dr", seeds=2, student__informed_critic=True, **sizes))
    begin = training.init()
    before = jax.tree.map(np.asarray, eqx.filter(begin.runs.network, eqx.is_array))
    after, _ = training.advance(begin, 3)
    network = after.runs.network
    np.testing.assert_array_equal(network.usual_hidden, before.usual_hidden)
    assert np.abs(network.critic.weight - before.critic.weight).min(axis=(0, 2)).min() > 0


class TestBudget:
    @pytest.mark.parametrize("method", ["dr", "plr", "samplr"])
    def test_equal_gradient_updates_for_every_method(self, method):
        training = Training(default_config("icy_road", method, gradient_updates=30))
        total = training.total_updates()
        # The last update is the one with which the thirtieth gradient update is made.
        phases = [int(training.hyperparameters.teacher.schedule(jnp.int32(update))) for update in range(total)]
        learned = np.cumsum([training.phases[phase].learn for phase in phases])
        assert learned[-1] == 30
        assert total == 1 or learned[-2] == 29
        np.testing.assert_array_equal(training.gradient_updates(total), learned)
        # Only PLR⊥ spends rollouts without learning from them.
        assert (total > 30) == (method == "samplr")

    @pytest.mark.parametrize(("steps", "updates"), [(1, 1), (96, 1), (97, 2), (960, 10)])
    def test_steps_are_rounded_up_to_whole_rollouts(self, steps, updates):
        training = Training(small(seeds=1, steps=steps))
        assert training.steps_per_update == 8 * 12
        assert training.total_updates() == updates


class TestHyperparameters:
    def test_may_differ_from_run_to_run(self, four, beginning):
        rates = (1e-3, 1e-3, 1e-2, 1e-2)
        own = repeat(build_hyperparameters(small(seeds=4)), 4)
        own = eqx.tree_at(lambda h: h.ppo.learning_rate, own, jnp.array(rates))
        sweep = sharing(four, Training(small(seeds=4), own))
        _, log = sweep.advance(beginning(), UPDATES)
        swept = figures(log)
        apart = {}
        for rate in set(rates):
            training = sharing(four, Training(small(seeds=4, student__learning_rate=rate)))
            apart[rate] = figures(training.advance(beginning(), UPDATES)[1])
        for run, rate in enumerate(rates):
            for name, values in apart[rate].items():
                assert swept[name][run] == pytest.approx(values[run], rel=1e-5, abs=1e-5), name
        # The rate did make a difference.
        assert np.abs(apart[1e-3]["student/kl"] - apart[1e-2]["student/kl"]).min() > 1e-4


class TestMemoryWarning:
    def test_given_to_a_memoryless_student_without_the_evidence(self):
        warning = memory_warning(default_config(IcyRoad(show_counts=False), "samplr"))
        assert warning
        assert "no memory" in warning
        assert "--student.memory" in warning  # what to do
        assert "\n" not in warning

    @pytest.mark.parametrize(
        ("env", "method", "changes"),
        [
            (IcyRoad(), "samplr", {}),  # its observation is sufficient
            (IcyRoad(show_counts=False), "samplr", {"student__memory": 8}),
            (IcyRoad(show_counts=False), "robust_plr", {}),  # nothing promised, nothing lost
            (IcyRoad(show_counts=False), "dr", {}),
        ],
    )
    def test_not_given_otherwise(self, env, method, changes):
        assert memory_warning(default_config(env, method, **changes)) is None

    @pytest.mark.slow
    def test_such_a_student_loses_what_the_warning_says(self):
        # The same training but for the counts in the observation: without them the student learns an average over the
        # curriculum's histories, and these have far more ice than the ground truth.
        with_counts, without = (utilities(IcyRoad(show_counts=shown)) for shown in (True, False))
        env = IcyRoad()
        optimum = float(solution.utility(env, solution.bayes_optimal(env))[0])
        assert with_counts.mean() > 0.98 * optimum
        assert with_counts.mean() - without.mean() > 0.05 * optimum
        assert stats.ttest_ind(with_counts, without, equal_var=False, alternative="greater").pvalue < 0.01


def utilities(env: IcyRoad, seeds: int = 4) -> np.ndarray:
    """The exact utilities of memoryless students after a short training by `samplr` with the expected TD error."""
    training = Training(default_config(env, "samplr", seeds=seeds, gradient_updates=60, fictitious__samples="exact"))
    state, _ = training.advance(training.init(), training.total_updates())

    def utility(network):
        return solution.utility(env, solution.tabulate(env, network).fast)[0]

    return np.asarray(jit(jax.vmap(utility), runs_once=True)(state.runs.network))


ON_TWO_DEVICES = """
import json, sys
import numpy as np
import samplr
from tiny import tiny_config

def train(out, **changes):
    return samplr.train(tiny_config(log_every=1, **changes), sys.argv[1] + out, resume=True)

whole, _, resumed = train("/whole"), train("/halves", steps=12 * 96), train("/halves")
places = whole.networks.actor.weight.sharding
print(json.dumps({
    "devices": len(places.device_set),
    "runs of each": places.shard_shape(whole.networks.actor.weight.shape)[0],
    "resumed": bool((np.asarray(whole.networks.actor.weight) == np.asarray(resumed.networks.actor.weight)).all()),
    "first": whole.metrics[0],
}))
"""


def test_runs_are_spread_over_the_devices(tmp_path: Path) -> None:
    """Here over two halves of a CPU, which JAX takes for devices if told to."""
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    program = [sys.executable, "-c", ON_TWO_DEVICES, str(tmp_path)]
    told = json.loads(subprocess.run(program, env=environment, check=True, capture_output=True, text=True).stdout)
    assert (told["devices"], told["runs of each"], told["resumed"]) == (2, 2, True)
    # The same runs as on one device, up to the order in which numbers are added up.
    on_one = samplr.train(tiny_config(log_every=1, steps=96)).metrics[0]
    for name in ("new/return", "new/advantage"):
        np.testing.assert_allclose(told["first"][name], on_one[name], rtol=1e-5)


@pytest.mark.parametrize(("runs", "devices", "used"), [(10, 4, 2), (5, 2, 1), (8, 8, 8), (3, 8, 3), (7, 1, 1)])
def test_as_many_devices_are_used_as_divide_the_runs(
    runs: int, devices: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices() * devices)
    monkeypatch.setattr(samplr.training, "Mesh", lambda devices, _: len(devices))
    monkeypatch.setattr(samplr.training, "NamedSharding", lambda mesh, _: mesh)
    assert (over_devices(runs) or 1) == used


class TestWiring:
    """What a configuration says arrives where it is used."""

    NUMBERS = (
        "learning_rate",
        "discount",
        "gae_lambda",
        "clip",
        "value_coefficient",
        "entropy_coefficient",
        "max_gradient_norm",
        "adam_epsilon",
    )

    def test_every_number_of_the_student_is_its_own(self):
        values = {name: round(0.11 + 0.07 * place, 2) for place, name in enumerate(self.NUMBERS)}
        changes = {f"student__{name}": value for name, value in values.items()}
        ppo = build_hyperparameters(small(1, student__epochs=3, student__minibatches=4, **changes)).ppo
        assert {name: round(float(getattr(ppo, name)), 6) for name in self.NUMBERS} == values
        assert (ppo.epochs, ppo.minibatches) == (3, 4)

    @pytest.mark.parametrize("name", ["clip_values", "normalise_returns", "normalise_advantages"])
    @pytest.mark.parametrize("value", [False, True])
    def test_every_switch_too(self, name, value):
        assert getattr(build_hyperparameters(small(1, **{f"student__{name}": value})).ppo, name) is value

    @pytest.mark.parametrize(("trace", "matched"), [("full", False), ("matched", True)])
    def test_the_trace(self, trace, matched):
        assert build_hyperparameters(small(1, fictitious__trace=trace)).ppo.matched_trace is matched

    def test_every_number_of_the_teacher_too(self):
        changes = {"replay__temperature": 0.4, "replay__staleness": 0.6, "replay__rate": 0.7, "replay__fill": 1.0}
        teacher = build_hyperparameters(small(1, **changes)).teacher
        found = (float(teacher.temperature), float(teacher.staleness), teacher.replay_rate)
        assert found == pytest.approx((0.4, 0.6, 0.7))
        assert (teacher.capacity, teacher.new_rollouts_first, teacher.robust) == (32, 4, True)


def test_new_levels_are_new_at_every_update(four, beginning):
    one, _ = four.advance(beginning(), 1)
    two, _ = four.advance(beginning(), 2)
    # Both updates are of new levels; were they the same ones, they would find themselves in the buffer.
    assert np.asarray(two.runs.teacher.filled).sum() > np.asarray(one.runs.teacher.filled).sum()


def test_episodes_are_told_under_the_phase_they_were_played_in(four, together):
    phases = np.asarray(jax.vmap(four.hyperparameters.teacher.schedule)(jnp.arange(UPDATES)))
    for index, phase in enumerate(("new", "replay")):
        # Every rollout is one episode on each of eight workers.
        assert np.asarray(together[1].metrics[f"{phase}/return"].count).tolist() == [8 * (phases == index).sum()] * 4


class TestJudging:
    """What is made of a rollout before anything is learned from it."""

    # Two workers, three steps: the first is cut off after two, the second goes on.
    END = jnp.array([[False, False], [True, False], [False, False]])
    RETURN = jnp.array([[1.0, 10.0], [5.0, 20.0], [2.0, 30.0]])

    def rollout(self) -> Rollout:
        nothing = jnp.zeros((3, 2))
        return Rollout(
            observation=nothing,
            action=nothing,
            log_prob=nothing,
            value=nothing,
            start=nothing > 0,
            reward=nothing + 1,
            terminated=nothing > 0,
            truncated=self.END,
            primed_reward=nothing[..., None] + 2,
            primed_terminated=nothing[..., None] > 0,
            primed_value=nothing[..., None] + 7,
            primed_weight=nothing[..., None] + 1,
            matched=nothing,
            episode_return=self.RETURN,
            metrics={"lasted": self.RETURN},
            real_summaries={},
            met_summaries={},
        )

    def test_an_episode_that_was_cut_off_is_an_episode(self):
        found = samplr.training._episode_metrics(self.rollout())
        assert {name: (float(mean.total), float(mean.count)) for name, mean in found.items()} == {
            "return": (5.0, 1.0),
            "lasted": (5.0, 1.0),
        }
        best = samplr.training._best_return(self.rollout(), jnp.float32(2.0))
        assert best.tolist() == [5.0, 30.0 + 2.0 * 7.0]

    TWICE = jnp.array([[True, False], [True, False], [False, True]])

    def test_a_level_counts_once_for_the_return_however_many_episodes_it_has(self):
        ended_twice = dataclasses.replace(self.rollout(), truncated=self.TWICE)
        of_returns = samplr.training._episode_metrics(ended_twice)["return"]
        assert (float(of_returns.total), float(of_returns.count)) == ((1 + 5) / 2 + 30, 2)

    def test_of_all_tiles_visited_the_share_with_ice(self):
        """Twice a tenth of the road, all of it icy, and then a whole dry one."""
        visited, icy = (jnp.array([[0.1, 0], [0.1, 0], [0, rest]]) for rest in (1.0, 0.0))
        rollout = dataclasses.replace(
            self.rollout(), truncated=self.TWICE, metrics={"visited": visited, "visited_icy": icy}
        )
        found = samplr.training._episode_metrics(rollout)
        row = {f"new/{name}": float(found[name].total / found[name].count) for name in ("visited", "visited_icy")}
        assert ice_of({**row, "learned/new": 1}) == pytest.approx(0.2 / 1.2)

    def test_the_scale_of_returns_is_that_of_the_real_ones_and_knows_this_rollout(self):
        training = Training(small(1, student__normalise_returns=True))
        run = jax.tree.map(lambda leaf: leaf[0], training.init().runs)
        hyperparameters = jax.tree.map(lambda leaf: leaf[0], training.hyperparameters)
        levels = jax.vmap(lambda key: training.env.sample_level(key=key))(jax.random.split(jax.random.key(0), 2))
        judged, played = training._judge(hyperparameters, run, levels, self.rollout())
        discount = float(hyperparameters.ppo.discount)
        one, two = 1 + discount, 1 + discount + discount**2
        deviation = np.std([1, one, 1, 1, one, two])
        assert float(judged.scale.deviation) == pytest.approx(deviation, rel=1e-4)
        # Where a trace ends A = δ: a primed reward of 2, in deviations of the real return, and 7 to come.
        for step, worker in ((1, 0), (2, 1)):
            assert float(played.advantages[step, worker]) == pytest.approx(2 / deviation + discount * 7, rel=1e-4)
