"""How much a level's score is the level's, and how much the luck of one rollout.

    python tools/score_repeatability.py results/table1/policies/samplr.npz

Levels of the ground truth are each played several times by a trained student, and scored every time as its teacher
would. The *repeatability* of a score is the share of its variance that lies between levels: 1 if playing once is
enough, 0 if the best-scored levels are merely lucky ones. The table also says how icy (or what else is hidden) the
best-scored tenth is after one rollout, which is what a curriculum presents first, and how the score goes with what the
student really earns on a level: close to 1, it is a score of how easy levels are.
"""

import argparse
from collections.abc import Callable

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
from samplr.statistics import repeatability
from samplr.student.normalisation import ReturnScale
from samplr.training import build_hyperparameters

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
    print(f"{'grounding':16} repeatability  correlation with {name}  with reward  {name} of the best-scored tenth")
    for title, grounding in GROUNDINGS.items():
        score = scorer(run, grounding)
        played = [score(levels, jax.random.key(repeat)) for repeat in range(options.repeats)]
        scores, rewards = np.moveaxis(np.array(played), 1, 0)
        correlations = [stats.spearmanr(scores.mean(axis=0), of).statistic for of in (hidden, rewards.mean(axis=0))]
        best = np.argsort(scores, axis=1)[:, -(options.levels // 10) :]
        chosen = hidden[best].mean(axis=1)
        error = chosen.std(ddof=1) / len(chosen) ** 0.5
        numbers = f"{repeatability(scores):13.2f}  {correlations[0]:20.2f}  {correlations[1]:11.2f}"
        print(f"{title:16} {numbers}  {chosen.mean():13.4f} ± {error:.4f}")


def scorer(run: Run, grounding: Grounding) -> Callable[[Level, PRNGKeyArray], Float[Array, "2 levels"]]:
    """What plays levels once and gives the positive value loss and the reward of each."""
    config, ppo = run.config, build_hyperparameters(run.config).ppo
    network = jax.tree.map(lambda leaf: leaf[0], run.networks)

    def score(levels: Level, key: PRNGKeyArray) -> Float[Array, "2 levels"]:
        rollout = collect(run.env, grounding, network, levels, config.rollout, key=key)
        advantages = ppo.advantages(rollout, _scale(rollout, config.student.discount))
        return jnp.stack([jnp.mean(jnp.maximum(advantages, 0), axis=0), jnp.sum(rollout.reward, axis=0)])

    compiled: Callable[[Level, PRNGKeyArray], Float[Array, "2 levels"]] = jit(score)
    return compiled


def _scale(rollout: Rollout, discount: float) -> ReturnScale:
    """What rewards are divided by, which a file of policies does not tell: on average, values must add up to them."""
    goes_on = jnp.where(rollout.primed_terminated, 0.0, discount) * rollout.primed_value

    def total(primed: Float[Array, "t n m"]) -> Array:
        return jnp.sum(rollout.primed_weight * primed)

    deviation = total(rollout.primed_reward) / (jnp.sum(rollout.value) - total(goes_on))
    return ReturnScale(jnp.ones(()), jnp.zeros(()), deviation**2)


if __name__ == "__main__":
    main()
