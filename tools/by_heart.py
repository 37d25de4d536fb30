"""What students know by heart of the levels they are replayed: the road, and where the ice is on it.

    python tools/by_heart.py results/sketch/runs/robust_plr_lineage/seeds-0-4

Each student of a batch drives on levels of its own buffer, and of the other students' buffers: as they are, and with as
much ice in other places of the same road. Buffers hold easy levels, so everybody may do well on them. What the owner
does better than the others it has learned by heart; if it is no better once the ice is elsewhere, it was the ice.
"""

import argparse
from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

import samplr
from samplr.envs.api import Level, Suite
from samplr.errors import SamplrError
from samplr.evaluation import Estimate
from samplr.posteriors import BernoulliField
from samplr.run import Run
from samplr.teachers.buffer import LevelBuffer


def main() -> None:
    """Print a row for each kind of levels."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("run", help="the folder of a batch of runs whose teachers replay levels")
    arguments.add_argument("--episodes", type=int, default=100, help="levels of each buffer that are played")
    options = arguments.parse_args()
    run = samplr.load(options.run)
    if not isinstance(run.teacher, LevelBuffer) or not isinstance(run.teacher.levels.aleatoric, BernoulliField):
        raise SamplrError("this asks what students know of icy levels in a buffer: give it a run folder of such runs")
    if len(run.teacher.filled) == 1:
        raise SamplrError("a batch of one run has no other students to compare with: train it with --seeds 2 or more")
    print(f"{'levels of the buffer':22} {'their owner':>15} {'the others':>15} {'more by':>15}")
    for title, moved in {"as they are": False, "with ice elsewhere": True}.items():
        owner, others = returns(run, options.episodes, moved=moved)
        found = (Estimate.of(owner), Estimate.of(others), Estimate.of(owner - others))
        print(f"{title:22} " + " ".join(f"{e.mean:7.1f} ± {e.standard_error:<5.1f}" for e in found))


def returns(run: Run, episodes: int, *, moved: bool) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """What is earned on the levels of each buffer by its owner, and by the other students on average."""
    buffers = len(run.teacher.filled)
    suite: Suite = {str(index): drawn_from(run.teacher, index, moved=moved) for index in range(buffers)}
    played = samplr.evaluate(run.env, run.networks, suite, episodes=episodes)
    earned = np.array([condition.figures["return"].mean(axis=1) for condition in played.values()])
    owner = np.diagonal(earned)
    return owner, (earned.sum(axis=1) - owner) / (buffers - 1)


def drawn_from(teachers: LevelBuffer, index: int, *, moved: bool) -> Callable[[PRNGKeyArray], Level]:
    """A sampler of the levels that one of the teachers remembers; perhaps with their ice moved."""
    held = np.flatnonzero(teachers.filled[index])
    levels = jax.tree.map(lambda leaf: leaf[index][held], teachers.levels)

    def sample(key: PRNGKeyArray) -> Level:
        which, where = jax.random.split(key)
        slot = jax.random.randint(which, (), 0, len(held))
        level: Level = jax.tree.map(lambda leaf: leaf[slot], levels)
        if not moved:
            return level
        ice = level.aleatoric
        return Level(level.layout, BernoulliField(ice.rate, jax.random.permutation(where, ice.bits)), level.origin)

    return sample


if __name__ == "__main__":
    main()
