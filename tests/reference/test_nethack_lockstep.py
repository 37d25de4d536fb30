"""Our game against NetHack itself, key by key: what is shown, asked, paid and ended.

The real game is played first. Then ours is given the same keys, and of the dice only what the real game made of them:
whether a kicked door opened, how much a kick hurt, whether it wounded and for how long, and the hero's attributes.
"""

import importlib
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial

import jax
import numpy as np
import pytest

from samplr.compiling import jit
from samplr.envs.fruit_choice.display import look, nothing_seen, wall_shapes
from samplr.envs.fruit_choice.glyphs import Glyph
from samplr.envs.fruit_choice.rooms import chain_of_rooms
from samplr.envs.fruit_choice.rules import Chances, Eaten, Prompt, act, begin, blstats
from samplr.envs.fruit_choice.terrain import MAX_ROOMS, Kind, Rooms, terrain_of

pytest.importorskip("nle")
pytest.importorskip("minihack")
nethack = importlib.import_module("samplr.envs.fruit_choice.nethack")

STEPS = 250
BATCH = 40
COMPASS = [(-1, 0), (0, 1), (1, 0), (0, -1), (-1, 1), (1, 1), (1, -1), (-1, -1)]
KICK, EAT = 8, 9
X, Y, DEX, HP, TURN = 0, 1, 4, 10, 20
ATTRIBUTES = [3, 6, 7, 4, 5, 8]
"""Where blstats has Str, Int, Wis, Dex, Con and Cha."""
REGENERATION, MOST_DAMAGE = 15, 5
DOORS = (Glyph.VERTICAL_DOOR, Glyph.HORIZONTAL_DOOR)


def prompt_of(message: str) -> Prompt:
    if "In what direction?" in message:
        return Prompt.KICK
    return Prompt.EAT if "; eat it? [ynq]" in message else Prompt.NONE


class Player:
    """Opens doors and goes for the fruit, kicks and eats on the way, and now and then presses just any key."""

    def __init__(self, rooms: Rooms, rng: np.random.Generator):
        self.rng = rng
        self.kind = np.asarray(jit_terrain(rooms).kind)
        self.doors = [tuple(door) for door in np.asarray(rooms.doors)[: int(rooms.count) - 1].tolist()]
        self.open = set()
        self.whim = rng.choice([0.01, 0.05, 0.3])
        self.kicks_fruit = rng.choice([0.1, 0.6, 0.95])
        self.hunger = rng.choice([0.02, 0.2])
        self.fearless = rng.random() < 0.4
        self.aim, self.target = 0, (0, 0)
        self.distances = {}

    def press(self, glyphs: np.ndarray, stats: np.ndarray, prompt: Prompt, *, wounded: bool) -> int:
        anything = int(self.rng.integers(10))
        if prompt == Prompt.EAT:
            return 7 if self.rng.random() < self.hunger else int(self.rng.choice([0, 1, 2, 3, 4, 5, 5, 5, 6, 8, 9]))
        if prompt == Prompt.KICK:
            return anything if self.rng.random() < self.whim else self.aim
        if self.rng.random() < self.whim:
            self.aim = int(self.rng.integers(8))
            return KICK if self.rng.random() < 0.3 else anything
        if wounded and self.rng.random() < 0.8:  # a leg heals only as turns pass
            return int(self.rng.integers(8))
        self.open |= {door for door in self.doors if glyphs[door] == Glyph.BROKEN_DOOR}
        key = self.towards_something(glyphs, (int(stats[Y]), int(stats[X])))
        afraid = not self.fearless and stats[HP] <= MOST_DAMAGE and glyphs[self.target] not in DOORS
        return int(self.rng.integers(8)) if key == KICK and afraid else key

    def towards_something(self, glyphs: np.ndarray, hero: tuple[int, int]) -> int:
        shut = [door for door in self.doors if door not in self.open]
        fruit = [tuple(cell) for cell in np.argwhere((glyphs == Glyph.APPLE) | (glyphs == Glyph.BANANA)).tolist()]
        if len(fruit) < 2 and not shut and self.rng.random() < 0.5:
            return EAT  # perhaps the hero stands on the other
        if not shut and not fruit:
            return int(self.rng.integers(8))
        goal = self.target = shut[0] if shut else fruit[int(self.rng.integers(len(fruit)))]
        distance = self.distance_to(goal)
        around = [(hero[0] + dy, hero[1] + dx) for dy, dx in COMPASS]
        if goal in around and (shut or self.rng.random() < self.kicks_fruit):
            self.aim = around.index(goal)
            return KICK
        near = [distance.get(cell, np.inf) + 0.1 * self.rng.random() for cell in around]
        return int(np.argmin(near))

    def distance_to(self, goal: tuple[int, int]) -> dict:
        """Steps to a cell from every other."""
        if (found := self.distances.get((goal, len(self.open)))) is not None:
            return found
        distance, edge = {goal: 0}, deque([goal])
        while edge:
            cell = edge.popleft()
            for dy, dx in COMPASS:
                other = (cell[0] + dy, cell[1] + dx)
                clear = self.kind[other] in (Kind.FLOOR, Kind.STAIRS) or other in self.open
                if clear and other not in distance:
                    distance[other] = distance[cell] + 1
                    edge.append(other)
        self.distances[goal, len(self.open)] = distance
        return distance


