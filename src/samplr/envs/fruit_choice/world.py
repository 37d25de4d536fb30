"""Stochastic Fruit Choice: walk and kick through locked rooms, and eat the apple or the banana at their end.

A level is a chain of rooms and which of the fruits is right (θ′): the apple with probability q. Nothing shows which it
is until one is eaten, and then the episode is over. The right apple pays 3, the right banana 10.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int16, PRNGKeyArray, UInt8

from samplr.envs.api import Encoder, GroundedEnvironment, Level, LevelSampler, Suite, TimeStep
from samplr.envs.fruit_choice import networks, rules
from samplr.envs.fruit_choice.display import Memory, look, nothing_seen, wall_shapes
from samplr.envs.fruit_choice.glyphs import Glyph
from samplr.envs.fruit_choice.picture import level_picture, picture
from samplr.envs.fruit_choice.rooms import chain_of_rooms, check_rooms, sample_rooms
from samplr.envs.fruit_choice.rules import Action, Eaten, Game
from samplr.envs.fruit_choice.terrain import COLUMNS, MAX_ROOMS, ROWS, Rooms, Scene, Terrain, terrain_of
from samplr.envs.fruit_choice.walls import LOOKS
from samplr.envs.spaces import Box, Discrete
from samplr.errors import SamplrError
from samplr.posteriors import Enumerated

_GLYPHS = 5976
_LARGEST_STATISTIC = 32767.0


class RightFruit(eqx.Module):
    """θ′: which fruit pays."""

    apple_is_right: Bool[Array, ""]


class FruitWorld(eqx.Module):
    """The map of a level, prepared for playing and looking."""

    rooms: Rooms
    terrain: Terrain
    shapes: UInt8[Array, "21 79"]
    """The shapes of the walls."""
    first_look: Memory
    """What is seen from the start: it depends on the layout alone."""


class FruitState(eqx.Module):
    """The game, what was seen of it, the right fruit, and how many keys were pressed."""

    game: Game
    memory: Memory
    right: RightFruit
    steps: Int[Array, ""]


class FruitChoice(GroundedEnvironment):
    """Choose between two fruits behind locked rooms of NetHack: the paper's first experiment."""

    q: float = 0.7
    """The probability that the apple is right."""
    max_rooms: int = MAX_ROOMS
    """Levels have 1 to this many rooms, each number as likely."""
    apple_reward: float = 3.0
    """What the apple pays where it is right."""
    banana_reward: float = 10.0
    """What the banana pays where it is right."""
    step_limit: int = 250
    """After so many keys an episode is truncated."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "student.encoder": "nethack",
        # Of the compact encoder; the paper's has sizes of its own.
        "student.hidden": (256, 256),
        "student.memory": 512,
        "student.discount": 0.995,
        "student.gae_lambda": 0.95,
        "student.epochs": 5,
        "student.minibatches": 1,
        "student.clip_values": True,
        "student.value_coefficient": 0.5,
        "student.normalise_returns": False,
        "student.learning_rate": 1e-4,
        "replay.rate": 0.95,
        "replay.capacity": 4000,
        "replay.prioritisation": "rank",
        "replay.temperature": 0.3,
        "replay.staleness": 0.3,
        "workers": 32,
        "rollout": 256,
        "steps": 200_000_000,
    }

    backends: ClassVar[Mapping[str, str]] = {"nethack": "samplr.envs.fruit_choice.host:FruitChoiceNetHack"}

    def __check_init__(self) -> None:
        if not 0 <= self.q <= 1:
            raise SamplrError(f"fruit choice needs a q between 0 and 1, not {self.q:g}")
        if not 1 <= self.max_rooms <= MAX_ROOMS:
            raise SamplrError(f"fruit choice needs max_rooms between 1 and {MAX_ROOMS}, not {self.max_rooms}")
        if self.step_limit < 1:
            raise SamplrError(f"fruit choice needs a step_limit of at least 1, not {self.step_limit}")

    @property
    def observation_space(self) -> dict[str, Box]:
        """NetHack's map, a glyph in each cell, and its 27 bottom-line statistics."""
        return {"glyphs": Box((ROWS, COLUMNS), 0.0, _GLYPHS - 1.0), "blstats": Box((27,), -1.0, _LARGEST_STATISTIC)}

    @property
    def action_space(self) -> Discrete:
        """Eight directions, kick, and eat: see `rules.Action`."""
        return Discrete(len(Action))

    @property
    def posterior(self) -> Enumerated:
        """Apple or banana; until the end of an episode it is the prior."""
        return Enumerated(
            candidates=RightFruit(jnp.array([True, False])),
            log_prior=jnp.log(jnp.array([self.q, 1 - self.q])),
            log_likelihood=_nothing_learnt,
        )

    @property
    def observation_is_sufficient(self) -> bool:
        """There is nothing to learn about the right fruit before the end; memory helps with the rooms."""
        return True

    def sample_layout(self, *, key: PRNGKeyArray) -> Rooms:
        """A chain of rooms, as MultiRoom lays them."""
        return sample_rooms(self.max_rooms, key=key)

    def sample_aleatoric(self, layout: Rooms, *, key: PRNGKeyArray) -> RightFruit:
        """Draw which fruit is right."""
        return RightFruit(jax.random.bernoulli(key, self.q))

    def build(self, layout: Rooms) -> FruitWorld:
        """Draw the map, and look at it from the start."""
        terrain = terrain_of(layout)
        shapes = wall_shapes(terrain.kind)
        # Nothing that is seen depends on the hero's attributes.
        scene = rules.begin(layout, jnp.zeros(6, jnp.int32)).scene
        return FruitWorld(layout, terrain, shapes, look(terrain, shapes, scene, nothing_seen()))

    def reset(
        self, world: FruitWorld, aleatoric: RightFruit, *, key: PRNGKeyArray
    ) -> tuple[FruitState, dict[str, Array]]:
        """Begin on the stairs with a new hero."""
        game = rules.begin(world.rooms, rules.draw_attributes(key=key))
        state = FruitState(game, world.first_look, aleatoric, jnp.int32(0))
        return state, self.observe(world, state)

    def step(self, world: FruitWorld, state: FruitState, action: Int[Array, ""], *, key: PRNGKeyArray) -> TimeStep:
        """Press a key, then look."""
        chances = rules.draw_chances(state.game, key=key)
        game, eaten = rules.act(world.terrain, state.game, action, chances)
        memory = look(world.terrain, world.shapes, game.scene, state.memory)
        after = FruitState(game, memory, state.right, state.steps + 1)
        solved, died = eaten != Eaten.NOTHING, game.hp < 1
        return TimeStep(
            state=after,
            observation=self.observe(world, after),
            reward=self._reward(eaten, state.right),
            terminated=solved | died,
            truncated=~solved & ~died & (after.steps >= self.step_limit),
            metrics=_metrics(world.rooms, eaten, died),
        )

    def _reward(self, eaten: Int[Array, ""], right: RightFruit) -> Float[Array, ""]:
        apple = (eaten == Eaten.APPLE) & right.apple_is_right
        banana = (eaten == Eaten.BANANA) & ~right.apple_is_right
        return apple * jnp.float32(self.apple_reward) + banana * jnp.float32(self.banana_reward)

    def observe(self, world: FruitWorld, state: FruitState) -> dict[str, Array]:
        """What NetHack shows: the map as far as it was seen, and the bottom lines; never a prompt."""
        return {"glyphs": state.memory.glyphs, "blstats": rules.blstats(state.game)}

    def evidence(self, state: FruitState) -> None:
        """Nothing is revealed before the end."""
        return None

    def substitute(self, state: FruitState, aleatoric: RightFruit) -> FruitState:
        """Swap the right fruit."""
        return FruitState(state.game, state.memory, aleatoric, state.steps)

    def hidden(self, aleatoric: RightFruit) -> Float[Array, "1"]:
        """1 where the apple is right, else 0."""
        return aleatoric.apple_is_right.astype(jnp.float32)[None]

    def complete(self, hidden: Float[Array, "1"], evidence: None, *, key: PRNGKeyArray) -> RightFruit:
        """The right fruit is all there is."""
        return RightFruit(hidden[0] > 0.5)

    def summaries(self, aleatoric: RightFruit) -> dict[str, Float[Array, ""]]:
        """Whether the apple is right: on average, its share."""
        return {"apple": aleatoric.apple_is_right.astype(jnp.float32)}

    def suites(self) -> Mapping[str, Suite]:
        """The ground truth, and its levels by their number of rooms."""
        numbers = range(1, self.max_rooms + 1)
        return {**super().suites(), "rooms": {f"{n} room{'s' * (n > 1)}": self.with_rooms(n) for n in numbers}}

    def with_rooms(self, count: int) -> LevelSampler:
        """Levels of so many rooms."""

        def sample(key: PRNGKeyArray) -> Level:
            layout_key, aleatoric_key = jax.random.split(key)
            layout = chain_of_rooms(count, key=layout_key)
            return Level(layout, self.sample_aleatoric(layout, key=aleatoric_key))

        return sample

    def encoders(self) -> Mapping[str, Callable[..., Encoder]]:
        """The paper's network, and a cheaper one."""
        return networks.encoders()

    def validate(self, level: Level) -> None:
        """Check shapes, and that the level can be played."""
        super().validate(level)
        check_rooms(level.layout)

    def render(self, world: FruitWorld, state: FruitState) -> UInt8[np.ndarray, "height width 3"]:
        """NetHack's screen, with what was not seen yet and the right fruit, which the agent cannot know."""
        seen = {name: np.asarray(part) for name, part in self.observe(world, state).items()}
        prompt, right = int(state.game.prompt), bool(state.right.apple_is_right)
        return picture(seen["glyphs"], seen["blstats"], prompt, right, _whole_map(world, state.game.scene))

    def render_level(self, world: FruitWorld, state: FruitState) -> UInt8[np.ndarray, "height width 3"]:
        """The rooms alone, with a frame around the right fruit."""
        scene, seen = state.game.scene, np.asarray(self.observe(world, state)["glyphs"])
        glyphs = np.where(seen == Glyph.HERO, seen, _whole_map(world, scene))
        right = np.asarray(scene.apple if state.right.apple_is_right else scene.banana)
        return level_picture(glyphs, (int(right[0]), int(right[1])))


