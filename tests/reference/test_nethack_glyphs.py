"""What our hero sees against what NetHack's hero sees, cell by cell, on walks through random levels.

Where the hero is, which doors are broken and where the fruits lie is read off the real game. So this is about sight,
memory and how walls are drawn; that the rules agree too is tested elsewhere.
"""

import importlib
from collections.abc import Callable, Iterator

import jax
import numpy as np
import pytest

from envs.fruit_choice.wild_rooms import wild_rooms
from samplr.compiling import jit
from samplr.envs.fruit_choice.display import Memory, look, nothing_seen, wall_shapes
from samplr.envs.fruit_choice.glyphs import Glyph
from samplr.envs.fruit_choice.rooms import sample_rooms
from samplr.envs.fruit_choice.terrain import COLUMNS, ROWS, Kind, Rooms, Scene, Terrain, terrain_of

pytest.importorskip("nle", reason="needs samplr[nethack]")
pytest.importorskip("minihack", reason="needs samplr[nethack]")
nethack = importlib.import_module("samplr.envs.fruit_choice.nethack")

COMPASS = ((-1, 0), (0, 1), (1, 0), (0, -1), (-1, 1), (1, 1), (1, -1), (-1, -1))
KICK = 8
Place = tuple[int, int]
FRAMES = 150

_sample = jit(sample_rooms, static_argnames="max_rooms")
_prepare = jit(lambda rooms: (terrain_of(rooms), wall_shapes(terrain_of(rooms).kind)))


@jit
def _replay(terrain: Terrain, shapes: jax.Array, scenes: Scene) -> jax.Array:
    """The glyphs of every frame."""

    def see(memory: Memory, scene: Scene) -> tuple[Memory, jax.Array]:
        memory = look(terrain, shapes, scene, memory)
        return memory, memory.glyphs

    return jax.lax.scan(see, nothing_seen(), scenes)[1]


class Walk:
    """A walk in the real game, and what we must be told of it."""

    def __init__(self, game, rooms: Rooms, seed: int) -> None:
        self.game, self.random = game, np.random.default_rng(seed)
        self.kind = np.asarray(_prepare(rooms)[0].kind)
        self.doors = [tuple(door) for door in np.asarray(rooms.doors)[: int(rooms.count) - 1].tolist()]
        self.broken: set[Place] = set()
        self.fruits = {Glyph.APPLE: _place(rooms.apple), Glyph.BANANA: _place(rooms.banana)}
        self.top = Glyph.APPLE
        self.frames: list[np.ndarray] = []
        self.scenes: list[Scene] = []
        observation, _ = game.reset(seed=seed, options={"rooms": rooms, "apple_is_right": True})
        self.over = False
        self._keep(observation)

    def on(self) -> None:
        """Go at random, or towards the next locked door, or fruit, and kick it."""
        goals = [door for door in self.doors if door not in self.broken][:1] or list(self.fruits.values())
        goal = goals[self.random.integers(len(goals))]
        beside = [i for i in range(8) if self._neighbour(i) == goal]
        if self.random.random() < 0.4:
            self._press(self.random.integers(8))
        elif beside:
            self._kick(beside[0])
        elif (direction := self._towards(goal)) is not None:
            self._press(direction)
        else:
            self._press(self.random.integers(8))

    def _press(self, action: int) -> None:
        observation, _, terminated, truncated, _ = self.game.step(int(action))
        self.over |= terminated or truncated
        if not self.over:
            self._keep(observation)

    def _kick(self, direction: int) -> None:
        """Kick whatever is there. With a wounded leg one is not asked where to, and the key would be a step."""
        target = self._neighbour(direction)
        kicked = next((fruit for fruit in (self.top, *self.fruits) if self.fruits[fruit] == target), None)
        self._press(KICK)
        if self.over or "direction" not in self.game.message:
            return
        self._press(direction)
        if "crashes open" in self.game.message or "shatters" in self.game.message:
            self.broken.add(target)
        if kicked and not self.over:
            self._find(kicked, target, COMPASS[direction])
        if not self.over:
            self.scenes[-1] = self._scene()

    def _find(self, fruit: Glyph, place: Place, step: Place) -> None:
        """See where a kicked fruit went; the walk is over where it went out of sight."""
        line = [(place[0] + i * step[0], place[1] + i * step[1]) for i in range(20)]
        on_map = [cell for cell in line if 0 <= cell[0] < ROWS and 0 <= cell[1] < COLUMNS]
        lies = [cell for cell in on_map if self.frames[-1][cell] == fruit]
        if lies:
            moved = lies[-1] != place
            self.fruits[fruit], self.top = lies[-1], fruit if moved else self.top
        elif self.frames[-1][place] != self.top:
            self.over = True
            self.frames.pop()
            self.scenes.pop()

    def _towards(self, goal: Place) -> int | None:
        """The first step of a shortest way to a goal, or to a cell beside it."""
        start = self._hero()
        came: dict[Place, int] = {start: -1}
        queue = [start]
        for cell in queue:
            for i, (y, x) in enumerate(COMPASS):
                there = (cell[0] + y, cell[1] + x)
                if there == goal:
                    return came[cell] if cell != start else i
                if there not in came and self._clear(there):
                    came[there] = i if cell == start else came[cell]
                    queue.append(there)
        return None

    def _hero(self) -> Place:
        return _place(np.argwhere(self.frames[-1] == Glyph.HERO)[0])

    def _neighbour(self, direction: int) -> Place:
        (y, x), (down, right) = self._hero(), COMPASS[direction]
        return y + down, x + right

    def _clear(self, cell: Place) -> bool:
        return self.kind[cell] in (Kind.FLOOR, Kind.STAIRS) or cell in self.broken

    def _keep(self, observation: dict) -> None:
        self.frames.append(observation["glyphs"])
        self.scenes.append(self._scene())

    def _scene(self) -> Scene:
        return Scene(
            hero=np.array(self._hero()),
            broken=np.array([door in self.broken for door in self.doors] + [False] * (7 - len(self.doors))),
            apple=np.array(self.fruits[Glyph.APPLE]),
            banana=np.array(self.fruits[Glyph.BANANA]),
            banana_on_top=np.array(self.top == Glyph.BANANA),
        )