jit_terrain = jit(terrain_of)


@dataclass
class Episode:
    """What was pressed and what the real game answered; observations begin with that of the reset."""

    keys: np.ndarray
    glyphs: np.ndarray
    stats: np.ndarray
    messages: list[str]
    reward: np.ndarray
    terminated: bool
    truncated: bool
    apple_is_right: bool

    @property
    def prompts(self) -> np.ndarray:
        return np.array([prompt_of(message) for message in self.messages])


def real_episode(env, rooms: Rooms, seed: int) -> Episode:
    rng = np.random.default_rng(seed)
    apple_is_right = bool(rng.random() < 0.5)
    player = Player(rooms, rng)
    seen, _ = env.reset(seed=seed, options={"rooms": rooms, "apple_is_right": apple_is_right})
    keys, frames, messages, rewards, over = [], [seen], [env.message], [], (False, False)
    while not any(over):
        wounded = seen["blstats"][DEX] < frames[0]["blstats"][DEX]
        keys.append(player.press(seen["glyphs"], seen["blstats"], prompt_of(messages[-1]), wounded=wounded))
        seen, reward, *over, _ = env.step(keys[-1])
        frames.append(seen)
        messages.append(env.message)
        rewards.append(reward)
    glyphs, stats = (np.stack([frame[name] for frame in frames]) for name in ("glyphs", "blstats"))
    return Episode(np.array(keys), glyphs, stats, messages, np.array(rewards), *over, apple_is_right)


def outcomes(episode: Episode) -> Chances:
    """What the real game's dice decided, step by step."""
    before, after = episode.stats[:-1], episode.stats[1:]
    hurt, dead = said(episode, "Ouch") | (after[:, HP] == 0), after[:, HP] == 0
    # A kick in a turn that heals costs one more than is seen. A death may have taken more than there was.
    healed = (after[:, TURN] > before[:, TURN]) & (after[:, TURN] % REGENERATION == 0)
    damage = np.where(dead, MOST_DAMAGE, before[:, HP] - after[:, HP] + healed)
    wounded = after[:, DEX] < before[:, DEX]
    return Chances(
        door_opens=said(episode, "crashes open") | said(episode, "shatters"),
        damage=np.where(hurt, damage, 0),
        wounded=wounded,
        wound_turns=wound_turns(episode, wounded),
        strained=said(episode, "strain a muscle"),
        thump_hurts=hurt,
    )


def said(episode: Episode, words: str) -> np.ndarray:
    return np.array([words in message for message in episode.messages[1:]])


def wound_turns(episode: Episode, wounded: np.ndarray) -> np.ndarray:
    """How long each wound lasted; one that outlasts the episode, the longest that NetHack knows."""
    dex, turn = episode.stats[1:, DEX], episode.stats[1:, TURN]
    turns = np.full(len(wounded), 10)
    for step in np.flatnonzero(wounded):
        well = np.flatnonzero(dex[step:] > dex[step])
        if well.size:
            turns[step] = turn[step + well[0]] - turn[step] + 1
    return turns


