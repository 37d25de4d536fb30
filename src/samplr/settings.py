"""Settings as `--set name=value` gives them: fields of a configuration by their dotted names."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from samplr.config import Config, with_changes
from samplr.envs.api import Environment
from samplr.errors import SamplrError


def parse_settings(words: Sequence[str]) -> dict[str, Any]:
    """What `--set name=value …` says; a value is JSON, or else a word."""
    settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise SamplrError(f"--set takes name=value, as student.learning_rate=3e-4, not '{word}'")
        name = name.replace("-", "_")
        if name in settings:
            raise SamplrError(f"--set has {name} twice")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            # As Python writes them, and tables show them.
            settings[name] = {"True": True, "False": False}.get(value, value)
    return settings


def changed_world(config: Config, settings: Mapping[str, Any]) -> Environment:
    """The world of a configuration with some of its settings changed, for students who were trained without.

    **Arguments:**

    - `settings`: as `parse_settings` gives them. Students must be able to see and act as they are used to.
    """
    for name in settings:
        if not name.startswith("env."):
            raise SamplrError(f"--set {name}: a test can change the world only, as env.alpha=2")
    env: Environment = with_changes(config, settings).env
    for name, value in settings.items():
        alone = with_changes(config, {name: value}).env
        if alone != config.env and alone.for_evaluation() == config.env.for_evaluation():
            raise SamplrError(f"--set {name}: evaluation sets this itself, for every student")
    if (env.observation_space, env.action_space) != (config.env.observation_space, config.env.action_space):
        names = " and ".join(settings)
        raise SamplrError(f"--set {names}: students that were trained without it do not see or act in such a way")
    return env
