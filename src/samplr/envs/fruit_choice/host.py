"""Training in the real game: NetHack on levels of `FruitChoice`.

samplr train samplr.envs.fruit_choice.host:FruitChoiceNetHack --method naive --out DIR

A game of NetHack cannot be copied, so that it can be trained with grounding `none` and `naive`, and not with
`fictitious`. Needs `pip install "samplr[nethack]"`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from samplr.envs.api import Level
from samplr.envs.fruit_choice.nethack import RealFruitChoice
from samplr.envs.fruit_choice.world import FruitChoice
from samplr.envs.gymnasium import GymnasiumEnvironment
from samplr.errors import SamplrError


class FruitChoiceSimulator(RealFruitChoice):
    """The real game, which takes levels as samplr has them, and tells how an episode goes."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Begin on `options["level"]`, a level of `FruitChoice`."""
        if not options or "level" not in options:
            raise SamplrError('give the real game a level: reset(options={"level": level})')
        level: Level = options["level"]
        self._rooms = float(level.layout.count)
        return super().reset(
            seed=seed, options={"rooms": level.layout, "apple_is_right": level.aleatoric.apple_is_right}
        )

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        """Press a key."""
        observation, reward, terminated, truncated, _ = super().step(action)
        solved = bool(self._eaten)
        metrics = {
            "solved": solved,
            "ate_apple": self._eaten == "apple",
            "ate_banana": self._eaten == "banana",
            "died": terminated and not solved,
            "rooms": self._rooms,
            "rooms_solved": self._rooms * solved,
        }
        return observation, reward, terminated, truncated, {"metrics": metrics}


class FruitChoiceNetHack(GymnasiumEnvironment, FruitChoice):  # type: ignore[misc]  # the spaces are the game's
    """Choose between two fruits in NetHack itself."""

    defaults: ClassVar[Mapping[str, Any]] = {**FruitChoice.defaults, "log_every": 1}

    def simulator(self) -> FruitChoiceSimulator:
        """The real game, under the rules of this world."""
        return FruitChoiceSimulator(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})
