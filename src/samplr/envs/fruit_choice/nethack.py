"""The real game: NetHack, through MiniHack, on our levels and with our rewards.

Map, sight, dice and messages are NetHack's own. Ours are the rooms it is given, what a fruit pays, and when an episode
ends. Needs `pip install "samplr[nethack]"`.
"""

import subprocess
import tempfile
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np

from samplr.compiling import jit
from samplr.envs.fruit_choice.rooms import GRID, ORIGIN
from samplr.envs.fruit_choice.terrain import Kind, Rooms, terrain_of
from samplr.envs.fruit_choice.world import FruitChoice
from samplr.errors import SamplrError

if missing := [name for name in ("gymnasium", "nle", "minihack") if find_spec(name) is None]:
    raise SamplrError(f'the real game needs {" and ".join(missing)}: pip install "samplr[nethack]"')

import gymnasium
from minihack import MiniHackNavigation
from minihack.base import HACKDIR, LIB_DIR
from nle.nethack import NLE_BL_HP, Command, CompassDirection

_ACTIONS = (*CompassDirection, Command.KICK, Command.EAT)
_YES = _ACTIONS.index(CompassDirection.NW)  # whose key is 'y'
_SYMBOLS = {Kind.STONE: " ", Kind.WALL: "|", Kind.FLOOR: ".", Kind.STAIRS: ".", Kind.DOOR: "+"}
_LUCK = ("Full moon", "Friday the 13th")


