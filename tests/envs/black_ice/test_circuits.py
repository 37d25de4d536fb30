"""Circuits: the shipped table rebuilds smooth, closed loops of the benchmark's size, and files of any sane kind work.

How close the table is to the open data it was fitted to can only be checked with that data at hand: set
SAMPLR_F1_GEOJSON to its path.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samplr.envs.black_ice.circuits import (
    CIRCUIT_PLAYFIELD,
    CIRCUITS,
    POINTS,
    UNITS_PER_METRE,
    Circuit,
    Outline,
    circuit,
    evenly,
    metres,
    outline,
    read_circuit,
)
from samplr.envs.black_ice.tracks import HALF_WIDTH
from samplr.errors import SamplrError

ROOT = Path(__file__).resolve().parents[3]

# Length in the simulator's units and limit in frames.
BENCHMARK = {
    "Belgium": (2168, 1500),
    "Brazil": (2838, 2000),
    "Mexico": (2004, 3000),
    "Australia": (1688, 1500),
    "Austria": (1928, 1500),
    "Portugal": (2735, 2500),
    "Malaysia": (3257, 2500),
    "Netherlands": (2578, 2000),
    "Spain": (2372, 2000),
    "France": (1922, 2000),
    "Hungary": (1932, 2000),
    "Russia": (1849, 2000),
    "Singapore": (2154, 2000),
    "USA": (1862, 2000),
    "Bahrain": (2790, 2500),
    "China": (3035, 2500),
    "UK": (1961, 2000),
    "Monaco": (1747, 1500),
    "Germany": (2302, 2000),
    "Italy": (2037, 1500),
}

of_every_circuit = pytest.mark.parametrize("name", BENCHMARK)


def steps(points: np.ndarray) -> np.ndarray:
    return np.roll(points, -1, axis=0) - points


def bends(points: np.ndarray) -> np.ndarray:
    """By how much the direction changes at every point, positive to the left."""
    ahead, before = steps(points), np.roll(steps(points), 1, axis=0)
    cross = before[:, 0] * ahead[:, 1] - before[:, 1] * ahead[:, 0]
    return np.arctan2(cross, np.sum(before * ahead, axis=1))


# --- the benchmark ---


def test_the_benchmark_has_its_twenty_circuits() -> None:
    assert list(CIRCUITS) == list(BENCHMARK)
    assert len(CIRCUITS) == 20


@of_every_circuit
def test_a_circuit_has_the_size_and_the_limit_of_the_benchmark(name: str) -> None:
    it = circuit(name)
    length, frame_limit = BENCHMARK[name]
    assert (it.name, it.frame_limit) == (name, frame_limit)
    assert it.points.shape == (POINTS, 2)
    assert it.length == pytest.approx(length, rel=1e-9)
    np.testing.assert_allclose(it.points.min(axis=0), -it.points.max(axis=0), atol=1e-9)
    assert np.abs(it.points).max() + HALF_WIDTH < CIRCUIT_PLAYFIELD


@of_every_circuit
def test_a_circuit_is_evenly_spaced_and_without_kinks(name: str) -> None:
    it, table = circuit(name), outline(name)
    distance = np.linalg.norm(steps(it.points), axis=1)
    # The last step leads from the last point to the first: it is one like the others.
    np.testing.assert_allclose(distance, it.length / POINTS, rtol=1e-3)
    arcs = table.turns != 0
    least_radius = np.abs(table.lengths[arcs] / table.turns[arcs]).min() * it.length / table.lengths.sum()
    assert np.abs(bends(it.points)).max() <= 1.01 * distance.max() / least_radius
    assert abs(bends(it.points).sum()) == pytest.approx(2 * np.pi)


@of_every_circuit
def test_the_table_itself_closes_and_has_no_absurd_elements(name: str) -> None:
    table = outline(name)
    start, end = table.along(np.array([0.0, table.lengths.sum()]))
    assert np.linalg.norm(end - start) < 0.1
    assert abs(np.degrees(table.turns.sum())) == pytest.approx(360, abs=0.01)
    assert table.lengths.min() >= 5
    assert np.abs(table.turns / table.lengths).max() <= 1 / 9.9
    assert np.abs(table.turns).max() < 1.5 * np.pi


def test_monaco_is_driven_in_the_mirror_and_against_the_traffic() -> None:
    """Cars lap Monaco clockwise; the open data begins on the climb to the Casino, some 400 m before the hairpin.

    A mirror swaps left and right, and so does the other direction; the two together leave them. So the loop is still
    clockwise and the hairpin, its tightest corner, still a left-hander, but it comes near the end of the lap.
    """
    points = circuit("Monaco").points
    assert bends(points).sum() == pytest.approx(-2 * np.pi)
    bend = np.convolve(bends(points), np.ones(40), mode="same")
    tightest = int(np.abs(bend).argmax())
    assert bend[tightest] > 0
    assert 0.85 < tightest / POINTS < 0.92


def test_circuits_driven_along_the_open_data_turn_the_other_way() -> None:
    """Barcelona, too, is lapped clockwise and drawn so; in the mirror but with the traffic it is counter-clockwise."""
    assert bends(circuit("Spain").points).sum() == pytest.approx(2 * np.pi)


def test_a_circuit_is_built_once_and_nobody_can_change_it() -> None:
    assert circuit("Monaco") is CIRCUITS["Monaco"]
    with pytest.raises(ValueError, match="read-only"):
        circuit("Monaco").points[0] = 0.0


def test_an_unknown_circuit_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SamplrError, match=r"unknown circuit 'Atlantis': choose one of Australia, .*, USA"):
        circuit("Atlantis")
    assert "Atlantis" not in CIRCUITS


@pytest.mark.skipif("SAMPLR_F1_GEOJSON" not in os.environ, reason="SAMPLR_F1_GEOJSON does not name the open data")
def test_the_table_is_close_to_the_open_data() -> None:
    command = [sys.executable, str(ROOT / "tools/fit_circuits.py"), os.environ["SAMPLR_F1_GEOJSON"], "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(result.stdout.splitlines()) == 1 + len(BENCHMARK)


# --- straights and arcs ---


def test_straights_and_arcs_are_followed() -> None:
    """North for 100, a quarter to the right with radius 50, a quarter to the left with radius 20."""
    quarter = np.pi / 2
    path = Outline(
        np.array([1.0, 2.0, quarter]), np.array([100, 50 * quarter, 20 * quarter]), np.array([0, -1, 1]) * quarter
    )
    at = np.array([0, 60, 100, 100 + 25 * quarter, 100 + 50 * quarter, 100 + 70 * quarter])
    half = 50 * np.sqrt(0.5)
    expected = [[1, 2], [1, 62], [1, 102], [51 - half, 102 + half], [51, 152], [71, 172]]
    np.testing.assert_allclose(path.along(at), expected, atol=1e-9)


def test_what_rounding_leaves_open_is_closed_without_a_kink() -> None:
    """A stadium whose second straight is 0.4 m short and whose last bend turns 0.3° too little."""
    lengths = np.array([300, 50 * np.pi, 299.6, 50 * np.pi])
    table = Outline(np.zeros(3), lengths, np.array([0, np.pi, 0, np.radians(179.7)]))
    points = table.closed(2000)
    distance = np.linalg.norm(steps(points), axis=1)
    np.testing.assert_allclose(distance, lengths.sum() / 2000, rtol=2e-3)
    assert np.abs(bends(points)).max() < 1.01 * distance.max() / 50
    assert bends(points).sum() == pytest.approx(2 * np.pi)


def test_a_figure_of_eight_closes_with_no_turn_at_all() -> None:
    """Two straights that cross at right angles in their middles, and two arcs of 270°, one to each side."""
    turn = np.radians([0, 270, 0, -270.001])
    lengths = np.array([200, 100 * 1.5 * np.pi, 200, 100 * 1.5 * np.pi])
    points = Outline(np.zeros(3), lengths, turn).closed(3000)
    np.testing.assert_allclose(np.linalg.norm(steps(points), axis=1), lengths.sum() / 3000, rtol=1e-3)
    assert bends(points).sum() == pytest.approx(0, abs=1e-6)


# --- circuits of one's own ---


def ring(radius: float = 400.0, count: int = 60) -> np.ndarray:
    """A circle in metres, counter-clockwise from the east, not at the origin."""
    angle = 2 * np.pi * np.arange(count) / count
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1) + np.array([5000.0, -3000.0])


def degrees(points: np.ndarray, *, longitude: float = 7.4, latitude: float = 43.7) -> list[list[float]]:
    """The points around a place on the map, as GeoJSON has them."""
    offset = np.degrees((points - points.mean(axis=0)) / 6378137.0)
    lon = longitude + offset[:, 0] / np.cos(np.radians(latitude))
    return np.stack([(lon + 180) % 360 - 180, latitude + offset[:, 1]], axis=1).tolist()


def write_csv(path: Path, points: np.ndarray, *, header: str = "", rest: str = "") -> Path:
    path.write_text(header + "".join(f"{x},{y}{rest}\n" for x, y in points), encoding="utf-8")
    return path


def write_geojson(path: Path, shape: dict) -> Path:
    path.write_text(json.dumps(shape), encoding="utf-8")
    return path


def assert_round(it: Circuit, *, length: float, rtol: float = 2e-3) -> None:
    """The circuit is a circle, driven counter-clockwise from the east: neither mirrored nor reversed."""
    assert it.points.shape == (POINTS, 2)
    assert it.length == pytest.approx(length, rel=rtol)
    np.testing.assert_allclose(np.linalg.norm(it.points, axis=1), length / (2 * np.pi), rtol=rtol)
    np.testing.assert_allclose(np.linalg.norm(steps(it.points), axis=1), it.length / POINTS, rtol=1e-2)
    assert it.points[0] == pytest.approx([length / (2 * np.pi), 0], abs=1)
    assert it.points[POINTS // 4] == pytest.approx([0, length / (2 * np.pi)], abs=1)


@pytest.mark.parametrize("header", ["", "x_m,y_m,w_tr_right_m\n", "\ufeff# x,y\n\n"], ids=["none", "plain", "comment"])
@pytest.mark.parametrize("rest", ["", ",7.5,7.5", ",a note"])
def test_csv_is_metres(tmp_path: Path, header: str, rest: str) -> None:
    it = read_circuit(write_csv(tmp_path / "ring.csv", ring(), header=header, rest=rest))
    length = UNITS_PER_METRE * 2 * np.pi * 400
    assert_round(it, length=length)
    assert it.name == "ring"
    assert it.frame_limit == 1100  # 0.9 times 1131 u is 1018.


def shapes(line: list[list[float]]) -> dict[str, dict]:
    """Every way in which GeoJSON may hold one line."""
    closed = [*line, line[0]]
    string = {"type": "LineString", "coordinates": closed}
    marker = {"type": "Feature", "properties": {}, "geometry": {"type": "Point", "coordinates": line[0]}}
    feature = {"type": "Feature", "properties": {}, "geometry": string}
    return {
        "line": string,
        "open line": {"type": "LineString", "coordinates": line},
        "with height": {"type": "LineString", "coordinates": [[*point, 12.5] for point in closed]},
        "lines": {"type": "MultiLineString", "coordinates": [closed]},
        "polygon with a hole": {"type": "Polygon", "coordinates": [closed, closed[:4]]},
        "polygons": {"type": "MultiPolygon", "coordinates": [[closed]]},
        "feature": feature,
        "features": {"type": "FeatureCollection", "features": [marker, feature, marker | {"geometry": None}]},
        "geometries": {"type": "GeometryCollection", "geometries": [string]},
    }


@pytest.mark.parametrize("kind", shapes([[0, 0]]))
def test_geojson_is_degrees(tmp_path: Path, kind: str) -> None:
    it = read_circuit(write_geojson(tmp_path / "ring.geojson", shapes(degrees(ring()))[kind]))
    assert_round(it, length=UNITS_PER_METRE * 2 * np.pi * 400)


def test_geojson_may_cross_the_date_line(tmp_path: Path) -> None:
    line = degrees(ring(), longitude=180.0, latitude=-17.0)
    assert_round(read_circuit(write_geojson(tmp_path / "fiji.json", shapes(line)["line"])), length=1131)


def test_degrees_become_metres() -> None:
    """A degree is 111.32 km along a meridian, and half of that along the parallel at 60° north."""
    east, north = np.ptp(metres(np.array([[10.0, 60.0], [10.001, 60.0], [10.0, 60.00001], [10.0, 59.99999]])), axis=0)
    assert east == pytest.approx(55.66, abs=0.01)
    assert north == pytest.approx(2.226, abs=0.001)


def test_the_length_may_be_chosen(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "ring.csv", ring(radius=3.0))
    it = read_circuit(path, length=2258)
    assert_round(it, length=2258)
    assert it.frame_limit == 2100
    assert it.length == pytest.approx(2258, rel=1e-9)


@pytest.mark.parametrize("count", [3, 4, 7, 60, 3000])
def test_coarse_and_fine_points_become_smooth(tmp_path: Path, count: int) -> None:
    it = read_circuit(write_csv(tmp_path / "ring.csv", ring(count=count)), length=1000)
    assert bends(it.points).sum() == pytest.approx(2 * np.pi)
    assert np.abs(bends(it.points)).max() < 0.01


def test_noise_of_a_position_receiver_is_smoothed(tmp_path: Path) -> None:
    points = ring(radius=800, count=2500) + np.random.default_rng(0).normal(scale=0.4, size=(2500, 2))
    it = read_circuit(write_csv(tmp_path / "ring.csv", points), length=2258)
    assert np.abs(bends(it.points)).max() < 0.01


def test_long_straights_stay_straight(tmp_path: Path) -> None:
    """A stadium whose straights are single steps of 800 m, among steps of 12 m."""
    angle = np.linspace(-np.pi / 2, np.pi / 2, 20)
    bend = 75 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    aside = np.array([400.0, 0.0])
    stadium = np.concatenate([bend + aside, -bend - aside])
    it = read_circuit(write_csv(tmp_path / "stadium.csv", stadium))
    upper = it.points[(np.abs(it.points[:, 0]) < 400 * UNITS_PER_METRE * 0.9) & (it.points[:, 1] > 0)]
    np.testing.assert_allclose(upper[:, 1], 75 * UNITS_PER_METRE, atol=0.5)


def test_a_figure_of_eight_works(tmp_path: Path) -> None:
    angle = 2 * np.pi * np.arange(50) / 50
    eight = np.stack([500 * np.sin(angle), 300 * np.sin(2 * angle)], axis=1)
    it = read_circuit(write_csv(tmp_path / "eight.csv", eight))
    assert bends(it.points).sum() == pytest.approx(0, abs=1e-6)
    assert np.abs(bends(it.points)).max() < 0.02


def test_repeated_points_do_no_harm(tmp_path: Path) -> None:
    points = np.repeat(np.concatenate([ring(), ring()[:1]]), 2, axis=0)
    assert_round(read_circuit(write_csv(tmp_path / "ring.csv", points)), length=1131)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 40))
def test_any_loop_is_read_to_the_length_asked_for(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int
) -> None:
    points = np.random.default_rng(seed).uniform(-500, 500, size=(count, 2))
    it = read_circuit(
        write_csv(tmp_path_factory.mktemp("any") / "loop.csv", np.concatenate([points, points[:1]])), length=900
    )
    assert np.all(np.isfinite(it.points))
    assert it.length == pytest.approx(900)
    np.testing.assert_allclose(it.points.min(axis=0), -it.points.max(axis=0), atol=1e-9)


def test_evenly_spaced_points_of_a_square() -> None:
    square = np.array([[0.0, 0], [2, 0], [2, 2], [0, 2]])
    np.testing.assert_allclose(evenly(square, 8), [[0, 0], [1, 0], [2, 0], [2, 1], [2, 2], [1, 2], [0, 2], [0, 1]])


# --- mistakes ---

HALF = ring(count=60)[:31]

MISTAKES = {
    "kind.gpx": ("<gpx/>", "its name must end in one of .geojson, .json, .csv, .txt"),
    "empty.csv": ("", "fewer than 3 distinct points"),
    "words.csv": ("x,y\n1,2\nthree,4\n5,6\n", "row 3 does not begin with two numbers"),
    "column.csv": ("1\n2\n3\n4\n", "row 2 does not begin with two numbers"),
    "nan.csv": ("x,y\n0,0\n100,nan\n100,100\n", "point 2 is not finite"),
    "inf.csv": ("0,0\n100,0\n100,inf\n", "point 3 is not finite"),
    "huge.csv": ("0,0\n1e200,0\n1e200,1e200\n", "point 2 is not finite, or absurdly far away"),
    "tiny.csv": ("0,0\n1e-200,0\n1e-200,1e-200\n", "fewer than 3 distinct points"),
    "minified.csv": ("1" * 200_000, "it is not valid CSV"),
    "same.csv": ("5,5\n" * 10, "fewer than 3 distinct points"),
    "two.csv": ("0,0\n500,0\n" * 3, "fewer than 3 distinct points"),
    "straight.csv": ("0,0\n200,0\n400,0\n", "lie on one straight line"),
    "open.csv": ("".join(f"{x},{y}\n" for x, y in HALF), "it is open, its ends are 800 m apart"),
    "small.csv": ("0,0\n1,0\n1,1\n", "leaves no room for the road; check that the file is in metres"),
    "big.csv": ("0,0\n9000,0\n9000,9000\n0,9000\n", "does not fit in the playfield.*ask for a length of at most"),
    "broken.geojson": ('{"type": "LineString", ', "not valid GeoJSON"),
    "list.geojson": ("[1, 2, 3]", "not valid GeoJSON"),
    "other.json": ('{"name": "Monaco"}', "not valid GeoJSON"),
    "deep.json": ("[" * 100_000, "not valid GeoJSON"),
    "type.json": ('{"type": "Circuit"}', "not valid GeoJSON"),
    "null.json": ('{"type": "LineString", "coordinates": [[0, null], [1, 1], [2, 0]]}', "not valid GeoJSON"),
    "none.json": ('{"type": "LineString", "coordinates": []}', "fewer than 3 distinct points"),
    "nan.json": ('{"type": "LineString", "coordinates": [[0, NaN], [1, 1], [2, 0]]}', "point 1 is not finite"),
    "points.json": ('{"type": "Point", "coordinates": [0, 0]}', "it has 0 lines"),
    "two.json": ('{"type": "MultiLineString", "coordinates": [[[0, 0]], [[1, 1]]]}', "it has 2 lines"),
    "metres.json": ('{"type": "LineString", "coordinates": [[0, 0], [500, 0], [500, 500]]}', "degrees of longitude"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_in_one_sentence(tmp_path: Path, name: str) -> None:
    text, message = MISTAKES[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(SamplrError, match=message) as caught:
        read_circuit(tmp_path / name)
    assert str(caught.value).startswith(f"cannot use {tmp_path / name} as a circuit: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(SamplrError, match="it cannot be read"):
        read_circuit(tmp_path / "missing.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(SamplrError, match="it cannot be read"):
        read_circuit(tmp_path / "folder.csv")
    (tmp_path / "picture.csv").write_bytes(b"\x89PNG\xff\xfe\x00")
    with pytest.raises(SamplrError, match="it cannot be read"):
        read_circuit(tmp_path / "picture.csv")


@pytest.mark.parametrize("length", [0.0, -5.0, float("nan"), float("inf"), 20.0])
def test_a_length_that_makes_no_sense_is_a_mistake(tmp_path: Path, length: float) -> None:
    with pytest.raises(SamplrError, match=r"leaves no room for the road|ask for a length"):
        read_circuit(write_csv(tmp_path / "ring.csv", ring()), length=length)


def test_the_advice_for_a_circuit_that_is_too_big_is_good(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "ring.csv", ring(radius=2000))
    with pytest.raises(SamplrError) as caught:
        read_circuit(path)
    advice = re.search(r"at most (\d+)$", str(caught.value))
    assert advice is not None
    it = read_circuit(path, length=float(advice[1]))
    assert CIRCUIT_PLAYFIELD - 1 < np.abs(it.points).max() + HALF_WIDTH <= CIRCUIT_PLAYFIELD