def _place(cell) -> Place:
    y, x = np.asarray(cell).tolist()
    return y, x


def _shown(walk: Walk, rooms: Rooms) -> np.ndarray:
    """What we show on the same walk. All walks are made equally long, so that one program shows them all."""
    scenes = walk.scenes + [walk.scenes[-1]] * (FRAMES - len(walk.scenes))
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *scenes)
    return np.asarray(_replay(*_prepare(rooms), stacked))[: len(walk.scenes)]


def _compare(game, rooms: Rooms, seed: int) -> tuple[int, int]:
    """Frames compared, and cells other than blank ones in them."""
    walk = Walk(game, rooms, seed)
    while not walk.over and len(walk.frames) < FRAMES - 2:
        walk.on()
    frames = np.stack(walk.frames)
    different = np.argwhere(_shown(walk, rooms) != frames)
    assert not len(different), f"seed {seed}: frame, row, column {different[:5].tolist()} of {len(different)}"
    return len(frames), int(np.sum(frames != Glyph.STONE))


def _compare_many(game, levels: Callable[[int], Rooms], seeds: range) -> None:
    totals = np.sum([_compare(game, levels(seed), seed) for seed in seeds], axis=0)
    print(f"{len(seeds)} levels, {totals[0]} frames, {totals[1]} cells, no difference")


def _sampled(seed: int) -> Rooms:
    return _sample(8, key=jax.random.key(seed))


def _wild(seed: int) -> Rooms:
    return wild_rooms(np.random.default_rng(seed))


@pytest.fixture(scope="module")
def game() -> Iterator:
    game = nethack.RealFruitChoice()
    yield game
    game.close()


def test_a_hero_sees_what_nethacks_hero_sees(game):
    _compare_many(game, _sampled, range(40))


def test_a_hero_sees_what_nethacks_hero_sees_on_odd_levels(game):
    _compare_many(game, _wild, range(40))


@pytest.mark.parametrize(("levels", "seed"), [(_wild, 1118), (_sampled, 1252)])
def test_walls_at_the_right_edge_of_the_map_are_seen_as_in_nethack(game, levels, seed):
    """Of rooms there NetHack sometimes does not show a wall that it shows elsewhere."""
    rooms = levels(seed)
    assert np.max(np.asarray(rooms.corners + rooms.sizes)[:, 1]) == 78
    _compare(game, rooms, seed)


@pytest.mark.slow
@pytest.mark.parametrize("levels", [_sampled, _wild])
def test_a_hero_sees_what_nethacks_hero_sees_on_many_levels(game, levels):
    _compare_many(game, levels, range(1000, 1400))
