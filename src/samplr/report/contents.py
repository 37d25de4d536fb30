"""What a page will show, gathered: reading runs, drawing levels and filming students, within a budget of bytes."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress, TaskID

from samplr.envs.api import Level
from samplr.errors import RunFolderError, SamplrWarning
from samplr.progress import progress_bar
from samplr.report.gallery import Curriculum, Painter, Shown, curriculum, draws, one, show_draws
from samplr.report.media import ShortFilm, short_film
from samplr.report.runs import Method, World, find_run_folders, read_batch, sort_by_world
from samplr.report.studies import Findings, find_studies, read_findings

MOST_BYTES = 20_000_000
"""The page is smaller than this: pictures and films are left out before it would not be."""
DRAWS, FIRST_SEED_LEVELS, OTHER_SEED_LEVELS = 6, 6, 3


@dataclass(frozen=True)
class Portrait:
    """The levels a method ended on, a seed after the other, and a film of its first seed."""

    method: Method
    curricula: list[Curriculum]
    film: ShortFilm | None


@dataclass(frozen=True)
class WorldContents:
    """Everything about one world."""

    world: World
    draws: list[Shown]
    """Levels from its ground truth."""
    portraits: list[Portrait]


@dataclass(frozen=True)
class Contents:
    """Everything on the page."""

    worlds: list[WorldContents]
    studies: list[Findings]
    left_out: int
    """How many pictures and films there was no room for."""


class Room:
    """How many bytes are left for pictures and films."""

    def __init__(self, size: int) -> None:
        self.left, self.left_out = size, 0

    def fits(self, *uris: str | None) -> bool:
        """Take the room for some data, if there is enough; else remember that it is missing."""
        size = sum(len(uri) for uri in uris if uri)
        if size > self.left:
            self.left_out += 1
            return False
        self.left -= size
        return True


def gather(paths: Sequence[Path], *, progress: bool) -> Contents:
    """Read all runs and studies in some folders, and draw what is to be seen of them."""
    folders, studies = find_run_folders(paths), find_studies(paths)
    for path in paths:
        if not find_run_folders([path]) and not find_studies([path]):
            raise RunFolderError(f"'{path}' holds no run: name a folder that `samplr train` wrote, or one with some")
    room = Room(MOST_BYTES * 3 // 4)
    with progress_bar("parts", shown=progress, stays=False) as bar:
        task = bar.add_task("reading", total=2 * len(folders), note="")
        batches = []
        for folder in folders:
            try:
                batches.append(read_batch(folder))
            except RunFolderError as error:
                if folder in paths or len(folders) == 1:
                    raise
                warnings.warn(f"left out: {error}", SamplrWarning, stacklevel=2)
            bar.advance(task)
        if not batches and not studies:
            raise RunFolderError("none of these runs can be shown yet: train on")
        worlds = [_world(world, room, bar, task) for world in sort_by_world(batches)]
        findings = [read_findings(study, room.fits) for study in studies]
        bar.update(task, completed=2 * len(folders))
    return Contents(worlds, findings, room.left_out)


def _world(world: World, room: Room, bar: Progress, task: TaskID) -> WorldContents:
    env = world.methods[0].config.env
    painter, levels = Painter(env), draws(env, DRAWS)
    shown = show_draws(painter, levels)
    bar.update(task, description="drawing")
    portraits = []
    for method in world.methods:
        portraits.append(_portrait(method, painter, one(levels, 0), room))
        bar.advance(task, len(method.batches))
    return WorldContents(world, shown, portraits)


def _portrait(method: Method, painter: Painter, level: Level, room: Room) -> Portrait:
    seeds = [(batch, place) for batch in method.batches for place in range(len(batch.seeds))]
    curricula = []
    for number, (batch, place) in enumerate(seeds):
        found = curriculum(painter, batch, place, OTHER_SEED_LEVELS if number else FIRST_SEED_LEVELS)
        if found and room.fits(*(level.picture for level in found.shown)):
            curricula.append(found)
    film = short_film(painter.env, method.batches[0].run.policy, level) if painter.can_draw else None
    return Portrait(method, curricula, film if film and room.fits(film.uri, film.poster) else None)
