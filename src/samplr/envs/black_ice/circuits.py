"""Circuits: the twenty of the F1 benchmark, rebuilt from a table of straights and arcs, and those a user brings.

The table, `circuits.json`, holds this project's own figures: `tools/fit_circuits.py` fits them to open data and says
how close they come. Each circuit is a sequence of elements, straights and circular arcs that meet without a kink, each
a length in metres and a turn in degrees, seen from above with north up, in the order in which the benchmark's car
drives them. The benchmark shows every circuit in a mirror and at a scale of its own, so rebuilding does the same.
"""

import csv
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.interpolate import splev, splprep

from samplr.envs.black_ice.tracks import HALF_WIDTH
from samplr.errors import SamplrError, UnknownNameError

POINTS = 4999
"""Points, and so tiles, of every circuit."""
CIRCUIT_PLAYFIELD = 3000 / 6.0
"""Distance from the middle of a circuit at which its world ends."""
UNITS_PER_METRE = 0.45
"""Scale of a user's circuit, unless a length is asked for: about the mean of the benchmark, which has .31 to .66."""
FRAMES_PER_UNIT = 0.9
"""Time to drive a user's circuit, per unit of length: the benchmark's mean limit over its mean length."""

_EARTH_RADIUS = 6378137.0
# A circuit shorter than this has no room for its own road.
_LEAST_LENGTH = 100.0
# Smoothing may move the points of a user's line by this part of its length (root mean square): half a metre in 5 km.
_TOLERANCE = 1e-4
# No circuit has a point this far from its origin, in metres or degrees; squares of larger numbers might overflow.
_FARTHEST = 1e9
_TOO_FEW = "it has fewer than 3 distinct points; list the centre line's points in driving order"


@dataclass(frozen=True, eq=False)
class Circuit:
    """A closed centre line to drive, in the simulator's units, with the middle of its bounding box at the origin."""

    name: str
    frame_limit: int
    """Frames after which an episode on this circuit is cut off."""
    points: Float[np.ndarray, "4999 2"]
    """Equally spaced, in the order in which the car drives; the last one is followed by the first."""

    @property
    def length(self) -> float:
        """Once around, in the simulator's units."""
        return _perimeter(self.points)


def circuit(name: str) -> Circuit:
    """The benchmark's circuit of this name."""
    if name not in CIRCUITS:
        raise UnknownNameError("circuit", name, CIRCUITS)
    return CIRCUITS[name]


def read_circuit(path: str | Path, *, length: float | None = None) -> Circuit:
    """Read a circuit of your own, to be driven in the order of its points and not mirrored.

    Coarse points are welcome: a periodic smoothing spline goes through them, and only the long straights between them
    stay straight. A line that crosses itself, such as a figure of eight, is fine. The last point need not repeat the
    first; but where the gap between them is over three times the longest step and over 5 % of the length, the line
    counts as open and is refused.

    **Arguments:**

    - `path`: a GeoJSON file (`.geojson`, `.json`) with exactly one line or polygon, in degrees of longitude and
      latitude; or a CSV file (`.csv`, `.txt`) whose first two columns are x and y in metres, with or without a header.
    - `length`: length of the circuit in the simulator's units. Without it, a metre becomes `UNITS_PER_METRE`.

    **Returns:**

    The circuit, named like the file. Its frame limit is `FRAMES_PER_UNIT` times its length, up to the next hundred.
    """
    path = Path(path)
    try:
        corners = _closed(_corners(path))
        if length is None:
            length = UNITS_PER_METRE * _perimeter(corners)
        line = _fit_in_playfield(evenly(smooth_loop(corners, tolerance=_TOLERANCE), POINTS), length)
    except SamplrError as error:
        raise SamplrError(f"cannot use {path} as a circuit: {error}") from None
    return Circuit(path.stem, 100 * math.ceil(FRAMES_PER_UNIT * length / 100), line)


# --- the benchmark's table ---


