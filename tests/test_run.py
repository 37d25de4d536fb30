"""Runs from Python: what `train` gives and `load` brings back, and how a policy acts."""

import dataclasses
import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import PyTree

import samplr
from samplr.config import to_json
from samplr.envs.icy_road import IcyRoad
from samplr.errors import RunFolderError, SamplrWarning
from samplr.evaluation import suite_of_levels
from samplr.posteriors import BernoulliField
from samplr.run import Run, _unloadable_warning
from samplr.store import RunFolder, read_checkpoint
from samplr.store.policies import write_policies
from samplr.training import Training
from samplr.trees import named_leaves
from store.runs import truncate
from tiny import STEPS_PER_UPDATE, SharedTraining, contents, sharing_programs, tiny_config

SEEDS = 2
UPDATES = 12
# A student that sees only the segment it comes from, and has to remember the others and what it did there.
CONFIG = tiny_config(
    IcyRoad(show_counts=False),
    student__memory=8,
    student__sees_actions=True,
    seeds=SEEDS,
    steps=UPDATES * STEPS_PER_UPDATE,
    log_every=6,
)


@pytest.fixture(autouse=True)
def _shared_programs() -> Iterator[None]:
    with sharing_programs():
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A finished batch as `train` gave it, and its folder; not to be changed."""
    path = tmp_path_factory.mktemp("runs") / "run"
    with sharing_programs():
        return samplr.train(CONFIG, path), path


@pytest.fixture
def run(trained: tuple[Run, Path]) -> Run:
    return trained[0]


@pytest.fixture
def folder(trained: tuple[Run, Path], tmp_path: Path) -> Path:
    """The run's folder, for a test to change."""
    return Path(shutil.copytree(trained[1], tmp_path / "run"))


def assert_bitwise_equal(a: PyTree, b: PyTree) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


# Train and load.


def test_a_loaded_run_is_the_run_that_was_trained(trained: tuple[Run, Path]) -> None:
    run, path = trained
    before = contents(path)
    loaded = samplr.load(str(path))
    assert loaded.config == run.config == CONFIG
    assert_bitwise_equal(loaded.networks, run.networks)
    assert loaded.metrics == run.metrics
    assert loaded.summary == run.summary
    assert contents(path) == before


def test_a_loaded_run_that_has_not_learned_yet_is_the_run_that_was_trained(tmp_path: Path) -> None:
    run = samplr.train(dataclasses.replace(CONFIG, steps=1), tmp_path)
    loaded = samplr.load(tmp_path)
    assert loaded.metrics == run.metrics
    assert loaded.summary == run.summary


def test_the_summary_tells_what_was_done(run: Run) -> None:
    assert run.summary["method"] == "samplr"
    assert run.summary["env"] == {
        "name": "icy_road",
        "segments": 12,
        "alpha": 1.0,
        "beta": 15.0,
        "show_counts": False,
    }
    assert run.summary["seeds"] == [0, 1]
    assert (run.summary["updates"], run.summary["steps"]) == (UPDATES, UPDATES * STEPS_PER_UPDATE)
    assert [row["update"] for row in run.metrics] == [6, 12]
    assert run.summary["last"] == {name: value for name, value in run.metrics[-1].items() if name != "seconds"}


def test_the_summary_counts_the_whole_run(run: Run) -> None:
    # Of all updates so many were learned from; each learns from as many episodes as there are workers.
    learned = [row["gradient_updates"] for row in run.metrics]
    weights = np.diff([0, *learned])
    assert 0 < learned[-1] < UPDATES
    for kind in ("real", "met"):
        by_row = np.array([row[f"shift/ice/{kind}_mean"] for row in run.metrics], float)
        expected = np.average(by_row[weights > 0], axis=0, weights=weights[weights > 0])
        np.testing.assert_allclose(run.summary["whole_run"][f"shift/ice/{kind}_mean"], expected, rtol=1e-5)


def test_training_without_a_folder_is_the_same_and_writes_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(RunFolder, "open", lambda *_, **__: pytest.fail("opened a folder"))
    again = samplr.train(CONFIG)
    assert_bitwise_equal(again.networks, run.networks)
    assert again.summary == run.summary
    assert contents(tmp_path) == {}


def test_what_was_logged_after_the_last_checkpoint_is_not_loaded(run: Run, folder: Path) -> None:
    later = {**run.metrics[-1], "update": UPDATES + 6, "steps": (UPDATES + 6) * STEPS_PER_UPDATE}
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps(later) + "\n")
    loaded = samplr.load(folder)
    assert loaded.metrics == run.metrics
    assert loaded.summary == run.summary


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_loaded(run: Run, folder: Path) -> None:
    truncate(folder / "checkpoints" / f"{UPDATES:09d}" / "index.json")
    with pytest.warns(SamplrWarning, match=r"is damaged \(index\.json has changed\)"):
        loaded = samplr.load(folder)
    assert loaded.summary["updates"] == 6
    assert loaded.metrics == run.metrics[:1]
    with pytest.raises(AssertionError):
        assert_bitwise_equal(loaded.networks, run.networks)