def padded(array: np.ndarray, length: int) -> np.ndarray:
    """The last row again and again, for episodes of one length."""
    return np.concatenate([array, np.repeat(array[-1:], length - len(array), axis=0)])


@jit
@jax.vmap
def replay(rooms: Rooms, attributes, keys, chances: Chances):
    """The same keys and the same luck in our game: what it shows, tells, asks and gives to eat, from the start on."""
    terrain = terrain_of(rooms)
    shapes, game = wall_shapes(terrain.kind), begin(rooms, attributes)
    memory = look(terrain, shapes, game.scene, nothing_seen())

    def step(now, inputs):
        game, memory = now
        key, luck = inputs
        game, eaten = act(terrain, game, key, luck)
        memory = look(terrain, shapes, game.scene, memory)
        return (game, memory), (memory.glyphs, blstats(game), game.prompt, eaten)

    first = (memory.glyphs, blstats(game), game.prompt, jax.numpy.int32(Eaten.NOTHING))
    rest = jax.lax.scan(step, (game, memory), (keys, chances))[1]
    return jax.tree.map(lambda a, b: jax.numpy.concatenate([a[None].astype(b.dtype), b]), first, rest)


@jit
@jax.vmap
def sample(count, key):
    return chain_of_rooms(count, key=key)


def corridor(rng: np.random.Generator) -> Rooms:
    """A room one cell wide, where kicked fruits come to lie in a pile."""
    corners, sizes = np.zeros((2, MAX_ROOMS, 2), np.int32)
    length, upright = int(rng.integers(3, 8)), int(rng.integers(2))
    sizes[0] = (length + 2, 3) if upright else (3, length + 2)
    corners[0] = rng.integers((0, 2), (21, 78) - sizes[0])
    cells = np.tile(corners[0] + 1, (3, 1))
    cells[:, 1 - upright] += rng.permutation(length)[:3]
    return Rooms(np.int32(1), corners, sizes, np.zeros((MAX_ROOMS - 1, 2), np.int32), *cells.astype(np.int32))


def levels(number: int, seed: int) -> list[Rooms]:
    """As many of one room as of eight, and among ten levels two corridors."""
    counts = np.arange(number) % (MAX_ROOMS + 2) + 1
    rooms = jax.device_get(sample(np.minimum(counts, MAX_ROOMS), jax.random.split(jax.random.key(seed), number)))
    rng = np.random.default_rng(seed)
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], rooms) for i in range(number)]
    return [corridor(rng) if count > MAX_ROOMS else level for count, level in zip(counts, each, strict=True)]


def ours(episodes: list[Episode], rooms: list[Rooms]):
    """Our game over these episodes; what is past their ends means nothing."""
    keys = np.stack([padded(episode.keys, STEPS) for episode in episodes])
    attributes = np.stack([episode.stats[0, ATTRIBUTES] for episode in episodes]).astype(np.int32)
    luck = [jax.tree.map(partial(padded, length=STEPS), outcomes(episode)) for episode in episodes]
    stack = partial(jax.tree.map, lambda *leaves: np.stack(leaves))
    return jax.device_get(replay(stack(*rooms), attributes, keys, stack(*luck)))


