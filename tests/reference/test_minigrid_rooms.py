"""Our chains of rooms against those of the `minigrid` package itself, where it is installed.

`tests/envs/fruit_choice/test_rooms.py` compares them with a plain writing of the same procedure, and always runs.
"""

import jax
import numpy as np
import pytest
from scipy.stats import chi2_contingency

from samplr.compiling import jit
from samplr.envs.fruit_choice.rooms import GRID, MAX_SIZE, ORIGIN, chain_of_rooms
from samplr.envs.fruit_choice.terrain import MAX_ROOMS

multiroom = pytest.importorskip("minigrid.envs.multiroom")

N = 10_000
ROOMS = MAX_ROOMS


def theirs() -> np.ndarray:
    """Of each room its row, column, height and width, and the row and column of its entry."""
    height, width = GRID
    env = multiroom.MultiRoomEnv(ROOMS, ROOMS, maxRoomSize=MAX_SIZE, width=width, height=height)
    env.reset(seed=0)
    chains = []
    for _ in range(N):
        env._gen_grid(width, height)
        chains.append([(*room.top[::-1], *room.size[::-1], *room.entryDoorPos[::-1]) for room in env.rooms])
    return np.array(chains)


def ours() -> np.ndarray:
    sample = jit(jax.vmap(lambda key: chain_of_rooms(ROOMS, key=key)))
    rooms = jax.device_get(sample(jax.random.split(jax.random.key(3), N)))
    corners, doors = rooms.corners - np.array(ORIGIN), rooms.doors - np.array(ORIGIN)
    # MultiRoom calls the first room's corner its entry.
    return np.concatenate([corners, rooms.sizes, np.concatenate([corners[:, :1], doors], axis=1)], axis=-1)


def p_value(a: np.ndarray, b: np.ndarray) -> float:
    values, which = np.unique(np.concatenate([a, b]), return_inverse=True)
    table = np.stack([np.bincount(part, minlength=len(values)) for part in (which[: len(a)], which[len(a) :])])
    rare = table.sum(axis=0) < 20
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
    return float(chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue)


@pytest.mark.slow
def test_rooms():
    """Place and size of every room, the moves from one to the next, and where in its wall a door is."""
    figures = []
    for chains in (ours(), theirs()):
        corners, doors = chains[..., :2], chains[..., 4:]
        parts = [chains[..., :4], np.diff(corners, axis=1), (doors - corners)[:, 1:]]
        figures.append(np.concatenate([part.reshape(N, -1) for part in parts], axis=1))
    p = np.array([p_value(a, b) for a, b in zip(*(figure.T for figure in figures), strict=True)])
    print(f"{N} chains of {ROOMS}: {len(p)} figures, least p {p.min():.4f}")
    assert p.min() * len(p) > 0.001
