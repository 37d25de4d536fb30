"""The rules of the game: what each of the ten keys does, and by what luck. What is seen is not their business.

One step is one key. Some keys ask a question, and the next key answers it: a direction to kick in, or yes (which is the
key for northwest) or no (southeast) to eating what lies here. Kicks break doors, move fruit, and hurt at walls.
"""

import enum

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from samplr.envs.fruit_choice.terrain import COLUMNS, ROWS, Cell, Kind, Rooms, Scene, Terrain

MAX_HP = 12


class Action(enum.IntEnum):
    """The keys, in the order of NetHack's compass."""

    N = 0
    E = 1
    S = 2
    W = 3
    NE = 4
    SE = 5
    SW = 6
    NW = 7
    KICK = 8
    EAT = 9


YES, NO = Action.NW, Action.SE
"""What these keys say to a question: NetHack's letters for them are y and n."""


class Prompt(enum.IntEnum):
    """The question that the next key answers."""

    NONE = 0
    KICK = 1
    """In what direction?"""
    EAT = 2
    """Eat the fruit that lies here, or the upper one of two?"""
    EAT_LOWER = 3
    """Eat the lower one of two?"""


class Eaten(enum.IntEnum):
    """What was eaten in a step."""

    NOTHING = 0
    APPLE = 1
    BANANA = 2


class Attribute(enum.IntEnum):
    """A hero's attributes in NetHack's order. Above 18, strength counts 18/01 as 19 up to 18/100 as 118."""

    STRENGTH = 0
    INTELLIGENCE = 1
    WISDOM = 2
    DEXTERITY = 3
    CONSTITUTION = 4
    CHARISMA = 5


class Game(eqx.Module):
    """A game under way, apart from what was seen of it."""

    scene: Scene
    attributes: Int[Array, "6"]
    hp: Int[Array, ""]
    """Hit points; dead below 1."""
    turn: Int[Array, ""]
    """NetHack's clock, which stands still where a key leads to nothing."""
    wound: Int[Array, ""]
    """For how many more turns a leg is wounded and cannot kick."""
    prompt: Int[Array, ""]


class Chances(eqx.Module):
    """How everything that may be left to luck in one step would turn out."""

    door_opens: Bool[Array, ""]
    """Whether a kicked door breaks."""
    damage: Int[Array, ""]
    """What a kick that hurts costs."""
    wounded: Bool[Array, ""]
    """Whether a kick that hurts wounds a leg."""
    wound_turns: Int[Array, ""]
    """How long a wound or strain would last, the turn of the kick included."""
    strained: Bool[Array, ""]
    """Whether a kick into empty space strains a muscle."""
    thump_hurts: Bool[Array, ""]
    """Whether kicking a fruit that cannot move hurts."""


# --- Luck -----------------------------------------------------------------------------------------------------------

_ROGUE = np.array([7, 7, 7, 10, 7, 6])
_HUMAN_LIMIT = np.array([118, 18, 18, 18, 18, 18])
_LEAST = 3
_POINTS = 75
_SHARES = np.array([21, 10, 10, 30, 20, 9])
"""Of 100 points, how many go to each attribute: a Rogue's, as the way they are drawn in has it."""
_DRAWS = 64


def draw_attributes(*, key: PRNGKeyArray) -> Int[Array, "6"]:
    """The attributes of a new human Rogue.

    Points go one by one to an attribute drawn by its share; one that is full is drawn again. It takes 34 draws on
    average, and less than one hero in a million would need more than 64. Then each attribute may change by a little.
    """
    points_key, changes_key, change_key = jax.random.split(key, 3)
    drawn = jax.random.uniform(points_key, (_DRAWS, 1)) < np.cumsum(_SHARES) / 100
    to = drawn & ~jnp.pad(drawn, ((0, 0), (1, 0)))[:, :-1]
    has_room = _so_far(to) <= _HUMAN_LIMIT - _ROGUE
    given = jnp.any(to & has_room, axis=1)
    given &= _so_far(given) <= _POINTS - _ROGUE.sum()
    attributes = _ROGUE + jnp.sum(to & given[:, None], axis=0)
    changes = jax.random.uniform(changes_key, (6,)) < 1 / 20
    change = jnp.where(changes, jax.random.randint(change_key, (6,), -2, 5), 0)
    return jnp.clip(attributes + change, _LEAST, _HUMAN_LIMIT)


def _so_far(flags: Bool[Array, "draws *rest"]) -> Float[Array, "draws *rest"]:
    """How many flags are set up to each draw. A matrix product is faster than `cumsum`, and as exact here."""
    return jnp.tri(_DRAWS) @ flags.astype(jnp.float32)