class RealFruitChoice(MiniHackNavigation):
    """Stochastic fruit choice in NetHack itself. `reset` takes the rooms and the right fruit as options.

    The ten actions are the compass (N, E, S, W, NE, SE, SW, NW), KICK and EAT. Observed are `glyphs` and `blstats`.

    **Arguments:**

    - `settings`: those of `FruitChoice`, our own game: what fruit pays, the limit of steps, which levels to sample.
    """

    def __init__(self, **settings: Any) -> None:
        self.rules = FruitChoice(**settings)
        self._pays = {"apple": self.rules.apple_reward, "banana": self.rules.banana_reward}
        self._right, self._eaten = "", ""
        # Autopickup would carry the fruit away. A fixed moon is drawn from the seed, and not from today's date.
        super().__init__(
            des_file="",
            actions=_ACTIONS,
            observation_keys=("glyphs", "blstats"),
            max_episode_steps=self.rules.step_limit,
            autopickup=False,
            fix_moon_phase=True,
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Begin on `options["rooms"]` (a `Rooms`) where `options["apple_is_right"]` says; without, on a sampled level.

        NetHack's dice are drawn from the seed too. Seeds that would bring luck are passed over: with it kicks open
        more doors.
        """
        gymnasium.Env.reset(self, seed=seed)
        rooms, apple_is_right = _asked_for(options) or self._sample_level()
        self._right, self._eaten = ("apple" if apple_is_right else "banana"), ""
        self.update(des_file(rooms))
        while True:
            core, disp = self.np_random.integers(2**31, size=2).tolist()
            self.seed(core, disp, reseed=False)
            observation, info = super().reset()
            if not any(sign in self.message for sign in _LUCK):
                return observation, info

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        """Press a key. An episode is terminated by eating or by death, and truncated at the limit."""
        asked = self.message if action == _YES else ""
        self._eaten = next((fruit for fruit in self._pays if f"{fruit} here; eat" in asked), "")
        observation, reward, ended, _, info = super().step(int(action))
        truncated = info["end_status"] == self.StepStatus.ABORTED
        return observation, reward, ended and not truncated, truncated, info

    @property
    def message(self) -> str:
        """What the game said last, which an agent is not shown."""
        return bytes(self.last_observation[self._message_index]).split(b"\0")[0].decode("ascii")

    def update(self, des_file: str) -> None:
        """Have the game read this level at its next reset."""
        folder = Path(self.nethack._vardir)
        (folder / "nhdat").unlink()  # a link to nle's own at first, which must stay as it is
        (folder / "nhdat").write_bytes(_library())
        if des_file:
            (folder / "mylevel.lev").write_bytes(_compiled(des_file))

    def _sample_level(self) -> tuple[Rooms, bool]:
        level = _sample_level(self.rules, jax.random.key(int(self.np_random.integers(2**31))))
        return level.layout, bool(level.aleatoric.apple_is_right)

    def _check_abort(self, observation: tuple) -> bool:
        return False  # asked before anything else, so that fruit eaten at the limit would pay nothing

    def _is_episode_end(self, observation: tuple) -> Any:
        if self._eaten:
            return self.StepStatus.TASK_SUCCESSFUL
        return self.StepStatus.ABORTED if self._steps >= self._max_episode_steps else self.StepStatus.RUNNING

    def _reward_fn(self, *_: Any) -> float:
        return self._pays[self._eaten] if self._eaten and self._eaten == self._right else 0.0

    def _perform_known_steps(self, observation: tuple, done: bool, exceptions: bool = True) -> tuple[tuple, bool]:
        self._before_pages = self._copied(observation)
        return super()._perform_known_steps(observation, done, exceptions)

    def _quit_game(self, observation: tuple, done: bool) -> None:
        """Leave the game as it is until the next reset: quitting would wipe the last observation."""

    def _get_observation(self, observation: tuple) -> dict[str, np.ndarray]:
        if np.any(observation[self._blstats_index]):
            return self._copied(observation)
        # After a death all is wiped. What was seen last may be from before it, if there was more than a page to read.
        self._before_pages["blstats"][NLE_BL_HP] = 0
        return self._before_pages

    def _copied(self, observation: tuple) -> dict[str, np.ndarray]:
        # The arrays are views of buffers that the game writes its next frame to.
        return {
            "glyphs": observation[self._glyph_index].copy(),
            "blstats": observation[self._blstats_index].copy(),
        }


def des_file(rooms: Rooms) -> str:
    """The level in the language of NetHack's level compiler. Which fruit is right is no part of it."""
    (top, left), (height, width) = ORIGIN, GRID
    kind = np.asarray(_terrain_of(rooms).kind)[top : top + height, left : left + width]
    # NetHack would centre a smaller map, so that cells lay elsewhere than ours: the whole grid is printed.
    rows = ["".join(_SYMBOLS[Kind(cell)] for cell in row) for row in kind]
    start, apple, banana = map(_place, (rooms.start, rooms.apple, rooms.banana))
    x, y = start
    lines = [
        "MAZE: \"mylevel\", ' '",
        "FLAGS:hardfloor",
        "INIT_MAP: solidfill,' '",
        "GEOMETRY:center,center",
        "MAP",
        *rows,
        "ENDMAP",
        f'REGION:(0,0,{width - 1},{height - 1}),lit,"ordinary"',
        f"BRANCH:({x},{y},{x},{y}),({x + 1},{y + 1},{x + 1},{y + 1})",
        *(f"DOOR:locked,{_place(door)}" for door in np.asarray(rooms.doors)[: int(rooms.count) - 1]),
        "WALLIFY",
        # Without a quantity one fruit in six is a pair.
        f"OBJECT:('%',\"apple\"),{apple},uncursed,quantity:1",
        f"OBJECT:('%',\"banana\"),{banana},uncursed,quantity:1",
    ]
    return "\n".join(lines) + "\n"


_terrain_of = jit(terrain_of)
_sample_level = jit(lambda rules, key: rules.sample_level(key=key), static_argnums=0)


def _asked_for(options: dict[str, Any] | None) -> tuple[Rooms, bool] | None:
    if not options:
        return None
    if not {"rooms", "apple_is_right"} <= options.keys():
        raise SamplrError('give the real game a level: reset(options={"rooms": rooms, "apple_is_right": True})')
    return options["rooms"], bool(options["apple_is_right"])


def _place(cell: Any) -> tuple[int, int]:
    """(x, y) on the map we print."""
    y, x = (np.asarray(cell) - ORIGIN).tolist()
    return x, y


@lru_cache(maxsize=4096)
def _compiled(des_file: str) -> bytes:
    """The level as the game reads it. Compiling takes as long as some fifty steps, so that the last ones are kept."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "mylevel.des").write_text(des_file)
        subprocess.run([f"{HACKDIR}/lev_comp", "mylevel.des"], cwd=folder, check=True)
        return Path(folder, "mylevel.lev").read_bytes()


@lru_cache
def _library() -> bytes:
    """MiniHack's data files in one. The level is not among them, so that the game looks for it in its own folder."""
    names = sorted(path.name for path in Path(LIB_DIR).iterdir())
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([f"{HACKDIR}/dlb", "cf", f"{folder}/nhdat", *names], cwd=LIB_DIR, check=True)
        return Path(folder, "nhdat").read_bytes()
