"""The runs of a report: found on disk, read, and sorted by the world they were trained in and by what was trained."""

import dataclasses
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samplr.config import METHODS, Config, default_config, to_json
from samplr.errors import RunFolderError, SamplrError
from samplr.run import MAY_CHANGE, Run, load
from samplr.store import read_summary
from samplr.store.record import CONFIG, read_record

TITLES = {"dr": "DR", "plr": "PLR", "robust_plr": "PLR⊥", "naive": "naive", "samplr": "SAMPLR"}
"""The methods' names as shown."""

NO_DIFFERENCE = {*MAY_CHANGE, "seeds", "first_seed"}
"""Fields that say which runs there are, how long and where they run, but not what each of them computes."""


@dataclass(frozen=True)
class Batch:
    """A run folder: some seeds of one configuration."""

    path: Path
    run: Run
    versions: Mapping[str, str]
    seconds: float | None
    """How long it took, where that was written down."""
    device: str | None
    """What it ran on, likewise."""

    @property
    def seeds(self) -> list[int]:
        """The seeds of its runs."""
        return list(self.run.summary["seeds"])


@dataclass(frozen=True)
class Method:
    """All the seeds of one configuration, from one run folder or more."""

    title: str
    batches: tuple[Batch, ...]

    @property
    def config(self) -> Config:
        """What was run, by the first folder."""
        return self.batches[0].run.config

    @property
    def seeds(self) -> list[int]:
        """The seeds of all its runs."""
        return [seed for batch in self.batches for seed in batch.seeds]


@dataclass(frozen=True)
class World:
    """An environment with its settings, and what was trained in it."""

    name: str
    settings: Mapping[str, Any]
    """Those that differ from the environment's defaults."""
    shared: Mapping[str, Any]
    """Settings of the training that differ from the defaults in all methods."""
    methods: tuple[Method, ...]


def find_run_folders(paths: Iterable[Path]) -> list[Path]:
    """The run folders among and within some folders, each once, in the order of their names.

    **Returns:** none where there is none; a folder that is not there raises `RunFolderError`.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise RunFolderError(f"'{path}' is not a folder: name the folders of runs, or a folder that holds some")
        within = [path] if (path / CONFIG).is_file() else sorted(file.parent for file in path.rglob(CONFIG))
        for folder in within:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def read_batch(path: Path) -> Batch:
    """Read a run folder, as of its last checkpoint."""
    record, summary = read_record(path), read_summary(path) or {}
    try:
        run = load(path)
    except RunFolderError:
        raise
    except SamplrError as error:
        raise RunFolderError(f"the run in '{path}' cannot be read: {error}") from error
    seconds = summary.get("seconds") or (run.metrics[-1]["seconds"] if run.metrics else None)
    return Batch(path, run, {"samplr": record["samplr"], **record["versions"]}, seconds, summary.get("device"))


def sort_by_world(batches: Sequence[Batch]) -> list[World]:
    """Put batches that differ in their seeds alone together, and those that share a world beside each other."""
    worlds: dict[str, list[Batch]] = {}
    for batch in batches:
        worlds.setdefault(repr(to_json(batch.run.config)["env"]), []).append(batch)
    return [_world(of_world) for of_world in worlds.values()]


def _world(batches: Sequence[Batch]) -> World:
    groups: list[list[Batch]] = []
    for batch in batches:
        home = next((group for group in groups if _belongs(batch, group)), None)
        if home is None:
            groups.append([batch])
        else:
            home.append(batch)
    groups.sort(key=_place)
    settings = [_settings(group[0].run.config) for group in groups]
    shared = {name: value for name, value in settings[0].items() if all(s.get(name, "") == value for s in settings)}
    own = [{name: value for name, value in of.items() if name not in shared} for of in settings]
    config = groups[0][0].run.config
    return World(
        name=to_json(config)["env"]["name"],
        settings={name: value for name, value in differences(config).items() if name.startswith("env.")},
        shared=shared,
        methods=tuple(
            Method(title, tuple(sorted(group, key=lambda batch: batch.seeds)))
            for title, group in zip(_titles(groups, own), groups, strict=True)
        ),
    )


def _place(group: Sequence[Batch]) -> tuple[int, int]:
    """Where a group comes in the order of methods: by the usual one, those with settings of their own last."""
    config, order = group[0].run.config, list(TITLES)
    return order.index(config.method) if config.method in order else len(order), len(_settings(config))


def _belongs(batch: Batch, group: Sequence[Batch]) -> bool:
    """Whether a batch is more seeds of a group's configuration; a seed counts once."""
    first = group[0]
    as_far = batch.run.summary["updates"] == first.run.summary["updates"]
    taken = any(set(batch.seeds) & set(other.seeds) for other in group)
    return _computed(batch) == _computed(first) and as_far and not taken


