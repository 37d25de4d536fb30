"""What a student was trained on: metrics tell of all episodes, phase by phase, and it does not learn in every phase."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from samplr.config import Config
from samplr.reproduce.records import Row
from samplr.training import build_teacher

_LEARNED = "learned"


def with_learned(rows: Sequence[Row], config: Config) -> list[Row]:
    """Rows of training that also tell how many rollouts of each phase the student learned from since the row before."""
    counts = _rollouts_learned_from(config, sorted({row["update"] for row in rows}))
    return [{**row, **counts[row["update"]]} for row in rows]


def _rollouts_learned_from(config: Config, updates: Sequence[int]) -> dict[int, dict[str, int]]:
    """By update: which phases the student learned in since the update before it in the list, and how often."""
    teacher = build_teacher(config)
    schedule = teacher.scheduled(max(updates, default=0))
    return {
        until: {
            f"{_LEARNED}/{phase.name}": int(np.sum(schedule[since:until] == place))
            for place, phase in enumerate(teacher.phases)
            if phase.learn
        }
        for since, until in pairwise([0, *updates])
    }


def on_trained_levels(row: Row, figure: str) -> float | None:
    """A figure of the episodes that a student learned from: those of each phase count by its rollouts."""
    told = [(row.get(f"{phase}/{figure}"), row[f"{_LEARNED}/{phase}"]) for phase in _phases_learned_in(row)]
    known = [(value, rollouts) for value, rollouts in told if value is not None and rollouts]
    if not known:
        return None
    return float(np.average([value for value, _ in known], weights=[rollouts for _, rollouts in known]))


def _phases_learned_in(row: Row) -> Iterable[str]:
    return [name.removeprefix(f"{_LEARNED}/") for name in row if name.startswith(f"{_LEARNED}/")]


def ice_of(row: Row) -> float | None:
    """The share of visited tiles with ice, in the episodes that a student learned from.

    Of all tiles together: an episode on much ice is short, and there are many of them. Averaged over episodes, they
    would count for more than the road that was driven on them.
    """
    icy, visited = (on_trained_levels(row, name) for name in ("visited_icy", "visited"))
    return None if icy is None or not visited else icy / visited
