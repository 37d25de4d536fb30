"""Fit the circuits of the F1 benchmark as straights and arcs, and write the table that samplr ships.

    python tools/fit_circuits.py PATH_TO_GEOJSON            # fit, write the table, check it: takes minutes
    python tools/fit_circuits.py PATH_TO_GEOJSON --check    # check the table there is

The centre lines come from https://github.com/bacinger/f1-circuits (MIT licence), file `f1-circuits.geojson`. Each line
is smoothed, its heading over distance is cut into pieces of constant curvature by dynamic programming, and the pieces
are moved by least squares until they lie on the line and close. Where that is not close enough, it is cut finer.
The check measures the rebuilt circuits, as shipped and rounded, and exits with status 1 if one misses a bar.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import least_squares
from scipy.spatial import KDTree

from samplr.envs.black_ice.circuits import Outline, evenly, metres, outline, smooth_loop

TABLE = Path(__file__).resolve().parents[1] / "src/samplr/envs/black_ice/circuits.json"

# The bars: distances in metres, the length as a part of it, the heading in degrees.
FARTHEST, LENGTH_ERROR, GAP, HEADING_GAP = 10.0, 0.01, 0.1, 0.01
# Where the fit itself is content, in metres.
CLOSE = 4.0
LEAST_RADIUS, LEAST_LENGTH, STRAIGHT_RADIUS = 10.0, 8.0, 2000.0
STEP = 5.0  # Between samples of the line, in metres.
TOLERANCE = 0.5e-4  # Of smoothing, as a part of the length.
PENALTIES = (0.2, 0.1, 0.05, 0.025, 0.0125, 0.006)  # For one more piece, from coarse to fine, in rad² m.


@dataclass(frozen=True)
class Source:
    """What the benchmark says about a circuit, and which line of the open data it is."""

    id: str
    length: float  # In the simulator's units.
    frame_limit: int
    as_drawn: bool = False  # Most are driven against the order of the data's points; these few along it.


SOURCES = {
    "Belgium": Source("be-1925", 2168, 1500),
    "Brazil": Source("br-1940", 2838, 2000),
    "Mexico": Source("mx-1962", 2004, 3000),
    "Australia": Source("au-1953", 1688, 1500),
    "Austria": Source("at-1969", 1928, 1500),
    "Portugal": Source("pt-2008", 2735, 2500),
    "Malaysia": Source("my-1999", 3257, 2500),
    "Netherlands": Source("nl-1948", 2578, 2000),
    "Spain": Source("es-1991", 2372, 2000, as_drawn=True),
    "France": Source("fr-1969", 1922, 2000, as_drawn=True),
    "Hungary": Source("hu-1986", 1932, 2000),
    "Russia": Source("ru-2014", 1849, 2000, as_drawn=True),
    "Singapore": Source("sg-2008", 2154, 2000, as_drawn=True),
    "USA": Source("us-2012", 1862, 2000),
    "Bahrain": Source("bh-2002", 2790, 2500),
    "China": Source("cn-2004", 3035, 2500),
    "UK": Source("gb-1948", 1961, 2000, as_drawn=True),
    "Monaco": Source("mc-1929", 1747, 1500),
    "Germany": Source("de-1927", 2302, 2000),
    "Italy": Source("it-1922", 2037, 1500),
}


def main() -> int:
    """Fit and check, or check only."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("geojson", type=Path, help="f1-circuits.geojson of bacinger/f1-circuits")
    parser.add_argument("--check", action="store_true", help="leave the table as it is and measure it")
    options = parser.parse_args()
    lines = centre_lines(options.geojson)
    if not options.check:
        TABLE.write_text(as_json({name: entry(name, fit(line)) for name, line in lines.items()}), encoding="utf-8")
    print(
        f"{'circuit':12} {'elements':>8} {'farthest m':>10} {'length %':>8} {'gap m':>7} {'gap °':>7} {'radius m':>8}"
    )
    results = [check(name, line) for name, line in lines.items()]
    return 0 if all(results) else 1


def centre_lines(path: Path) -> dict[str, Float[np.ndarray, "corners 2"]]:
    """The circuits as polygons in metres, in the order in which they are driven; the first corner stays the first."""
    features = {it["properties"]["id"]: it for it in json.loads(path.read_text(encoding="utf-8"))["features"]}
    lines = {}
    for name, source in SOURCES.items():
        points = metres(np.array(features[source.id]["geometry"]["coordinates"]))
        corners = points[:-1][np.linalg.norm(np.diff(points, axis=0), axis=1) > 0.01]
        lines[name] = corners if source.as_drawn else np.roll(corners[::-1], 1, axis=0)
    return lines


