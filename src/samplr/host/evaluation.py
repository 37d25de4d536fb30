"""Evaluation where steps are taken on the host: the same levels, the same keys, and the same figures."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from samplr import evaluation
from samplr.compiling import jit
from samplr.envs.api import Level
from samplr.envs.gymnasium import GymnasiumEnvironment
from samplr.host.crew import Order, Start
from samplr.host.pool import SimulatorPool
from samplr.student.networks import ActorCritic, Memory

SIMULATORS = 16
"""How many episodes are played side by side."""

Figures = dict[str, Float[np.ndarray, " episodes"]]


class HostPlayer:
    """Lets students play levels to their end.

    **Arguments:**

    - `episodes`: how many levels there will be at a time.
    - `deterministic`: take the most likely action instead of sampling.
    - `processes`, `patience`: as for `SimulatorPool`.
    """

    def __init__(
        self, env: GymnasiumEnvironment, *, episodes: int, deterministic: bool, processes: int, patience: float
    ) -> None:
        self._simulators = min(SIMULATORS, episodes)
        self._pool = SimulatorPool(env, self._simulators, twins=False, processes=processes, patience=patience)
        self._act = jit(jax.vmap(functools.partial(_act, deterministic=deterministic), in_axes=(None, 0, 0, 0, None)))

    def play(self, networks: ActorCritic, levels: Level, keys: PRNGKeyArray) -> dict[str, np.ndarray]:
        """Every run plays every level; arrays of run × episode."""
        runs, episodes, rows = jax.tree.leaves(networks)[0].shape[0], keys.shape[0], []
        for run in range(runs):
            network = jax.tree.map(lambda leaf, i=run: leaf[i], networks)
            batches = []
            for first in range(0, episodes, self._simulators):
                # The last batch is filled up with episodes from the beginning, which are played for nothing.
                chosen = np.arange(first, first + self._simulators) % episodes
                part = jax.tree.map(lambda leaf, i=chosen: leaf[i], levels)
                batches.append(self._play_batch(network, part, keys[chosen]))
            rows.append({name: np.concatenate([batch[name] for batch in batches])[:episodes] for name in batches[0]})
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def close(self) -> None:
        """End the simulators' processes."""
        self._pool.close()

    def _play_batch(self, network: ActorCritic, levels: Level, keys: PRNGKeyArray) -> Figures:
        reset_keys, steps_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        seeds = jax.vmap(jax.random.bits)(reset_keys)
        observation = self._pool.begin(Start(*jax.device_get((levels, seeds)))).observation
        memory = jax.vmap(lambda _: network.initial_memory())(jnp.arange(self._simulators))
        going = np.ones(self._simulators, bool)
        total = length = np.zeros(self._simulators, np.float32)
        while going.any() and length.max() < evaluation.LONGEST_EPISODE:
            action, memory = self._act(network, observation, memory, steps_keys, int(length.max()))
            real = self._pool.turn(Order(np.asarray(action), None, None)).real
            observation = real.observation
            total, length = total + going * real.reward, length + going
            going = going & ~real.done
        return {"return": total, "length": length, **jax.tree.map(np.asarray, real.metrics)}


def _act(
    network: ActorCritic, observation: PyTree, memory: Memory, key: PRNGKeyArray, time: Array, *, deterministic: bool
) -> tuple[Array, Memory]:
    action_key, _ = jax.random.split(jax.random.fold_in(key, time))
    policy, _, memory = network(observation, memory)
    raw = policy.most_likely() if deterministic else policy.sample(key=action_key)
    action = network.action_space.decode(raw)
    return action, network.remember(memory, action)
