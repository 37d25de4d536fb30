"""Numbers made up for the reports: every method has a level of its own, every seed its luck."""

from pathlib import Path
from typing import Any

import numpy as np

from samplr.reproduce.folder import Batch, StudyFolder
from samplr.reproduce.studies import Study, Variant, with_settings
from samplr.reproduce.table1 import CONDITIONS

DRIVERS = {"dr": 80.0, "plr": 40.0, "robust_plr": 0.0, "naive": 90.0, "samplr": 160.0}
ICE = {"dr": 0.06, "plr": 0.05, "robust_plr": 0.03, "naive": 0.062, "samplr": 0.1}
EATERS = {"dr": 1.0, "robust_plr": 0.4, "naive": 2.4}
TRACKS = ("Germany", "Italy", "Singapore")
SEEDS = range(6)


def fill(root: Path, study: Study, names: list[str], settings: dict[str, Any] | None = None) -> StudyFolder:
    """A folder with made-up numbers of some variants."""
    folder = StudyFolder.open(root, study, None)
    variants = with_settings({name: study.variants[name] for name in names}, settings or {})
    folder.register(variants)
    make = {"table1": _drive, "controlled": _drive_elsewhere, "sketch": _drive_by_numbers, "fruit": _eat}[study.name]
    for name, variant in variants.items():
        rng = np.random.default_rng(list(name.encode()))  # another variant changes nobody's luck
        for kind, rows in make(study, variant, rng, ahead=50.0 if settings else 0.0).items():
            folder.write(Batch(name, SEEDS), kind, rows, {"device": "abacus", "seconds": 1.0, "work": 1.0})
    return folder


