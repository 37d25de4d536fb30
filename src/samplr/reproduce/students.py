"""Students kept along training: one small file for each seed and time."""

import os
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from samplr.config import Config
from samplr.errors import RunFolderError
from samplr.student.networks import ActorCritic, build_network

_STUDENTS = "students"


def save_students(run: Path, update: int, networks: ActorCritic, seeds: Sequence[int]) -> None:
    """Keep the students of a run folder as they are after an update."""
    folder = run / _STUDENTS / f"{update:09d}"
    folder.mkdir(parents=True, exist_ok=True)
    named = {name: np.asarray(leaf) for name, leaf in _leaves(networks)}
    for place, seed in enumerate(seeds):
        temporary, final = folder / f"seed-{seed}.tmp.npz", folder / f"seed-{seed}.npz"
        np.savez(temporary, allow_pickle=False, **{name: leaf[place] for name, leaf in named.items()})
        os.replace(temporary, final)


def saved_updates(run: Path, seeds: Sequence[int]) -> list[int]:
    """The updates after which all of these seeds were kept."""
    folders = sorted((run / _STUDENTS).glob("*")) if (run / _STUDENTS).is_dir() else []
    return [int(f.name) for f in folders if all((f / f"seed-{seed}.npz").is_file() for seed in seeds)]


def load_students(run: Path, update: int, config: Config) -> ActorCritic:
    """The students of a configuration as they were kept, stacked along a leading axis."""
    student = config.student

    def build(key: jax.Array) -> ActorCritic:
        return build_network(config.env, student.encoder, student.hidden, student.memory, student.head, key=key)

    template = jax.eval_shape(build, jax.random.key(0))
    kept = []
    for seed in range(config.first_seed, config.first_seed + config.seeds):
        file = run / _STUDENTS / f"{update:09d}" / f"seed-{seed}.npz"
        with np.load(file, allow_pickle=False) as arrays:
            kept.append(dict(arrays.items()))
    shapes = {name: leaf.shape for name, leaf in _leaves(template)}
    for arrays_of_one in kept:
        if shapes != {name: array.shape for name, array in arrays_of_one.items()}:
            raise RunFolderError(f"'{run}' holds students of another version of samplr: train them again")
    leaves = [jnp.stack([arrays_of_one[name] for arrays_of_one in kept]) for name in shapes]
    networks: ActorCritic = jax.tree.unflatten(jax.tree.structure(template), leaves)
    return networks


def _leaves(networks: ActorCritic) -> list[tuple[str, jax.Array]]:
    leaves = jax.tree_util.tree_leaves_with_path(networks)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]
