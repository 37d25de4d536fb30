"""`samplr demo`: what it writes, and that what it prints follows from the policies it wrote."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import samplr
from samplr import demo, report
from samplr.envs.icy_road import IcyRoad, solution
from samplr.errors import RunFolderError
from samplr.shift import ShiftMonitor
from samplr.training import Training
from tiny import Said, command, contents

# Trains for most of a minute; `make test-slow`.
pytestmark = pytest.mark.slow

SEEDS = 2
TWO_VARIANTS = {name: demo.VARIANTS[name] for name in ("dr", "samplr")}


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    """The folder of a demo of two methods, too short to show anything, and what the command said."""
    out = tmp_path_factory.mktemp("demo") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "VARIANTS", TWO_VARIANTS)
        return out, command("demo", "--out", out, "--seeds", SEEDS, "--gradient-updates", 3, "--json")


@pytest.fixture(scope="module")
def results(demonstrated: tuple[Path, Said]) -> dict[str, dict[str, Any]]:
    return json.loads((demonstrated[0] / "results.json").read_text())


@pytest.fixture(scope="module")
def students(demonstrated: tuple[Path, Said]) -> dict[str, demo.Students]:
    return demo.load_histories(demonstrated[0] / "histories.npz")


def test_the_demo_writes_policies_results_and_a_figure(demonstrated: tuple[Path, Said]) -> None:
    out, said = demonstrated
    assert said.status == 0
    students = {f"{name}.npz" for name in TWO_VARIANTS}
    written = {file.name for file in out.iterdir()}
    assert written == {"histories.npz", "results.json", "icy_road.png", *students}
    assert written <= demo.OWN_FILES
    assert all(samplr.load(out / name).config.env == IcyRoad() for name in students)
    figure = (out / "icy_road.png").read_bytes()
    assert figure.startswith(b"\x89PNG\r\n")
    assert len(figure) > 10_000


def test_the_demo_prints_its_results_as_json(
    demonstrated: tuple[Path, Said], results: dict[str, dict[str, Any]]
) -> None:
    assert demonstrated[1].json == results


def test_the_results_follow_from_the_policies_exactly(
    students: dict[str, demo.Students], results: dict[str, dict[str, Any]]
) -> None:
    assert demo.measure(students) == results


def test_the_results_judge_every_seed_of_every_method(results: dict[str, dict[str, Any]]) -> None:
    assert list(results) == ["dr", "samplr"]
    env = IcyRoad()
    optimum = float(solution.utility(env, solution.bayes_optimal(env))[0])
    for figures in results.values():
        assert figures["optimum"] == pytest.approx(optimum, rel=1e-6)
        assert figures["share"] == pytest.approx(np.mean(figures["utility"]) / optimum, rel=1e-6)
        lists = {name: value for name, value in figures.items() if isinstance(value, list)}
        assert {"utility", "worst_regret", "worst_regret_likely", "value_rmse", "ice_trained"} < lists.keys()
        assert all(len(value) == SEEDS for value in lists.values())
        assert max(figures["utility"]) < optimum
        assert np.all(np.less_equal(figures["worst_regret_likely"], figures["worst_regret"]))


@pytest.fixture
def compared(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same results, under the names of methods that the demo compares."""
    return {"robust_plr": dict(results["dr"]), "samplr": dict(results["samplr"])}


def test_the_utilities_of_plr_and_samplr_are_compared(compared: dict[str, dict[str, Any]]) -> None:
    demo._compare(compared)
    p = compared["robust_plr"]["p_utility_below_samplr"]
    utilities = [compared[name]["utility"] for name in ("robust_plr", "samplr")]
    assert p == stats.ttest_ind(*utilities, equal_var=False, alternative="less").pvalue
    table = report.demo_table(compared, {"robust_plr": "PLR⊥", "samplr": "SAMPLR"})
    assert f"PLR⊥ earns less than SAMPLR: p = {p:.1g}" in str(table.caption)


@pytest.mark.filterwarnings("ignore:One or more sample arguments is too small")
def test_one_seed_has_results_but_no_comparison(compared: dict[str, dict[str, Any]]) -> None:
    for figures in compared.values():
        figures |= {name: value[:1] for name, value in figures.items() if isinstance(value, list)}
    demo._compare(compared)
    json.dumps(compared, allow_nan=False)
    assert "nan" not in str(list(report.demo_table(compared, {"robust_plr": "PLR⊥", "samplr": "SAMPLR"}).columns))