def fit(line: Float[np.ndarray, "corners 2"]) -> Outline:
    """Straights and arcs along the line, as few as come close enough, or else the closest found."""
    smooth = smooth_loop(line, tolerance=TOLERANCE)
    target = evenly(smooth, round(length_of(smooth) / STEP))
    best: tuple[float, Outline] | None = None
    for penalty in PENALTIES:
        found = rounded(refine(sketch(target, penalty), target))
        distance, error, gap, heading = measure(found, line)
        closes = gap < GAP and heading < HEADING_GAP and abs(error) < LENGTH_ERROR / 2
        if closes and distance < CLOSE:
            return found
        if closes and (best is None or distance < best[0]):
            best = distance, found
    assert best is not None, "no fit closes"
    return best[1]


def sketch(target: Float[np.ndarray, "points 2"], penalty: float) -> Outline:
    """The pieces to begin with: those that explain the heading best, each with its turn, straights without."""
    ahead = np.roll(target, -1, axis=0) - np.roll(target, 1, axis=0)
    theta = np.unwrap(np.arctan2(ahead[:, 1], ahead[:, 0]))
    step = length_of(target) / len(target)
    cuts = pieces(theta, step, penalty)
    whole = 2 * np.pi * np.round((theta[-1] - theta[0]) / (2 * np.pi))
    heading = np.append(theta, theta[0] + whole)[cuts]
    before = False  # Two straights in a row would meet with a kink, so the second is an arc.
    for i, (begin, end) in enumerate(pairwise(cuts)):
        slope = np.polyfit(np.arange(begin, end) * step, theta[begin:end], 1)[0]
        before = not before and abs(slope) < 1 / STRAIGHT_RADIUS
        if before:
            heading[i] = heading[i + 1] = theta[begin:end].mean()
    return Outline(np.array([*target[0], heading[0]]), np.diff(cuts) * step, np.diff(heading))


def pieces(
    theta: Float[np.ndarray, " points"], step: float, penalty: float, least: int = 3
) -> Int[np.ndarray, " cuts"]:
    """Where to cut the heading so that a line of its own fits each piece: least squares plus a penalty per piece."""
    n, x = len(theta), np.arange(len(theta)) * step
    sums = np.cumsum(np.stack([np.ones(n), x, x * x, theta, x * theta, theta**2]), axis=1)
    sums = np.concatenate([np.zeros((6, 1)), sums], axis=1)
    cost, previous = np.full(n + 1, np.inf), np.zeros(n + 1, dtype=int)
    cost[0] = 0.0
    for j in range(least, n + 1):
        m, sx, sxx, sy, sxy, syy = sums[:, j : j + 1] - sums[:, : j - least + 1]
        unexplained = (syy - sy * sy / m) - (sxy - sx * sy / m) ** 2 / (sxx - sx * sx / m)
        total = cost[: j - least + 1] + step * unexplained + penalty
        previous[j] = np.argmin(total)
        cost[j] = total[previous[j]]
    cuts = [n]
    while cuts[-1] > 0:
        cuts.append(int(previous[cuts[-1]]))
    return np.array(cuts[::-1])