@dataclass(frozen=True, eq=False)
class Outline:
    """A circuit as the table has it: where it starts, and the straights and arcs that lead around once."""

    start: Float[np.ndarray, "3"]
    """x and y in metres, and the heading in radians, counter-clockwise from east."""
    lengths: Float[np.ndarray, " elements"]
    """In metres."""
    turns: Float[np.ndarray, " elements"]
    """In radians, positive to the left; zero for a straight. The radius of an arc is its length over its turn."""

    def along(self, at: Float[np.ndarray, " points"]) -> Float[np.ndarray, "points 2"]:
        """The points at these distances from the start, as the elements say."""
        begin = np.concatenate([[0.0], np.cumsum(self.lengths)])
        heading = self.start[2] + np.concatenate([[0.0], np.cumsum(self.turns)])
        joint = self.start[:2] + np.cumsum(
            np.concatenate([np.zeros((1, 2)), _chord(self.lengths, self.turns, heading[:-1])]), axis=0
        )
        element = np.clip(np.searchsorted(begin, at, side="right") - 1, 0, len(self.lengths) - 1)
        inside = at - begin[element]
        turned = self.turns[element] * inside / self.lengths[element]
        return joint[element] + _chord(inside, turned, heading[element])

    def closed(self, count: int) -> Float[np.ndarray, "count 2"]:
        """Equally spaced points of the loop, closed exactly.

        The table is rounded, so its elements miss a whole number of turns and the start by a little. The missing turn
        is shared among the arcs in proportion to their own. The missing way is spread evenly along the line: that adds
        one small vector to the direction everywhere, so the joints stay without a kink.
        """
        whole = 2 * np.pi * np.round(self.turns.sum() / (2 * np.pi))
        share = np.abs(self.turns) / np.abs(self.turns).sum()
        exact = Outline(self.start, self.lengths, self.turns + (whole - self.turns.sum()) * share)
        part = np.arange(count + 1) / count
        points = exact.along(part * self.lengths.sum())
        return points[:-1] - part[:-1, None] * (points[-1] - points[0])


def outline(name: str) -> Outline:
    """The table's figures of one circuit, before mirroring and scaling."""
    entry = _table()[name]
    lengths, turns = np.array(entry["elements"]).T
    x, y, heading = entry["start"]
    return Outline(np.array([x, y, np.radians(heading)]), lengths, np.radians(turns))


class _Benchmark(Mapping[str, Circuit]):
    """The twenty circuits by name; the table is read at the first use, a circuit rebuilt at its own."""

    def __getitem__(self, name: str) -> Circuit:
        return _rebuild(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_table())

    def __len__(self) -> int:
        return len(_table())


CIRCUITS: Mapping[str, Circuit] = _Benchmark()
"""The circuits of the F1 benchmark, by country."""


@cache
def _table() -> dict[str, Any]:
    return json.loads(resources.files(__package__).joinpath("circuits.json").read_text(encoding="utf-8"))


@cache
def _rebuild(name: str) -> Circuit:
    entry = _table()[name]
    mirrored = outline(name).closed(POINTS) * np.array([1.0, -1.0])
    return Circuit(name, entry["frame_limit"], _fit_in_playfield(mirrored, entry["length"]))


def _chord(
    length: Float[np.ndarray, " n"], turn: Float[np.ndarray, " n"], heading: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "n 2"]:
    """From the start to the end of an arc that sets out with this heading; a straight is an arc that turns by zero."""
    middle = heading + turn / 2
    # NumPy's sinc(x) is sin(πx)/(πx), so this is 2 r sin(turn / 2) without the division by zero.
    return (length * np.sinc(turn / (2 * np.pi)))[:, None] * np.stack([np.cos(middle), np.sin(middle)], axis=1)


# --- lines of any origin ---


