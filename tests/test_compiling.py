"""The compiler's effort, and which programs get all of it."""

from typing import Any

import jax
import pytest

from samplr.compiling import jit
from samplr.envs import make_environment
from samplr.envs.api import Environment
from samplr.envs.black_ice import BlackIce, SketchedBlackIce


@pytest.mark.parametrize(
    ("backend", "options", "level"),
    [
        ("cpu", {}, 1),
        ("cpu", {"runs_once": True}, 0),
        ("cpu", {"pictures": True}, None),
        ("cpu", {"pictures": True, "runs_once": True}, 0),
        ("gpu", {}, None),
        ("gpu", {"runs_once": True}, None),
    ],
)
def test_a_cpu_saves_effort_where_it_does_not_pay(
    backend: str, options: dict[str, bool], level: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax, "jit", lambda function, **options: given.update(options))
    jit(lambda: None, donate_argnums=0, **options)
    assert given["donate_argnums"] == 0
    assert given.get("compiler_options", {}).get("xla_backend_optimization_level") == level


@pytest.mark.parametrize(
    ("env", "pictures"),
    [
        (BlackIce(), True),
        (BlackIce(show_evidence=True), True),
        (SketchedBlackIce(), False),
        (make_environment("icy_road"), False),
    ],
)
def test_worlds_that_show_pictures(env: Environment, pictures: bool) -> None:
    assert env.shows_pictures is pictures
