"""Scores: estimates of what a level can still teach. Each gives one finite number for each level."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from samplr.envs.api import Environment
from samplr.errors import UnknownNameError
from samplr.teachers.api import Outcome

Score = Callable[[Outcome, Float[Array, " n"]], Float[Array, " n"]]
"""Takes an outcome and the best return ever seen on each level."""


def positive_value_loss(outcome: Outcome, best_return: Float[Array, " n"]) -> Float[Array, " n"]:
    """S = mean over steps of max(Aₜ, 0)."""
    return jnp.mean(jnp.maximum(outcome.advantages, 0), axis=0)


def l1_value_loss(outcome: Outcome, best_return: Float[Array, " n"]) -> Float[Array, " n"]:
    """S = mean over steps of |Aₜ|."""
    return jnp.mean(jnp.abs(outcome.advantages), axis=0)


def max_mc(outcome: Outcome, best_return: Float[Array, " n"]) -> Float[Array, " n"]:
    """S = mean over steps of G_max − V(oₜ), with G_max the highest return ever seen on the level."""
    return best_return / outcome.return_scale - jnp.mean(outcome.values, axis=0)


HINDSIGHT_SCORES = {"max_mc"}
"""Scores that judge by what happened to happen, and so are refused where transitions are fictitious."""

SCORES: Mapping[str, Score] = {
    "positive_value_loss": positive_value_loss,
    "l1_value_loss": l1_value_loss,
    "max_mc": max_mc,
}


def score_named(name: str, env: Environment) -> Score:
    """A score by name: one of `SCORES`, or an oracle of the environment's own."""
    oracles = env.oracle_scores()
    if name in SCORES:
        return SCORES[name]
    if name not in oracles:
        raise UnknownNameError("score", name, [*SCORES, *oracles])
    oracle = oracles[name]

    def exact(outcome: Outcome, best_return: Float[Array, " n"]) -> Float[Array, " n"]:
        return jax.vmap(lambda level: oracle(outcome.network, level))(outcome.levels)

    return exact
