"""Rollouts and learning algorithms written down by hand."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from samplr.rollout import Rollout
from samplr.student.ppo import PPO


def ppo_of(**changes: Any) -> PPO:
    """A plain PPO: one epoch, one minibatch, nothing normalised, nothing clipped but the ratio, no bonus."""
    numbers = {
        "learning_rate": 1e-2,
        "discount": 0.5,
        "gae_lambda": 0.5,
        "clip": 0.2,
        "value_coefficient": 1.0,
        "entropy_coefficient": 0.0,
        "max_gradient_norm": 1e9,
        "adam_epsilon": 1e-5,
    }
    switches = {
        "epochs": 1,
        "minibatches": 1,
        "clip_values": False,
        "normalise_returns": False,
        "normalise_advantages": False,
        "matched_trace": False,
    }
    unknown = changes.keys() - numbers.keys() - switches.keys()
    assert not unknown, unknown
    return PPO(
        **{name: jnp.float32(changes.get(name, value)) for name, value in numbers.items()},
        **{name: changes.get(name, value) for name, value in switches.items()},
    )


def rollout_of(
    *,
    primed_reward: Sequence[Any],
    value: Sequence[float],
    primed_value: Sequence[Any],
    reward: Sequence[float] | None = None,
    primed_terminated: Sequence[Any] | None = None,
    primed_weight: Sequence[Any] | None = None,
    terminated: Sequence[bool] | None = None,
    truncated: Sequence[bool] | None = None,
    matched: Sequence[float] | None = None,
) -> Rollout:
    """What one worker met, step by step; primed quantities are one number each, or a list of M."""
    steps = len(value)

    def of_worker(values: Sequence[Any] | None, dtype: Any, default: float = 0) -> Array:
        given = jnp.full(steps, default) if values is None else jnp.asarray(values)
        return given.astype(dtype)[:, None]

    versions = of_worker(primed_reward, jnp.float32).reshape(steps, 1, -1)

    def of_versions(values: Sequence[Any] | None, dtype: Any, default: float = 0) -> Array:
        given = jnp.full(versions.shape, default) if values is None else jnp.asarray(values)
        return given.astype(dtype).reshape(versions.shape)

    zeros = jnp.zeros((steps, 1))
    return Rollout(
        observation=zeros[..., None],
        action=zeros[..., None].astype(jnp.int32),
        log_prob=zeros,
        value=of_worker(value, jnp.float32),
        start=of_worker([True] + [False] * (steps - 1), bool),
        reward=of_worker(reward, jnp.float32),
        terminated=of_worker(terminated, bool),
        truncated=of_worker(truncated, bool),
        primed_reward=versions,
        primed_terminated=of_versions(primed_terminated, bool),
        primed_value=of_versions(primed_value, jnp.float32),
        primed_weight=of_versions(primed_weight, jnp.float32, default=1),
        matched=of_worker(matched, jnp.float32, default=1),
        episode_return=zeros,
        metrics={},
        real_summaries={},
        met_summaries={},
    )