def _computed(batch: Batch) -> dict[str, Any]:
    """A configuration without what makes no difference to what each run computes."""
    return {name: value for name, value in to_json(batch.run.config).items() if name not in NO_DIFFERENCE}


def _settings(config: Config) -> dict[str, Any]:
    """Settings of teacher, grounding and student that differ from the defaults."""
    found = differences(config).items()
    return {name: value for name, value in found if name not in NO_DIFFERENCE and not name.startswith("env.")}


def _titles(groups: Sequence[Sequence[Batch]], own: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each group that tells it from the others."""
    short = _short_names({name for settings in own for name in settings})
    titles = []
    for group, settings in zip(groups, own, strict=True):
        method = group[0].run.config.method
        words = [f"{short[name]}={show(value)}" for name, value in settings.items()]
        titles.append(", ".join([TITLES.get(method, method), *words]))
    for more in (
        [f", {group[0].run.summary['steps']:,} steps" for group in groups],
        [f" ({group[0].path})" for group in groups],
    ):
        told = list(zip(titles, more, strict=True))
        kinds = {title: {kind for other, kind in told if other == title} for title in titles}
        titles = [title + kind if len(kinds[title]) > 1 else title for title, kind in told]
    return titles


def _short_names(names: Collection[str]) -> dict[str, str]:
    """The last part of each dotted name, unless another has the same."""
    lasts = [name.rpartition(".")[2] for name in names]
    return {name: last if lasts.count(last) == 1 else name for name, last in zip(names, lasts, strict=True)}


def differences(config: Config) -> dict[str, Any]:
    """The fields, by dotted name, that differ from the defaults of the environment under the method."""
    data = to_json(config)
    method = config.method if config.method in METHODS else "samplr"
    default = dataclasses.replace(
        default_config(data["env"]["name"], method), teacher=config.teacher, grounding=config.grounding
    )
    usual = _flat(to_json(default))
    return {name: value for name, value in _flat(data).items() if usual.get(name, "") != value}


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def show(value: Any) -> str:
    """A setting's value as it is written on the command line."""
    return " ".join(str(item) for item in value) if isinstance(value, list) else str(value)


def command(batch: Batch) -> list[str]:
    """The command that trains these runs, an option at a time."""
    config = batch.run.config
    named = config.method in METHODS
    chosen = {"method": config.method} if named else {"teacher": config.teacher, "grounding": config.grounding}
    options = {**chosen, **differences(config), "out": str(batch.path)}
    first = ["samplr", "train", to_json(config)["env"]["name"]]
    return [shlex.join(words) for words in (first, *(_option(name, value) for name, value in options.items()))]


def _option(name: str, value: Any) -> list[str]:
    *path, last = name.replace("_", "-").split(".")
    if isinstance(value, bool):
        return ["--" + ".".join([*path, last if value else f"no-{last}"])]
    return [
        "--" + ".".join([*path, last]),
        *([str(item) for item in value] if isinstance(value, list) else [str(value)]),
    ]