def refine(first: Outline, target: Float[np.ndarray, "points 2"], rounds: int = 6) -> Outline:
    """Move start, lengths and curvatures until the pieces lie on the target and close; straights stay straight.

    In the first round a piece's points belong to the target's at the same distance from the start. In the later ones
    they belong to the nearest, and only the distance across the target counts.
    """
    n, arcs = len(first.lengths), first.turns != 0.0
    part, tree = np.arange(len(target) + 1) / len(target), KDTree(target)
    ahead = np.roll(target, -1, axis=0) - np.roll(target, 1, axis=0)
    across = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1) / np.linalg.norm(ahead, axis=1)[:, None]
    whole = 2 * np.pi * np.round(first.turns.sum() / (2 * np.pi))

    def unpack(v: Float[np.ndarray, " variables"]) -> Outline:
        curvature = np.zeros(n)
        curvature[arcs] = v[3 + n :] / 1000
        return Outline(v[:3], v[3 : 3 + n], v[3 : 3 + n] * curvature)

    def points(v: Float[np.ndarray, " variables"]) -> Float[np.ndarray, "points 2"]:
        return unpack(v).along(part * v[3 : 3 + n].sum())

    def residuals(v: Float[np.ndarray, " variables"], partner: Int[np.ndarray, " points"] | None) -> np.ndarray:
        line = points(v)
        if partner is None:
            off = 0.5 * (line[:-1] - target).ravel()
        else:
            off = np.sum((line[:-1] - target[partner]) * across[partner], axis=1)
        return np.concatenate([off, 100 * (line[-1] - line[0]), [1e5 * (unpack(v).turns.sum() - whole)]])

    sharpest = 1000 / LEAST_RADIUS
    upper = np.concatenate([np.full(3 + n, np.inf), np.full(arcs.sum(), sharpest)])
    lower = np.concatenate([np.full(3, -np.inf), np.full(n, LEAST_LENGTH), np.full(arcs.sum(), -sharpest)])
    curvature = 1000 * first.turns[arcs] / first.lengths[arcs]
    v = np.concatenate([first.start, first.lengths, np.clip(curvature, -0.99 * sharpest, 0.99 * sharpest)])
    for turn in range(rounds):
        partner = tree.query(points(v)[:-1])[1] if turn else None
        nfev = 10 if turn else 40
        v = least_squares(residuals, v, bounds=(lower, upper), x_scale="jac", max_nfev=nfev, args=(partner,)).x
    return unpack(v)


def rounded(exact: Outline) -> Outline:
    """As the table will have it: lengths to a centimetre, turns to a ten-thousandth of a degree."""
    turns = np.radians(np.round(np.degrees(exact.turns), 4))
    start = [*np.round(exact.start[:2], 2), np.radians(np.round(np.degrees(exact.start[2]), 4))]
    return Outline(np.array(start), np.round(exact.lengths, 2), turns)


def measure(found: Outline, line: Float[np.ndarray, "corners 2"]) -> tuple[float, float, float, float]:
    """The largest distance either way, the relative error of the length, and by how much the elements miss to close.

    The rebuilt line is closed exactly; the gaps, in metres and degrees, are what rebuilding had to spread.
    """
    drawn = evenly(line, round(length_of(line) / 0.5))
    rebuilt = found.closed(round(found.lengths.sum() / 0.5))
    distance = max(KDTree(drawn).query(rebuilt)[0].max(), KDTree(rebuilt).query(drawn)[0].max())
    begin, end = found.along(np.array([0.0, found.lengths.sum()]))
    heading = np.degrees(abs(found.turns.sum() - 2 * np.pi * np.round(found.turns.sum() / (2 * np.pi))))
    error = found.lengths.sum() / length_of(line) - 1
    return float(distance), float(error), float(np.linalg.norm(end - begin)), float(heading)


def check(name: str, line: Float[np.ndarray, "corners 2"]) -> bool:
    """Print how close the shipped figures come, and whether that is close enough."""
    shipped = outline(name)
    distance, error, gap, heading = measure(shipped, line)
    arcs = shipped.turns != 0.0
    radius = np.abs(shipped.lengths[arcs] / shipped.turns[arcs]).min()
    good = distance <= FARTHEST and abs(error) <= LENGTH_ERROR and gap <= GAP and heading <= HEADING_GAP
    figures = f"{len(arcs):8} {distance:10.2f} {100 * error:8.2f} {gap:7.3f} {heading:7.4f} {radius:8.1f}"
    print(f"{name:12} {figures}{'' if good else '  MISSES A BAR'}")
    return good


def entry(name: str, found: Outline) -> dict:
    """The table's entry for one circuit."""
    degrees = np.round(np.degrees(found.turns), 4)
    return {
        "length": SOURCES[name].length,
        "frame_limit": SOURCES[name].frame_limit,
        "start": [*found.start[:2].tolist(), round(float(np.degrees(found.start[2])), 4)],
        "elements": [list(pair) for pair in zip(found.lengths.tolist(), degrees.tolist(), strict=True)],
    }


def as_json(table: dict[str, dict]) -> str:
    """One circuit per line, so that a change shows where it is."""
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items()) + "\n}\n"


def length_of(loop: Float[np.ndarray, "points 2"]) -> float:
    """Once around a closed polygon."""
    return float(np.linalg.norm(np.roll(loop, -1, axis=0) - loop, axis=1).sum())


if __name__ == "__main__":
    sys.exit(main())