def draw_chances(game: Game, *, key: PRNGKeyArray) -> Chances:
    """Throw all dice of a step; most are then not looked at."""
    door, damage, wound, turns, strain, thump = jax.random.uniform(key, (6,))
    dexterity, constitution = game.attributes[Attribute.DEXTERITY], game.attributes[Attribute.CONSTITUTION]
    average = (effective_strength(game) + dexterity + constitution) // 3
    return Chances(
        door_opens=35 * door < average,
        damage=1 + jnp.floor(jnp.where(constitution > 15, 3, 5) * damage).astype(jnp.int32),
        wounded=wound < 1 / 3,
        wound_turns=6 + jnp.floor(5 * turns).astype(jnp.int32),
        strained=(dexterity < 16) & (strain < 1 / 3),
        thump_hurts=thump < 2 / 3,
    )


def effective_strength(game: Game) -> Int[Array, ""]:
    """Strength on the scale of the other attributes: 18/01 to 18/30 are 19, to 18/80 are 20, to 18/100 are 21."""
    strength = game.attributes[Attribute.STRENGTH]
    return jnp.where(strength <= 18, strength, 19 + strength // 50)


# --- A step ---------------------------------------------------------------------------------------------------------

_DIRECTIONS = np.array([(-1, 0), (0, 1), (1, 0), (0, -1), (-1, 1), (1, 1), (1, -1), (-1, -1), (0, 0), (0, 0)])
_LONGEST_FLIGHT = 10
_HEALING_INTERVAL = 15


def begin(rooms: Rooms, attributes: Int[Array, "6"]) -> Game:
    """The first turn, on the stairs."""
    scene = Scene(rooms.start, jnp.zeros(rooms.doors.shape[0], bool), rooms.apple, rooms.banana, jnp.array(False))
    return Game(scene, attributes, jnp.int32(MAX_HP), jnp.int32(1), jnp.int32(0), jnp.int32(Prompt.NONE))


def act(terrain: Terrain, game: Game, action: Int[Array, ""], chances: Chances) -> tuple[Game, Int[Array, ""]]:
    """Press a key.

    **Returns:** the game after it, and which fruit was eaten (`Eaten`).
    """
    prompt, eaten = _answer(game, action)
    direction = jnp.asarray(_DIRECTIONS)[action]
    has_direction = action < Action.KICK
    kicked, kick = _kick(terrain, game, direction, chances), (game.prompt == Prompt.KICK) & has_direction
    hero = game.scene.hero + direction
    moves = (game.prompt == Prompt.NONE) & has_direction & _clear(terrain, game.scene.broken, hero[None])[0]
    scene: Scene = jax.tree.map(lambda after, before: jnp.where(kick, after, before), kicked.scene, game.scene)
    scene = eqx.tree_at(lambda scene: scene.hero, scene, jnp.where(moves, hero, scene.hero))
    hp, wound = jnp.where(kick, kicked.hp, game.hp), jnp.where(kick, kicked.wound, game.wound)
    return _end_turn(Game(scene, game.attributes, hp, game.turn, wound, prompt), kick | moves), eaten


def _end_turn(game: Game, timed: Bool[Array, ""]) -> Game:
    """Where the key took time, the clock goes on and wounds heal; the dead have no more turns."""
    passes = timed & (game.hp > 0)
    turn = game.turn + passes
    heals = passes & (turn % _HEALING_INTERVAL == 0) & (game.hp < MAX_HP)
    wound = jnp.where(passes, jnp.maximum(game.wound - 1, 0), game.wound)
    return Game(game.scene, game.attributes, game.hp + heals, turn, wound, game.prompt)


def _answer(game: Game, action: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """The question after a key, and what was eaten if the key said yes."""
    scene = game.scene
    apple_here, banana_here = jnp.all(scene.apple == scene.hero), jnp.all(scene.banana == scene.hero)
    asked = jnp.where(
        action == Action.EAT,
        jnp.where(apple_here | banana_here, Prompt.EAT, Prompt.NONE),
        jnp.where((action == Action.KICK) & (game.wound == 0), Prompt.KICK, Prompt.NONE),
    )
    eating = game.prompt >= Prompt.EAT
    declined = jnp.where((game.prompt == Prompt.EAT) & apple_here & banana_here, Prompt.EAT_LOWER, Prompt.NONE)
    answered = jnp.where(action == YES, Prompt.NONE, jnp.where(action == NO, declined, game.prompt))
    prompt = jnp.where(game.prompt == Prompt.NONE, asked, jnp.where(eating, answered, Prompt.NONE))
    lower = game.prompt == Prompt.EAT_LOWER
    banana = banana_here & (~apple_here | (scene.banana_on_top ^ lower))
    eaten = jnp.where(eating & (action == YES), jnp.where(banana, Eaten.BANANA, Eaten.APPLE), Eaten.NOTHING)
    return prompt.astype(jnp.int32), eaten


def _kick(terrain: Terrain, game: Game, direction: Int[Array, "2"], chances: Chances) -> Game:
    """Kick what is one cell away: first of all a fruit, then a door, a wall or the stairs, and else nothing."""
    scene = game.scene
    line = scene.hero + jnp.arange(1, _LONGEST_FLIGHT + 1)[:, None] * direction
    clear = _clear(terrain, scene.broken, line)
    apple, banana = jnp.all(scene.apple == line[0]), jnp.all(scene.banana == line[0])
    fruit, door, kind = apple | banana, _doors_at(terrain, line[:1])[0], _kind(terrain, line[0])
    # Of the cells beyond the fruit's own, as many as are clear from the first on.
    free = jnp.sum(jnp.cumprod(clear[1:]))
    reach = jnp.minimum(free, effective_strength(game) // 2 - 1)
    thump = fruit & (reach == 0)
    ouch = (thump & chances.thump_hurts) | (~fruit & (~clear[0] & ~jnp.any(door) | (kind == Kind.STAIRS)))
    strained = ~fruit & clear[0] & (kind != Kind.STAIRS) & chances.strained
    wound = jnp.where((ouch & chances.wounded) | strained, chances.wound_turns, game.wound)
    scene = _move_fruit(scene, apple, banana, line[reach], fruit & ~thump)
    broken = scene.broken | (door & ~fruit & chances.door_opens)
    scene = eqx.tree_at(lambda scene: scene.broken, scene, broken)
    return Game(scene, game.attributes, game.hp - ouch * chances.damage, game.turn, wound, game.prompt)


def _move_fruit(
    scene: Scene, apple: Bool[Array, ""], banana: Bool[Array, ""], to: Cell, flies: Bool[Array, ""]
) -> Scene:
    """Move the upper of the fruits that are there to another cell, where it lies on top."""
    banana_flies = flies & banana & (~apple | scene.banana_on_top)
    apple_flies = flies & ~banana_flies
    return Scene(
        hero=scene.hero,
        broken=scene.broken,
        apple=jnp.where(apple_flies, to, scene.apple),
        banana=jnp.where(banana_flies, to, scene.banana),
        banana_on_top=jnp.where(flies, banana_flies, scene.banana_on_top),
    )


def _kind(terrain: Terrain, cell: Int[Array, "*cells 2"]) -> Int[Array, "*cells"]:
    row, column = jnp.clip(cell[..., 0], 0, ROWS - 1), jnp.clip(cell[..., 1], 0, COLUMNS - 1)
    return terrain.kind[row, column]


def _doors_at(terrain: Terrain, cells: Int[Array, "n 2"]) -> Bool[Array, "n 7"]:
    """Which door is at each of some cells, if any."""
    there = jnp.arange(terrain.doors.shape[0]) < terrain.count - 1
    return there & jnp.all(terrain.doors == cells[:, None], axis=-1)


def _clear(terrain: Terrain, broken: Bool[Array, "7"], cells: Int[Array, "n 2"]) -> Bool[Array, " n"]:
    """Which cells one can walk on: `Terrain.clear` of a few cells, without the rest of the map."""
    kind = _kind(terrain, cells)
    open_door = jnp.any(_doors_at(terrain, cells) & broken, axis=-1)
    return (kind == Kind.FLOOR) | (kind == Kind.STAIRS) | open_door


# --- What the bottom lines of the screen tell -----------------------------------------------------------------------


def blstats(game: Game) -> Int[Array, "27"]:
    """NetHack's line of figures. What never changes here is as it is for a new Rogue."""
    strength, intelligence, wisdom, dexterity, constitution, charisma = game.attributes
    row, column = game.scene.hero
    position = [column, row]
    attributes = [effective_strength(game), strength, dexterity - (game.wound > 0), constitution]
    others = [intelligence, wisdom, charisma]
    score, depth, gold, energy, max_energy, armour = 0, 1, 0, 2, 2, 7
    health = [score, jnp.maximum(game.hp, 0), MAX_HP, depth, gold, energy, max_energy, armour]
    monster_level, level, experience, hunger, load, dungeon, floor, condition, alignment = 0, 1, 0, 1, 0, 0, 1, 0, -1
    progress = [monster_level, level, experience, game.turn, hunger, load, dungeon, floor, condition, alignment]
    return jnp.stack([jnp.asarray(x, jnp.int32) for x in position + attributes + others + health + progress])