def metres(degrees: Float[np.ndarray, "points 2"]) -> Float[np.ndarray, "points 2"]:
    """Longitude and latitude to metres east and north of the middle; true to a few centimetres on a circuit's size."""
    if np.abs(degrees[:, 0]).max() > 180 or np.abs(degrees[:, 1]).max() > 90:
        raise SamplrError("GeoJSON is in degrees of longitude and latitude; put x and y in metres in a CSV file")
    # Across the date line the longitude jumps by a whole turn.
    degrees = np.stack([np.unwrap(degrees[:, 0], period=360), degrees[:, 1]], axis=1)
    middle = (degrees.min(axis=0) + degrees.max(axis=0)) / 2
    return _EARTH_RADIUS * np.radians(degrees - middle) * np.array([np.cos(np.radians(middle[1])), 1.0])


def smooth_loop(corners: Float[np.ndarray, "corners 2"], *, tolerance: float) -> Float[np.ndarray, "fine 2"]:
    """Many points of a smooth closed line that passes the corners within `tolerance`, as a part of the whole length.

    Steps much longer than usual are straights that whoever drew the line saw no reason to divide. They are divided
    here, since a spline would swing out along them.
    """
    # At unit length, so that tiny and huge lines are the same to the spline.
    origin, size = corners[0], _perimeter(corners)
    divided = _divided((corners - origin) / size)
    ring = np.concatenate([divided, divided[:1]])
    with warnings.catch_warnings():
        # FITPACK warns where it stops short of the asked-for smoothness; what it has by then is smooth enough.
        warnings.simplefilter("ignore", RuntimeWarning)
        spline, _ = splprep(ring.T, s=len(ring) * tolerance**2, per=True)
    fine = 10 * POINTS
    return origin + size * np.stack(splev(np.arange(fine) / fine, spline), axis=1)


def evenly(loop: Float[np.ndarray, "corners 2"], count: int) -> Float[np.ndarray, "count 2"]:
    """Equally spaced points along a closed polygon, from its first corner."""
    ring = np.concatenate([loop, loop[:1]])
    begin = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(ring, axis=0), axis=1))])
    at = np.arange(count) * begin[-1] / count
    return np.stack([np.interp(at, begin, ring[:, axis]) for axis in (0, 1)], axis=1)


def _divided(corners: Float[np.ndarray, "corners 2"]) -> Float[np.ndarray, "more 2"]:
    """The closed polygon with every step that is much longer than the usual cut into equal pieces."""
    steps = np.linalg.norm(np.roll(corners, -1, axis=0) - corners, axis=1)
    # A corner drawn in great detail must not make all of the rest "long".
    longest = max(3 * np.median(steps), steps.sum() / 200)
    pieces = np.ceil(steps / longest).astype(int)
    start = np.repeat(corners, pieces, axis=0)
    end = np.repeat(np.roll(corners, -1, axis=0), pieces, axis=0)
    part = np.concatenate([np.arange(n) / n for n in pieces])[:, None]
    return start + part * (end - start)


def _perimeter(loop: Float[np.ndarray, "points 2"]) -> float:
    return float(np.linalg.norm(np.roll(loop, -1, axis=0) - loop, axis=1).sum())


def _fit_in_playfield(line: Float[np.ndarray, "4999 2"], length: float) -> Float[np.ndarray, "4999 2"]:
    """The line at this length, in the middle of the playfield, and read-only, since every user shares it."""
    if not (math.isfinite(length) and length >= _LEAST_LENGTH):
        raise SamplrError(
            f"a length of {length:g} u leaves no room for the road; check that the file is in metres (or degrees, for "
            f"GeoJSON), or ask for a length of at least {_LEAST_LENGTH:g}"
        )
    line = line * (length / _perimeter(line))
    line = line - (line.min(axis=0) + line.max(axis=0)) / 2
    room = (CIRCUIT_PLAYFIELD - HALF_WIDTH) / float(np.abs(line).max())
    if room < 1:
        raise SamplrError(
            f"a length of {length:.0f} u does not fit in the playfield, which ends {CIRCUIT_PLAYFIELD:.0f} u from its "
            f"middle; ask for a length of at most {math.floor(length * room)}"
        )
    line.flags.writeable = False
    return line


# --- a user's file ---