def test_a_state_of_another_shape_is_refused(folder: Path) -> None:
    arrays = read_checkpoint(folder).arrays
    config = json.loads((folder / "config.json").read_text())["config"]
    for other in ({**arrays, "more": np.zeros(1)}, dict(list(arrays.items())[1:])):
        with RunFolder.open(folder, config, resume=True) as open_folder:
            open_folder.latest()
            open_folder.save(UPDATES, other)
        before = contents(folder)
        with pytest.raises(RunFolderError, match="another state: train it again"):
            samplr.load(folder)
        assert contents(folder) == before


def test_a_student_that_cannot_be_grounded_is_warned_of(tmp_path: Path) -> None:
    forgetful = dataclasses.replace(CONFIG, student=dataclasses.replace(CONFIG.student, memory=0, sees_actions=False))
    # pytest raises the warning, so that nothing is trained.
    with pytest.raises(SamplrWarning, match=r"this student has no memory .* give it memory"):
        samplr.train(forgetful, tmp_path / "run")
    assert contents(tmp_path) == {}


# Policies.


@pytest.fixture(scope="module")
def observations() -> jax.Array:
    """What the agent sees along a road that is icy at every third segment."""
    env, key = IcyRoad(show_counts=False), jax.random.key(0)
    ice = BernoulliField(jnp.float32(0.3), jnp.arange(env.segments) % 3 == 1)
    state, observation = env.reset(None, ice, key=key)
    seen = [observation]
    while len(seen) < env.segments:
        after = env.step(None, state, jnp.int32(0), key=key)
        state = after.state
        seen.append(after.observation)
    return jnp.stack(seen)


def test_a_student_that_is_lost_is_told_once_and_the_others_go_on(folder: Path) -> None:
    """As of a learning rate that is too high: here one of the two is lost before it is resumed."""
    with RunFolder.open(folder, to_json(CONFIG), resume=True) as opened:
        arrays = dict(opened.latest().arrays)
        weight = next(name for name in arrays if name.endswith("network.actor.weight"))
        arrays[weight] = np.where(np.arange(SEEDS)[:, None, None] == 1, np.nan, arrays[weight])
        opened.save(UPDATES, arrays)
    longer = dataclasses.replace(CONFIG, steps=2 * CONFIG.steps)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = samplr.train(longer, folder, resume=True)
    lines = [str(warning.message) for warning in told if issubclass(warning.category, SamplrWarning)]
    assert len(lines) == 1
    assert lines[0].startswith("the run of seed 1 has diverged")
    assert run.summary["warnings"] == lines
    finite = [bool(jnp.all(jnp.isfinite(policy.network.actor.weight))) for policy in run.policies]
    assert finite == [True, False]


def test_loading_does_not_begin_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Training) -> None:
        raise AssertionError("slow in large worlds, and of no use")

    monkeypatch.setattr(SharedTraining, "init", refuse)
    assert samplr.load(folder).config == CONFIG


def test_there_is_one_policy_for_each_seed(run: Run) -> None:
    assert len(run.policies) == SEEDS
    for i, policy in enumerate(run.policies):
        assert_bitwise_equal(policy.network, jax.tree.map(lambda leaf, i=i: leaf[i], run.networks))
    assert_bitwise_equal(run.policy.network, run.policies[0].network)
    with pytest.raises(AssertionError):
        assert_bitwise_equal(run.policies[0].network, run.policies[1].network)


def test_a_policy_takes_the_most_likely_action_and_samples_with_a_key(run: Run, observations: jax.Array) -> None:
    policy, observation = run.policy, observations[0]
    distribution, value, _ = policy.network(observation, policy.initial_memory())
    action, _ = policy.act(observation)
    assert action.shape == ()
    assert int(action) == int(distribution.most_likely()[0])
    sampled = [int(policy.act(observation, key=key)[0]) for key in jax.random.split(jax.random.key(0), 50)]
    expected = [int(distribution.sample(key=key)[0]) for key in jax.random.split(jax.random.key(0), 50)]
    assert sampled == expected
    assert set(sampled) == {0, 1}  # after so short a training nothing is certain
    assert float(policy.value(observation)) == pytest.approx(float(value), rel=1e-5)


def test_a_policy_goes_on_from_the_memory_it_returned(run: Run, observations: jax.Array) -> None:
    policy, memory = run.policy, None
    values, actions = [], []
    for observation in observations:
        values.append(float(policy.value(observation, memory)))
        action, memory = policy.act(observation, memory)
        actions.append(action[None])
    starts = jnp.arange(len(observations)) == 0
    _, along_the_road = policy.network.unroll(observations, starts, jnp.stack(actions))
    np.testing.assert_allclose(values, along_the_road, rtol=1e-4, atol=1e-6)
    # Without its memory it would expect something else.
    forgetful = [float(policy.value(observation)) for observation in observations]
    assert forgetful[0] == values[0]
    assert np.abs(np.subtract(forgetful, values))[1:].min() > 1e-5


