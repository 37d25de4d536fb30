"""How much a level's score is the level's, and how much the luck of one rollout.

    python tools/score_repeatability.py results/table1/policies/samplr.npz

Levels of the ground truth are each played several times by a trained student, and scored every time as a teacher would.
The *repeatability* of a score is the share of its variance that lies between levels: 1 if playing once is enough, 0 if
the best-scored levels are merely lucky ones. The table also says how icy the best-scored tenth is after one rollout,
which is what a curriculum presents first.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import stats

import samplr
from samplr.compiling import jit
from samplr.envs.api import Level
from samplr.grounding import Fictitious, Grounding, Naive, Ungrounded
from samplr.rollout import Rollout, collect
from samplr.run import Run
from samplr.student.advantages import generalized_advantages

GROUNDINGS: dict[str, Grounding] = {
    "none": Ungrounded(),
    "naive": Naive(),
    "fictitious": Fictitious(),
    "fictitious, M=4": Fictitious(4),
}


def main() -> None:
    """Print a row for each grounding."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("policies", help="a run folder or a file of policies; its first student plays")
    arguments.add_argument("--levels", type=int, default=96)
    arguments.add_argument("--repeats", type=int, default=6)
    options = arguments.parse_args()
    run = samplr.load(options.policies)
    keys = jax.random.split(jax.random.key(0), options.levels)
    levels = jit(jax.vmap(lambda key: run.env.sample_level(key=key)), runs_once=True)(keys)
    (name, summary), *_ = jax.vmap(run.env.summaries)(levels.aleatoric).items()
    hidden = np.asarray(summary)
    print(f"{options.levels} levels × {options.repeats}; mean {name} {hidden.mean():.4f}")
    print(f"{'grounding':16} repeatability  correlation with {name}  {name} of the best-scored tenth")
    for title, grounding in GROUNDINGS.items():
        scores = score(run, grounding, levels, options.repeats)
        correlation = stats.spearmanr(scores.mean(axis=0), hidden).statistic
        best = np.argsort(scores, axis=1)[:, -(options.levels // 10) :]
        chosen = hidden[best].mean(axis=1)
        error = chosen.std(ddof=1) / len(chosen) ** 0.5
        print(f"{title:16} {repeatability(scores):13.2f}  {correlation:20.2f}  {chosen.mean():13.4f} ± {error:.4f}")


def score(run: Run, grounding: Grounding, levels: Level, repeats: int) -> Float[np.ndarray, "repeats levels"]:
    """The positive value loss of every level in every repeat."""
    config, network = run.config, jax.tree.map(lambda leaf: leaf[0], run.networks)

    def play(levels: Level, key: PRNGKeyArray) -> Rollout:
        return collect(run.env, grounding, network, levels, config.rollout, key=key)

    compiled, count, found = jit(play), levels.origin.shape[0], []
    for repeat in range(repeats):
        parts = []
        for first in range(0, count, config.workers):
            part = jax.tree.map(lambda leaf, first=first: leaf[first : first + config.workers], levels)
            rollout = compiled(part, jax.random.fold_in(jax.random.key(repeat), first))
            parts.append(positive_value_loss(rollout, config.student.discount, config.student.gae_lambda))
        found.append(np.concatenate(parts))
    return np.asarray(found)


def positive_value_loss(rollout: Rollout, discount: float, gae_lambda: float) -> Float[Array, " n"]:
    """As `samplr.teachers.scores` has it, for a student whose scale of rewards is not known any more.

    It is found from the values: on average they tell apart what the rewards add up to.
    """
    goes_on = jnp.where(rollout.primed_terminated, 0.0, discount) * rollout.primed_value
    expected = rollout.value - jnp.sum(rollout.primed_weight * goes_on, axis=-1)
    reward = jnp.sum(rollout.primed_weight * rollout.primed_reward, axis=-1)
    delta = reward * jnp.sum(expected) / jnp.sum(reward) - expected

    def of_worker(delta: Array, end: Array) -> Array:
        return generalized_advantages(delta, end, jnp.ones_like(delta), discount, gae_lambda)

    advantages = jax.vmap(of_worker, in_axes=1, out_axes=1)(delta, rollout.end)
    return jnp.mean(jnp.maximum(advantages, 0), axis=0)


def repeatability(scores: Float[np.ndarray, "repeats levels"]) -> float:
    """The intraclass correlation, from a one-way analysis of variance."""
    repeats = len(scores)
    between = repeats * scores.mean(axis=0).var(ddof=1)
    within = scores.var(axis=0, ddof=1).mean()
    return float((between - within) / (between + (repeats - 1) * within))


if __name__ == "__main__":
    main()
