"""What a curriculum ended on: how icy the levels it presents are, and what its student finds on them as it drives.

On a level that a teacher chose, the tiles ahead are icier or drier than P̄ has them given the tiles behind; a fictitious
transition redraws them from the posterior. This exam counts both, by how many tiles were revealed before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from samplr.compiling import jit
from samplr.config import Config
from samplr.envs.api import Level
from samplr.envs.black_ice import BlackIce
from samplr.reproduce.records import Row
from samplr.reproduce.studies import Examiner
from samplr.run import load
from samplr.student.networks import ActorCritic
from samplr.training import build_grounding, build_teacher

ICE = (0.0, 0.01, 0.02, 0.04, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5)
"""Where the bins of a level's share of icy tiles begin."""

REVEALED = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Where the bins of the number of revealed tiles begin."""


@dataclass(frozen=True)
class CurriculumExam:
    """Let the last students drive on levels as their teachers present them in the end."""

    rollouts: int = 16
    """How many batches of levels each teacher presents."""
    name: str = "curriculum"
    at: Literal["last"] = "last"

    def parts(self, config: Config) -> int:
        """All in one."""
        return 1

    def prepare(self, config: Config, run: Path) -> Examiner:
        """Draw the levels from what the teachers remember, and compile the drive."""
        teachers = load(run).teacher
        seeds = config.first_seed + jnp.arange(config.seeds)
        keys = jax.vmap(lambda seed: jax.random.split(jax.random.key(seed), self.rollouts))(seeds)

        def count(network: ActorCritic, remembered: Any, keys: PRNGKeyArray) -> dict[str, Array]:
            return _counted(config, network, remembered, keys)

        counted = jit(jax.vmap(count), runs_once=True)

        def examine(networks: ActorCritic, tick: Callable[[], None]) -> list[Row]:
            found = {name: np.asarray(values, float) for name, values in counted(networks, teachers, keys).items()}
            tick()
            return list(_rows(found))

        return examine


def _counted(config: Config, network: ActorCritic, remembered: Any, keys: PRNGKeyArray) -> dict[str, Array]:
    """The tables of one run: a row for each bin of the levels' ice, a column for each of the revealed tiles."""
    teacher, env = build_teacher(config), config.env
    phase = teacher.phases[-1]

    def of_rollout(key: PRNGKeyArray) -> dict[str, Array]:
        level_key, drive_key = jax.random.split(key)
        levels = teacher.propose(phase, remembered, env, config.workers, key=level_key)
        drive_keys = jax.random.split(drive_key, config.workers)
        return jax.vmap(lambda level, key: _drive(config, network, level, key=key))(levels, drive_keys)

    of_levels = jax.vmap(of_rollout)(keys)
    return {name: jnp.sum(table, axis=(0, 1)) for name, table in of_levels.items()}


def _drive(config: Config, network: ActorCritic, level: Level, *, key: PRNGKeyArray) -> dict[str, Array]:
    """Drive one episode as in training, and count the tiles that are revealed on the way."""
    env = config.env
    assert isinstance(env, BlackIce)
    ice_key, reset_key, steps_key = jax.random.split(key, 3)
    world = env.build(level.layout)
    aleatoric = build_grounding(config).aleatoric(env, level, key=ice_key)
    state, observation = env.reset(world, aleatoric, key=reset_key)

    def step(carry: Any, key: PRNGKeyArray) -> Any:
        state, observation, memory, over = carry
        action_key, step_key = jax.random.split(key)
        policy, _, memory = network(observation, memory)
        before = env.evidence(state)
        action = network.action_space.decode(policy.sample(key=action_key))
        after = env.step(world, state, action, key=step_key)
        now = env.evidence(after.state)
        revealed = jnp.sum(before.revealed)
        tiles = jnp.where(over, 0, jnp.sum(now.revealed) - revealed)
        icy = jnp.where(over, 0, jnp.sum(now.values) - jnp.sum(before.values))
        expected = tiles * env.posterior.rate_given(before).mean
        told = {"tiles": tiles, "icy": icy, "fictitious": expected}
        row = _one_hot(revealed, REVEALED)
        counts = {name: row * number for name, number in told.items()}
        return (after.state, after.observation, network.remember(memory, action), over | after.done), counts

    begin = (state, observation, network.initial_memory(), jnp.array(False))
    _, counts = jax.lax.scan(step, begin, jax.random.split(steps_key, config.rollout))
    place = _one_hot(env.summaries(aleatoric)["ice"], ICE)
    tables = {name: place[:, None] * jnp.sum(of_steps, axis=0) for name, of_steps in counts.items()}
    # A level counts once, where no tile was revealed yet.
    return {**tables, "levels": place[:, None] * _one_hot(jnp.int32(0), REVEALED)}


def _one_hot(number: Float[Array, ""] | Int[Array, ""], begins: tuple[float, ...]) -> Float[Array, " bins"]:
    """1 in the bin that a number falls into."""
    bin_of = jnp.searchsorted(jnp.asarray(begins, jnp.float32), number.astype(jnp.float32), side="right") - 1
    return jax.nn.one_hot(bin_of, len(begins))


def _rows(found: dict[str, np.ndarray]) -> Any:
    runs = len(found["tiles"])
    for run in range(runs):
        for i, ice in enumerate(ICE):
            for j, revealed in enumerate(REVEALED):
                counts = {name: float(table[run, i, j]) for name, table in found.items()}
                if any(counts.values()):
                    yield {"seed": run, "ice_from": ice, "revealed_from": revealed, **counts}