def test_at_the_start_of_an_episode_no_memory_is_the_empty_one(run: Run, observations: jax.Array) -> None:
    policy = run.policy
    assert_bitwise_equal(policy.initial_memory(), ((jnp.zeros(8), jnp.zeros(8)), jnp.zeros(2)))
    without, after_none = policy.act(observations[0])
    empty, after_empty = policy.act(observations[0], policy.initial_memory())
    assert int(without) == int(empty)
    assert_bitwise_equal(after_none, after_empty)
    assert not np.array_equal(after_none[0], policy.initial_memory()[0])


def test_a_world_that_no_other_program_will_find_is_told() -> None:
    class Mine(IcyRoad):
        __module__ = "__main__"

    assert _unloadable_warning(samplr.default_config("icy_road")) is None
    told = _unloadable_warning(samplr.default_config(Mine()))
    assert told is not None
    assert told.startswith("Mine is defined in the program itself")


class TestPoliciesInOneFile:
    def test_they_act_as_the_students_do_but_for_rounding(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "new folder" / "policies.npz"
        run.save_policies(file)
        loaded = samplr.load(file)
        assert loaded.config == run.config
        assert jax.tree.structure(loaded.networks) == jax.tree.structure(run.networks)
        for ours, theirs in zip(jax.tree.leaves(loaded.networks), jax.tree.leaves(run.networks), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-6)
        assert [path.name for path in file.parent.iterdir()] == [file.name]

    def test_some_of_them(self, run: Run, tmp_path: Path) -> None:
        run.save_policies(tmp_path / "first.npz", students=1)
        loaded = samplr.load(tmp_path / "first.npz")
        assert loaded.config.seeds == 1
        np.testing.assert_allclose(
            loaded.policy.network.actor.weight, run.policies[0].network.actor.weight, rtol=1e-3, atol=1e-6
        )
        run.save_policies(tmp_path / "all.npz", students=SEEDS + 5)
        assert samplr.load(tmp_path / "all.npz").config.seeds == SEEDS

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b'{"not": "numbers"}'])
    def test_another_file_is_refused(self, tmp_path: Path, content: bytes) -> None:
        file = tmp_path / "other.npz"
        file.write_bytes(content)
        with pytest.raises(RunFolderError, match="neither a run folder nor a file of policies"):
            samplr.load(file)

    def test_pickles_are_not_opened(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "bad.npz", config=np.array({"a": 1}, dtype=object))
        with pytest.raises(RunFolderError, match="neither a run folder nor a file of policies"):
            samplr.load(tmp_path / "bad.npz")

    def test_a_single_array_and_words_are_refused(self, run: Run, tmp_path: Path) -> None:
        np.save(tmp_path / "array.npy", np.zeros(3))
        with pytest.raises(RunFolderError, match="neither a run folder nor a file of policies"):
            samplr.load(tmp_path / "array.npy")
        written = {name: np.full(np.shape(leaf), "word") for name, leaf in named_leaves(run.networks).items()}
        write_policies(tmp_path / "words.npz", to_json(run.config), written)
        with pytest.raises(RunFolderError, match="another version of samplr"):
            samplr.load(tmp_path / "words.npz")

    def test_students_of_another_shape_are_refused(self, run: Run, tmp_path: Path) -> None:
        wider = dataclasses.replace(run, config=dataclasses.replace(run.config, seeds=SEEDS - 1))
        write_policies(tmp_path / "odd.npz", to_json(wider.config), named_leaves(run.networks))
        with pytest.raises(RunFolderError, match="another version of samplr"):
            samplr.load(tmp_path / "odd.npz")


def test_a_player_is_told_its_actions_in_an_evaluation_too(run: Run) -> None:
    env, key = run.env, jax.random.key(5)
    # Students that are sure, and whose mind what they did can change.
    sure = eqx.tree_at(lambda net: net.actor.weight, run.networks, 1000 * run.networks.actor.weight)
    levels = [env.sample_level(key=key) for key in jax.random.split(key, 3)]
    found = samplr.evaluate(env, sure, suite_of_levels(levels), episodes=1, deterministic=True)
    for level, condition in zip(levels, found.values(), strict=True):
        for place, policy in enumerate(dataclasses.replace(run, networks=sure).policies):
            state, observation = env.reset(None, level.aleatoric, key=key)
            memory, total, done = None, 0.0, False
            while not done:
                action, memory = policy.act(observation, memory)
                after = env.step(None, state, action, key=key)
                state, observation, done = after.state, after.observation, bool(after.done)
                total += float(after.reward)
            assert condition.figures["return"][place, 0] == pytest.approx(total)