def _times(study: Study, variant: Variant, count: int) -> list[dict[str, int]]:
    """Evenly along training; a robust teacher learns half as often."""
    pace = 1 if variant.method in ("dr", "plr") else 2
    return [
        {"update": 100 * t // count, "steps": study.steps * t // count, "gradient_updates": 100 * t // count // pace}
        for t in range(1, count + 1)
    ]


def _drive(study: Study, variant: Variant, rng: np.random.Generator, ahead: float) -> dict[str, list[dict[str, Any]]]:
    luck = rng.normal(0, 8, len(SEEDS))
    times = _times(study, variant, 10)
    phase = "new" if variant.method == "dr" else "replay"

    def score(seed: int, time: dict[str, int], harder: float = 0.0) -> float:
        gone = time["update"] / times[-1]["update"]
        return float(500 * gone + DRIVERS[variant.method] + ahead - harder + luck[seed] + rng.normal(0, 4))

    empty = dict.fromkeys(study.training_figures)
    training = [
        {"seed": s, **t, "seconds": 1.0, **empty, f"{phase}/visited": 0.5}
        | {f"{phase}/visited_icy": 0.5 * (ICE[variant.method] + rng.normal(0, 0.004))}
        for t in times
        for s in SEEDS
    ]
    matched = [times[4], times[9]] if phase == "new" or variant.method == "plr" else [times[9]]
    f1 = [
        {"seed": s, **t, "condition": "…", "track": track, "ice": ice, "return": score(s, t, 120.0 * place)}
        for t in matched
        for place, ice in enumerate(CONDITIONS)
        for track in TRACKS
        for s in SEEDS
    ]
    tracks = [
        {"seed": s, **t, "condition": "ground_truth", "return": score(s, t), "return_cvar": score(s, t, 300.0)}
        for t in times
        for s in SEEDS
    ]
    validation = [{"seed": s, **t, "condition": c, "return": score(s, t)} for t in times for c in TRACKS for s in SEEDS]
    curriculum = [
        {"seed": s, **times[-1], "ice_from": ice, "revealed_from": revealed, "tiles": 400.0, "levels": levels}
        | {"icy": 400 * ICE[variant.method], "fictitious": 400 / 16}
        for s in SEEDS
        for ice, levels in ((0.0, 30.0), (0.04, 20.0), (0.2, 200 * ICE[variant.method]))
        for revealed in (0, 1, 8, 64)
    ]
    exams = {"f1": f1, "ground_truth": tracks, "validation": validation, "curriculum": curriculum}
    return {"training": training, **exams}


def _drive_elsewhere(
    study: Study, variant: Variant, rng: np.random.Generator, ahead: float
) -> dict[str, list[dict[str, Any]]]:
    """What is shifted and not grounded does worse; evidence is worth something to whom it grounds."""
    last, luck = _times(study, variant, 1)[0], rng.normal(0, 8, len(SEEDS))
    changes = variant.changes
    level = DRIVERS[variant.method] + ahead - 100 * (changes.get("grounding") == "none")
    level += 50 * (variant.method == "samplr" and "env.show_evidence" in changes)

    def played(condition: str) -> list[dict[str, Any]]:
        return [{"seed": s, **last, "condition": condition, "return": level + float(luck[s])} for s in SEEDS]

    rates = [row for rate in ("q=0", "q=0.2", "q=0.3", "q=0.4", "q=0.6", "q=0.8") for row in played(rate)]
    shown = {**dict.fromkeys(study.training_figures), "shift/ice/real_mean": ICE[variant.method]}
    training = [{"seed": s, **last, "seconds": 1.0, **shown} for s in SEEDS]
    return {"training": training, "ground_truth": played("ground_truth"), "fixed_rates": rates}


def _drive_by_numbers(
    study: Study, variant: Variant, rng: np.random.Generator, ahead: float
) -> dict[str, list[dict[str, Any]]]:
    """As elsewhere, with worse returns at higher rates, at half of the training as well, and with ice on the way."""
    made = _drive_elsewhere(study, variant, rng, ahead)
    tracks = [{**row, "return_cvar": row["return"] - 300} for row in made["ground_truth"]]
    rates = [
        {**row, "condition": f"q={rate:g}", "return": row["return"] - 500 * rate}
        for rate in (0, 0.2, 0.4, 0.6, 0.8)
        for row in made["ground_truth"]
    ]
    ice = 0.5 * (0.3 if "presents" in variant.changes else ICE[variant.method])
    seen = {
        f"{phase}/{name}": value
        for phase in ("new", "replay")
        for name, value in (("visited", 0.5), ("visited_icy", ice))
    }
    return {
        "training": [{**row, **seen} for row in made["training"]],
        "ground_truth": _with_half(tracks),
        "fixed_rates": _with_half(rates),
    }


def _with_half(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was played in the end, and 40 points lower at half of the way."""
    times = ("update", "steps", "gradient_updates")
    earlier = [{**row, **{time: row[time] // 2 for time in times}, "return": row["return"] - 40} for row in rows]
    return [*earlier, *rows]


def _eat(study: Study, variant: Variant, rng: np.random.Generator, ahead: float) -> dict[str, list[dict[str, Any]]]:
    times, best, q = _times(study, variant, 10), EATERS[variant.method], variant.changes["env.q"]
    phase = "new" if variant.method == "dr" else "replay"
    empty = dict.fromkeys(study.training_figures)

    def at(time: dict[str, int]) -> dict[str, float]:
        solved = best / 3 * time["update"] / times[-1]["update"]
        noise = float(rng.normal(0, 0.02))
        return {
            "return": best * solved + noise,
            "solved": solved,
            "ate_apple": 0.2 * solved,
            "ate_banana": 0.8 * solved,
            "rooms": 1 + 7 * solved + noise,
            "rooms_solved": 8 * solved * solved + noise,
        }

    def trained(time: dict[str, int]) -> dict[str, float]:
        swing = 0.25 * np.sin(time["update"] / 8) if variant.method == "robust_plr" else 0.0
        told = {f"{phase}/{name}": value for name, value in at(time).items()}
        return {**told, "shift/apple/real_mean": float(q + swing + rng.normal(0, 0.01))}

    def test(time: dict[str, int]) -> dict[str, float]:
        return {**at(time), "died": 0.01, "return_cvar": 0.0}

    conditions = [f"{n} rooms" for n in range(1, 9)]
    return {
        "training": [{"seed": s, **t, "seconds": 1.0, **empty, **trained(t)} for t in times for s in SEEDS],
        "ground_truth": [{"seed": s, **t, "condition": "ground_truth", **test(t)} for t in times for s in SEEDS],
        "rooms": [{"seed": s, **times[-1], "condition": c, **test(times[-1])} for c in conditions for s in SEEDS],
    }
