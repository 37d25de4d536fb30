"""Students kept along training: one small file for each seed and time."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from samplr.config import Config
from samplr.errors import RunFolderError
from samplr.store.files import replacing
from samplr.student.networks import ActorCritic
from samplr.training import student_shapes
from samplr.trees import named_leaves, with_named_leaves

_STUDENTS = "students"


def save_students(run: Path, update: int, networks: ActorCritic, seeds: Sequence[int]) -> None:
    """Keep the students of a run folder as they are after an update."""
    folder = run / _STUDENTS / f"{update:09d}"
    folder.mkdir(parents=True, exist_ok=True)
    named = {name: np.asarray(leaf) for name, leaf in named_leaves(networks).items()}
    for place, seed in enumerate(seeds):
        with replacing(folder / f"seed-{seed}.npz") as stream:
            np.savez(stream, **{name: leaf[place] for name, leaf in named.items()})


def saved_updates(run: Path, seeds: Sequence[int]) -> list[int]:
    """The updates after which all of these seeds were kept."""
    folders = sorted((run / _STUDENTS).glob("*")) if (run / _STUDENTS).is_dir() else []
    return [int(f.name) for f in folders if all((f / f"seed-{seed}.npz").is_file() for seed in seeds)]


def load_students(run: Path, update: int, config: Config) -> ActorCritic:
    """The students of a configuration as they were kept, stacked along a leading axis."""
    kept = []
    for seed in range(config.first_seed, config.first_seed + config.seeds):
        file = run / _STUDENTS / f"{update:09d}" / f"seed-{seed}.npz"
        try:
            with np.load(file, allow_pickle=False) as arrays:
                kept.append(dict(arrays.items()))
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise RunFolderError(f"'{file}' is damaged: delete the folder '{run}', and train it again") from error
    together = {name: np.stack([of_one[name] for of_one in kept if name in of_one]) for name in kept[0]}
    networks: ActorCritic | None = with_named_leaves(student_shapes(config), together)
    if networks is None:
        raise RunFolderError(f"'{run}' holds students of another version of samplr: train them again")
    return networks