@dataclass
class Comparison:
    """How much was compared, what differed and where first."""

    steps: int = 0
    cells: int = 0
    wrong_cells: int = 0
    wrong: Counter = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    met: Counter = field(default_factory=Counter)

    def add(self, name: str, episode: Episode, ours, real) -> None:
        """Compare something step by step, rows being steps."""
        differs = np.reshape(np.asarray(ours) != np.asarray(real), (len(real), -1)).any(axis=1)
        self.wrong[name] += int(differs.sum())
        if differs.any():
            t = int(np.argmax(differs))
            said, keys = episode.messages[max(t - 2, 0) : t + 1], episode.keys[max(t - 3, 0) : t]
            self.examples.append(f"{name} at step {t} after keys {keys}, {said}: ours {ours[t]}, real {real[t]}")

    def add_episode(self, episode: Episode, glyphs, stats, prompt, eaten) -> None:
        length = len(episode.keys)
        # Once fruit is eaten the real game still passes a turn; ours is over.
        seen = length if episode.terminated and episode.stats[-1, HP] > 0 else length + 1
        self.steps += length
        self.add("blstats", episode, stats[:seen], episode.stats[:seen])
        self.add("prompt", episode, np.minimum(prompt, Prompt.EAT)[:seen], episode.prompts[:seen])
        right = Eaten.APPLE if episode.apple_is_right else Eaten.BANANA
        paid = np.where(eaten == right, 3.0 if episode.apple_is_right else 10.0, 0.0)
        self.add("reward", episode, paid[1 : length + 1], episode.reward)
        over = (eaten != Eaten.NOTHING) | (stats[:, HP] < 1)
        ends = np.arange(1, length + 1) == length
        self.add("terminated", episode, over[1 : length + 1], ends & episode.terminated)
        self.add("truncated", episode, ends & ~over[1 : length + 1] & (length == STEPS), ends & episode.truncated)
        shown = episode.glyphs[:seen] != Glyph.STONE
        differ = (glyphs[:seen] != episode.glyphs[:seen]) & (shown | (glyphs[:seen] != Glyph.STONE))
        self.cells, self.wrong_cells = self.cells + int(shown.sum()), self.wrong_cells + int(differ.sum())
        self.add("glyphs", episode, differ.any(axis=(1, 2)), np.zeros(seen, bool))
        for t, row, column in np.argwhere(differ)[:3]:
            mine, theirs = Glyph(glyphs[t, row, column]).name, episode.glyphs[t, row, column]
            self.examples.append(f"at {row}, {column} in step {t}: ours {mine}, real {theirs}")
        self.met.update(name for words, name in EVENTS.items() if any(words in said for said in episode.messages))
        self.met["a pile"] += bool(np.any(prompt[:seen] == Prompt.EAT_LOWER))
        self.met["death"] += bool(episode.terminated and episode.stats[-1, HP] == 0)
        self.met["limit"] += episode.truncated
        self.met["fruit eaten"] += bool(episode.terminated and episode.stats[-1, HP] > 0)

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.wrong.items())
        return (
            f"{self.steps:,} steps, {self.wrong_cells} of {self.cells:,} cells differ; steps that differ: {counts}\n"
            f"episodes with: {dict(self.met)}\n" + "\n".join(self.examples[:20])
        )


EVENTS = {
    "WHAMM": "a door that held",
    "crashes open": "a door that broke",
    "Ouch": "a kick that hurt",
    "strain a muscle": "a strain",
    "empty space": "a kick at nothing",
    "Thump": "a thump",
    "This door is locked": "a locked door",
    "strange direction": "a strange direction",
    "eat it?": "a question to eat",
    "don't have anything to eat": "nothing to eat",
}
"""What the game says when something happens that should have been met."""


def play_and_compare(number: int, seed: int) -> Comparison:
    comparison = Comparison()
    env = nethack.RealFruitChoice()
    rooms = levels(number, seed)
    for first in range(0, number, BATCH):
        batch = rooms[first : first + BATCH]
        episodes = [real_episode(env, level, seed + first + i) for i, level in enumerate(batch)]
        for episode, *mine in zip(episodes, *ours(episodes, batch), strict=True):
            comparison.add_episode(episode, *mine)
    env.close()
    return comparison


def check(comparison: Comparison) -> None:
    print(comparison)
    assert not any(comparison.wrong.values()), str(comparison)
    missing = {*EVENTS.values(), "a pile", "death", "limit", "fruit eaten"} - {
        name for name, n in comparison.met.items() if n
    }
    assert not missing, f"never met: {missing}"


def test_forty_levels():
    check(play_and_compare(40, seed=1))


@pytest.mark.slow
def test_many_levels():
    check(play_and_compare(400, seed=1000))
