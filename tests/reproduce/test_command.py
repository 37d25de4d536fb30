"""`samplr reproduce` on the command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from reproduce.small import SMALL
from samplr.reproduce import STUDIES
from tiny import command, sharing_programs


@pytest.fixture(autouse=True)
def _small_studies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(STUDIES, "theory", SMALL)
    with sharing_programs():
        yield


def test_it_says_what_it_will_do_does_it_and_reports(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["reproduce", "theory", "--out", out, "--seeds", 1, "--methods", "dr"]
    said = command(*options)
    assert said.status == 0
    words = " ".join(said.err.split())
    assert f"3 pieces are missing in {out}, on cpu" in words
    assert "dr seeds-0-0: training, about" in words
    assert "dr seeds-0-0: ground_truth, time unknown" in words
    assert "Stop at any time" in words
    assert "rows" in said.out
    again = command(*options)
    assert f"There is nothing to do in {out}" in " ".join(again.err.split())
    as_json = command(*options, "--json")
    assert as_json.err == ""
    assert as_json.json == {"training": 8, "ground_truth": 2, "fixed_rates": 10}
    more = command("reproduce", "theory", "--out", out, "--seeds", 2, "--methods", "dr", "--only", "train", "--json")
    assert more.json["training"] == 16


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--seeds", 0], "--seeds must be at least 1, not 0"),
        (["--methods", "accel"], "unknown method of small 'accel': choose one of dr, samplr"),
        (["--set", "student.clip"], "--set takes name=value, as student.learning_rate=3e-4, not 'student.clip'"),
        (["--set", "student.clip=yes"], "the configuration's student.clip cannot be 'yes': it must be float"),
        (["--only", "report"], "holds no numbers yet: train and evaluate first"),
        (["--only", "evaluate"], "holds no runs yet: train first"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, options: list, says: str) -> None:
    said = command("reproduce", "theory", "--out", tmp_path / "out", *options)
    assert (said.status, said.out) == (2, "")
    assert says in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_who_stops_it_is_told_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("samplr.reproduce.command._work", stop)
    said = command("reproduce", "theory", "--out", tmp_path / "out")
    assert (said.status, said.err) == (130, "samplr: stopped; the same command goes on from here\n")


def test_an_unknown_study_is_refused(tmp_path: Path) -> None:
    assert command("reproduce", "table2", "--out", tmp_path / "out").status == 2
