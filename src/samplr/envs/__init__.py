"""The worlds, and how a name on the command line becomes one."""

import importlib
import inspect
import os
import sys

from samplr.envs.api import Environment
from samplr.errors import SamplrError, UnknownNameError, in_one_line

ENVIRONMENTS = {
    "icy_road": "samplr.envs.icy_road:IcyRoad",
    "black_ice": "samplr.envs.black_ice:BlackIce",
    "black_ice_sketch": "samplr.envs.black_ice:SketchedBlackIce",
    "fruit_choice": "samplr.envs.fruit_choice:FruitChoice",
}
"""The worlds that come with samplr: name and import path."""


def environment_class(name: str) -> type[Environment]:
    """The class of an environment.

    **Arguments:**

    - `name`: one of `ENVIRONMENTS`, or the import path `my_package:MyEnv` of a user's own.
    """
    path = ENVIRONMENTS.get(name, name)
    if ":" not in path:
        raise UnknownNameError("environment", name, [*ENVIRONMENTS, "my_package:MyEnv"])
    module_name, _, attribute = path.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        # As `python -m` does: a module in the current folder is found.
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # whatever a user's module raises
        raise SamplrError(f"environment '{name}' cannot be imported: {in_one_line(error)}") from error
    if not (inspect.isclass(found) and issubclass(found, Environment)):
        raise SamplrError(f"environment '{name}' is not a subclass of samplr.envs.api.Environment")
    return found


def make_environment(name: str) -> Environment:
    """An environment with its default settings."""
    found = environment_class(name)
    try:
        return found()
    except TypeError as error:
        raise SamplrError(
            f"environment '{name}' cannot be made: {in_one_line(error)}; every field needs a default"
        ) from error


def environment_name(environment: type[Environment]) -> str:
    """The name by which `environment_class` finds a class again."""
    path = f"{environment.__module__}:{environment.__qualname__}"
    for name, known in ENVIRONMENTS.items():
        if environment is environment_class(known):
            return name
    return path