def test_the_policies_are_what_the_students_do_at_every_history(students: dict[str, demo.Students]) -> None:
    histories = 2 ** IcyRoad().segments - 1
    for of_method in students.values():
        assert of_method.table.fast.shape == of_method.table.value.shape == (SEEDS, histories)
        assert bool(((of_method.table.fast >= 0) & (of_method.table.fast <= 1)).all())
        assert of_method.ice_trained.shape == (SEEDS,)
        # The seeds are different students.
        assert len({np.asarray(seed).tobytes() for seed in of_method.table.fast}) == SEEDS


def test_the_table_has_a_column_for_each_method(results: dict[str, dict[str, Any]]) -> None:
    titles = {name: variant.title for name, variant in demo.VARIANTS.items()}
    table = report.demo_table(results, titles)
    assert [column.header for column in table.columns[1:]] == ["DR", "SAMPLR"]
    headings, *of_methods = (list(column.cells) for column in table.columns)
    assert all(len(cells) == len(headings) and all(cells) for cells in of_methods)
    for cells, figures in zip(of_methods, results.values(), strict=True):
        assert f"{figures['share']:.1%}" in cells
        assert any(cell.startswith(f"{np.mean(figures['utility']):.2f}±") for cell in cells)
    assert table.caption == ""  # these two are not compared


@pytest.mark.parametrize("name", demo.VARIANTS)
def test_every_method_learns_from_the_same_number_of_rollouts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShiftMonitor, "of", lambda env: None)  # it takes a second, and has no say in this
    training = Training(demo.demo_config(name, 1, 50))
    learned = training.gradient_updates(training.total_updates())
    assert learned[-1] == 50
    assert learned[-2] == 49  # it stops as soon as they are reached


def test_all_methods_have_the_same_student_and_the_same_world() -> None:
    configs = [demo.demo_config(name, 8, 250) for name in demo.VARIANTS]
    for config in configs:
        assert (config.student, config.env, config.seeds) == (configs[0].student, configs[0].env, 8)
        assert (config.workers, config.rollout) == (configs[0].workers, configs[0].rollout)
    assert {(config.method, config.fictitious.samples) for config in configs} == {
        ("dr", 1),
        ("robust_plr", 1),
        ("naive", 1),
        ("samplr", 1),
        ("samplr", "exact"),
    }


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "train_variant", lambda *_, **__: pytest.fail("trained"))


@pytest.mark.usefixtures("untrained")
def test_a_folder_with_foreign_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("an earlier demo's")
    (tmp_path / "chapter.tex").write_text("precious")
    before = contents(tmp_path)
    for out in (tmp_path, tmp_path / "chapter.tex"):
        with pytest.raises(RunFolderError, match=f"'{out}' holds other files than the demo's: choose another --out"):
            demo.run_demo(out, seeds=1, gradient_updates=1, progress=False)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("nothing_of", ["--seeds", "--gradient-updates"])
def test_a_demo_of_nothing_is_refused(tmp_path: Path, nothing_of: str) -> None:
    said = command("demo", "--out", tmp_path / "out", nothing_of, 0)
    assert (said.status, said.out) == (2, "")
    assert said.err == f"samplr: {nothing_of} must be at least 1, not 0\n"


def test_an_earlier_demo_is_replaced(
    demonstrated: tuple[Path, Said], students: dict[str, demo.Students], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in demo.OWN_FILES:
        (tmp_path / name).write_text("an earlier demo's")
    monkeypatch.setattr(demo, "VARIANTS", TWO_VARIANTS)
    monkeypatch.setattr(demo, "train_variant", lambda name, **_: students[name])
    again = demo.run_demo(tmp_path, seeds=SEEDS, gradient_updates=3, progress=False)
    assert again == json.loads((tmp_path / "results.json").read_text())
    assert (tmp_path / "results.json").read_bytes() == (demonstrated[0] / "results.json").read_bytes()
    assert (tmp_path / "icy_road.png").read_bytes().startswith(b"\x89PNG")
