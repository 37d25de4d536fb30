"""Which doors a student of fruit choice gets open, by the wall that they are in.

    python tools/doors_opened.py results/fruit/policies/naive_q0.7.npz

Every level is played once. A door counts if the student came into the room that it leads out of. (No first door is in
the western wall: MultiRoom has the first room entered from there.)
"""

import argparse
import sys
from collections import Counter

import jax
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray

import samplr
from samplr.compiling import jit
from samplr.envs.api import Level
from samplr.envs.fruit_choice import FruitChoice
from samplr.envs.fruit_choice.terrain import Rooms
from samplr.evaluation import play_episode

WALLS = ("north", "south", "east", "west")


def main() -> None:
    """Print a line for each wall."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("policies", help="of fruit choice: a run folder or a file; its first student plays")
    arguments.add_argument("--rooms", type=int, default=5, help="of each level")
    arguments.add_argument("--levels", type=int, default=192, help="how many")
    options = arguments.parse_args()
    try:
        run = samplr.load(options.policies)
    except samplr.errors.SamplrError as error:
        sys.exit(str(error))
    if not isinstance(run.env, FruitChoice) or not 2 <= options.rooms <= run.env.max_rooms:
        sys.exit(f"'{options.policies}' must be of fruit choice, and --rooms from 2 to as many as its levels have")
    env, network = run.env.for_evaluation(), run.policy.network
    sample = env.with_rooms(options.rooms)

    def play(key: PRNGKeyArray) -> tuple[Level, Bool[Array, "7"]]:
        level_key, play_key = jax.random.split(key)
        level = sample(level_key)
        _, last = play_episode(env, network, level, deterministic=False, key=play_key)
        return level, last.game.scene.broken

    levels, opened = jit(jax.vmap(play))(jax.random.split(jax.random.key(0), options.levels))
    came_to, got_open = Counter(), Counter()
    for index, doors in enumerate(np.asarray(opened)):
        rooms = jax.tree.map(lambda leaf, i=index: np.asarray(leaf[i]), levels.layout)
        reached = 1 + int(np.argmin([*doors[: options.rooms - 1], False]))
        for door in range(min(reached, options.rooms - 1)):
            came_to[wall_of(rooms, door)] += 1
            got_open[wall_of(rooms, door)] += bool(doors[door])
    for wall in WALLS:
        print(f"{wall:6} {got_open[wall]:4} of {came_to[wall]}")


def wall_of(rooms: Rooms, door: int) -> str:
    """Which wall of its room a door is in."""
    row, column = rooms.doors[door] - rooms.corners[door]
    height, width = rooms.sizes[door]
    return WALLS[[row == 0, row == height - 1, column == width - 1, column == 0].index(True)]


if __name__ == "__main__":
    main()
