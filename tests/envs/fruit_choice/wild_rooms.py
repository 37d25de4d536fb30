"""Levels as odd as a level may be: rooms of any size from 3 by 3 on, wall to wall, and up to the edges of the map."""

import numpy as np

from samplr.envs.fruit_choice.rooms import GRID, ORIGIN, check_rooms
from samplr.envs.fruit_choice.terrain import Rooms

TRIES = 60


def wild_rooms(random: np.random.Generator) -> Rooms:
    """A chain of up to eight rooms, as long as it gets. Some have small rooms only, and some keep to a corner."""
    largest = random.integers(3, [9, 20], endpoint=True)
    low, high = np.array(ORIGIN), np.add(ORIGIN, GRID) - 1
    if random.random() < 0.5:
        high = np.minimum(high, low + random.integers(10, [21, 40]))
    if random.random() < 0.5:
        low, high = low + np.add(ORIGIN, GRID) - 1 - high, np.add(ORIGIN, GRID) - 1
    wanted = random.integers(1, 9)
    rooms: list[tuple[np.ndarray, np.ndarray]] = []
    doors: list[np.ndarray] = []
    for _ in range(TRIES * wanted):
        size = random.integers(3, largest, endpoint=True)
        corner, door = _beside(random, *rooms[-1], size) if rooms else (random.integers(low, high), low)
        end = corner + size - 1
        apart = [np.any((corner > last) | (end < first)) for first, last in rooms[:-1]]
        if np.all(corner >= low) and np.all(end <= high) and all(apart):
            rooms.append((corner, end))
            doors.append(door)
        if len(rooms) == wanted:
            break
    return _as_level(random, rooms, doors[1:]) if rooms else wild_rooms(random)


def _beside(random: np.random.Generator, first: np.ndarray, last: np.ndarray, size: np.ndarray):
    """Where a room would be behind a door in some wall of another, and that door."""
    across = random.integers(2)
    along = 1 - across
    beyond = random.random() < 0.5
    door = np.empty(2, int)
    door[across] = last[across] if beyond else first[across]
    door[along] = random.integers(first[along] + 1, last[along])
    corner = np.empty(2, int)
    corner[across] = door[across] if beyond else door[across] - size[across] + 1
    # Often flush with the other room, so that crosses and long walls come about.
    flush = random.random() < 0.3
    shift = door[along] - first[along] if flush else random.integers(1, size[along] - 1)
    corner[along] = door[along] - min(shift, size[along] - 2)
    return corner, door


def _as_level(random: np.random.Generator, rooms: list, doors: list) -> Rooms:
    inside = [np.argwhere(np.ones(last - first - 1)) + first + 1 for first, last in rooms]
    while True:
        start = random.choice(inside[0])
        apple, banana = random.choice(inside[-1], 2, replace=len(inside[-1]) < 2)
        if len(np.unique([start, apple, banana], axis=0)) == 3:
            break
        if len(inside[-1]) + (len(rooms) > 1) < 3:  # too small for them
            return wild_rooms(random)
    corners, sizes, its_doors = np.zeros((8, 2), int), np.zeros((8, 2), int), np.zeros((7, 2), int)
    corners[: len(rooms)] = [first for first, _ in rooms]
    sizes[: len(rooms)] = [last - first + 1 for first, last in rooms]
    its_doors[: len(doors)] = np.reshape(doors, (-1, 2))
    level = Rooms(np.array(len(rooms)), corners, sizes, its_doors, start, apple, banana)
    check_rooms(level)
    return level