def _nothing_learnt(evidence: None, right: RightFruit) -> Float[Array, ""]:
    """log P(evidence|θ′): whichever fruit is right, the history before the end is the same."""
    return jnp.zeros(())


def _metrics(rooms: Rooms, eaten: Int[Array, ""], died: Bool[Array, ""]) -> dict[str, Float[Array, ""]]:
    solved, count = eaten != Eaten.NOTHING, rooms.count.astype(jnp.float32)
    return {
        "solved": solved.astype(jnp.float32),
        "ate_apple": (eaten == Eaten.APPLE).astype(jnp.float32),
        "ate_banana": (eaten == Eaten.BANANA).astype(jnp.float32),
        "died": died.astype(jnp.float32),
        "rooms": count,
        "rooms_solved": jnp.where(solved, count, 0.0),
    }


def _whole_map(world: FruitWorld, scene: Scene) -> Int16[np.ndarray, "21 79"]:
    """The map as if all of it had been seen from everywhere."""
    from_everywhere = -1
    glyphs = np.array(LOOKS[np.asarray(world.shapes), from_everywhere], np.int16)
    glyphs[tuple(np.asarray(scene.apple))] = Glyph.APPLE
    glyphs[tuple(np.asarray(scene.banana))] = Glyph.BANANA
    return glyphs
