"""What `samplr report` refuses: one sentence, status 2, and nothing is touched."""

import shutil

import pytest

from tiny import command, contents

from .conftest import Reported


def refused(*words) -> str:
    said = command("report", *words)
    assert said.status == 2
    assert said.out == ""
    assert said.err.startswith("samplr: ")
    assert said.err.rstrip().count("\n") == 0
    return said.err


@pytest.fixture
def run(reported: Reported, tmp_path):
    """A copy of a run folder, to be harmed."""
    return shutil.copytree(reported.folder / "dr", tmp_path / "run")


def test_no_folder_at_all(tmp_path) -> None:
    assert "name the folders of the runs to report on" in refused("--out", tmp_path / "report.html")


def test_a_folder_that_is_not_there(tmp_path) -> None:
    assert f"'{tmp_path / 'nothing'}' is not a folder" in refused(tmp_path / "nothing", "--out", tmp_path / "r.html")
    assert contents(tmp_path) == {}


def test_a_folder_without_a_run_even_if_another_has_one(run, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    assert f"'{tmp_path / 'empty'}' holds no run" in refused(run, tmp_path / "empty", "--out", tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("precious", ["<!DOCTYPE html><title>my page</title>", "", "notes"])
def test_a_file_of_someone_else_is_not_overwritten(run, tmp_path, precious) -> None:
    out = tmp_path / "page.html"
    out.write_text(precious)
    assert f"'{out}' is there already and is no report of samplr: choose another --out" in refused(run, "--out", out)
    assert out.read_text() == precious


def test_a_folder_in_its_place(run, tmp_path) -> None:
    (tmp_path / "report.html").mkdir()
    assert f"cannot write '{tmp_path / 'report.html'}': " in refused(run, "--out", tmp_path / "report.html")


def test_where_nothing_can_be_written(run, tmp_path) -> None:
    (tmp_path / "file").write_text("precious")
    assert "cannot write '" in refused(run, "--out", tmp_path / "file" / "report.html")


def test_a_run_that_cannot_be_read(run, tmp_path) -> None:
    (run / "config.json").write_text("{}")
    assert "config.json' is not as samplr wrote it" in refused(run, "--out", tmp_path / "r.html")


def test_a_run_without_a_checkpoint(run, tmp_path) -> None:
    shutil.rmtree(run / "checkpoints")
    assert "holds no checkpoint yet" in refused(run, "--out", tmp_path / "r.html")


def test_beside_others_it_is_left_out(run, tmp_path) -> None:
    begun = shutil.copytree(run, tmp_path / "runs" / "begun")
    shutil.copytree(run, tmp_path / "runs" / "done")
    shutil.rmtree(begun / "checkpoints")
    said = command("report", tmp_path / "runs", "--out", tmp_path / "r.html")
    assert said.status == 0
    assert f"samplr: warning: left out: '{begun}' holds no checkpoint yet" in said.err
    assert (tmp_path / "r.html").exists()
    assert "holds no checkpoint yet" in refused(tmp_path / "runs", begun, "--out", tmp_path / "other.html")
    shutil.rmtree(tmp_path / "runs" / "done" / "checkpoints")
    assert "none of these runs can be shown yet" in command("report", tmp_path / "runs", "--out", tmp_path / "x").err


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_damaged_summary(run, tmp_path, text) -> None:
    (run / "summary.json").write_text(text)
    assert "summary.json' is not as samplr wrote it" in refused(run, "--out", tmp_path / "r.html")


def test_a_world_that_is_gone(run, tmp_path) -> None:
    config = run / "config.json"
    config.write_text(config.read_text().replace('"icy_road"', '"my_lost_package:World"'))
    told = refused(run, "--out", tmp_path / "r.html")
    assert f"the run in '{run}' cannot be read: environment 'my_lost_package:World' cannot be imported" in told


def test_a_report_of_ours_is_replaced(run, reported: Reported, tmp_path) -> None:
    out = tmp_path / "report.html"
    shutil.copy(reported.out, out)
    assert command("report", run, "--out", out).status == 0
    text = out.read_text()
    assert "SAMPLR" in reported.text.split("<main>")[1]
    assert "SAMPLR" not in text.split("<main>")[1].split("</main>")[0]