def _corners(path: Path) -> Float[np.ndarray, "points 2"]:
    """The points that a file lists, in metres."""
    readers = {".geojson": _geojson_corners, ".json": _geojson_corners, ".csv": _csv_corners, ".txt": _csv_corners}
    if path.suffix.lower() not in readers:
        raise SamplrError(f"its name must end in one of {', '.join(readers)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise SamplrError(f"it cannot be read ({error})") from None
    return readers[path.suffix.lower()](text)


def _geojson_corners(text: str) -> Float[np.ndarray, "points 2"]:
    try:
        lines = list(_lines(json.loads(text)))
        if len(lines) != 1:
            raise SamplrError(f"it has {len(lines)} lines; keep only the centre line, as one LineString or Polygon")
        degrees = np.array([[float(point[0]), float(point[1])] for point in lines[0]]).reshape(-1, 2)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
        raise SamplrError(
            "it is not valid GeoJSON; export the centre line again as a LineString or a Polygon"
        ) from None
    return metres(_finite(degrees))


def _lines(shape: Any) -> Iterator[list]:
    """Every line in a GeoJSON object; of a polygon the outer ring. Points, such as a start marker, are passed over."""
    match shape["type"]:
        case "FeatureCollection":
            for feature in shape["features"]:
                yield from _lines(feature)
        case "GeometryCollection":
            for geometry in shape["geometries"]:
                yield from _lines(geometry)
        case "Feature":
            if shape["geometry"] is not None:
                yield from _lines(shape["geometry"])
        case "LineString":
            yield shape["coordinates"]
        case "MultiLineString":
            yield from shape["coordinates"]
        case "Polygon":
            yield shape["coordinates"][0]
        case "MultiPolygon":
            yield from (polygon[0] for polygon in shape["coordinates"])
        case "Point" | "MultiPoint":
            return
        case _:
            raise ValueError("not a GeoJSON type")


def _csv_corners(text: str) -> Float[np.ndarray, "points 2"]:
    try:
        rows = [(number, row) for number, row in enumerate(csv.reader(text.splitlines()), 1) if "".join(row).strip()]
    except csv.Error as error:
        raise SamplrError(f"it is not valid CSV ({error}); write one point per row, as x,y") from None
    points = []
    for index, (number, row) in enumerate(rows):
        try:
            points.append([float(row[0]), float(row[1])])
        except (ValueError, IndexError):
            if index > 0:  # The first row may be a header.
                raise SamplrError(f"row {number} does not begin with two numbers, x and y in metres") from None
    return _finite(np.array(points).reshape(-1, 2))


def _finite(points: Float[np.ndarray, "points 2"]) -> Float[np.ndarray, "points 2"]:
    fine = np.all(np.abs(points) < _FARTHEST, axis=1)  # False for NaN, too.
    if not np.all(fine):
        raise SamplrError(f"point {int(np.argmin(fine)) + 1} is not finite, or absurdly far away; remove or mend it")
    if len(np.unique(points, axis=0)) < 3:
        raise SamplrError(_TOO_FEW)
    return points


def _closed(points: Float[np.ndarray, "points 2"]) -> Float[np.ndarray, "corners 2"]:
    """The corners of the loop, each once, or an error where the points are no loop."""
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    gap = float(np.linalg.norm(points[0] - points[-1]))
    # People leave out the closing step, so a gap is one more step, unless it is far longer than any other.
    if gap > 3 * steps.max() and gap > 0.05 * steps.sum():
        raise SamplrError(f"it is open, its ends are {gap:.0f} m apart; let the line end where it begins")
    ahead = np.linalg.norm(np.roll(points, -1, axis=0) - points, axis=1)
    corners = points[ahead > 1e-9 * steps.sum()]
    if len(corners) < 3:
        raise SamplrError(_TOO_FEW)
    spread = np.linalg.svd(corners - corners.mean(axis=0), compute_uv=False)
    if spread[1] < 1e-6 * spread[0]:
        raise SamplrError("its points lie on one straight line, which no car can lap; give it some width")
    return corners
