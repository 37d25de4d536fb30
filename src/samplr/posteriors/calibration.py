"""How good a posterior is: do things that it calls 30 % likely happen 30 % of the time, and how far is it from exact?

A posterior is asked, at every step of episodes on levels of the ground truth, how likely each hidden number of θ′ is to
lie below each border between the bins. Its answers are compared with what θ′ was, and with the environment's exact
posterior where it has one.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from samplr.compiling import jit
from samplr.envs.api import Evidence, GroundedEnvironment, Level
from samplr.errors import SamplrError
from samplr.grounding import require_grounded
from samplr.posteriors import Belief, BetaBernoulli, Enumerated, Posterior
from samplr.posteriors.beliefs import exact_posterior
from samplr.posteriors.learned import Bins, LearnedPosterior
from samplr.run import Run
from samplr.student.networks import ActorCritic
from samplr.training import build_beliefs

CURVE = 10
"""Points of the reliability curve."""

BATCH = 256
"""Episodes that are played side by side."""


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What a posterior's probabilities are worth."""

    predicted: Float[np.ndarray, " points"]
    """The reliability curve: the mean of the probabilities in each tenth of [0, 1] …"""
    observed: Float[np.ndarray, " points"]
    """… how often what they were given to came true …"""
    share: Float[np.ndarray, " points"]
    """… and the share of all probabilities that lay there."""
    crps: float
    """The continuous ranked probability score: the mean square of probability minus outcome. Lower is better."""
    kl: float
    """Kullback and Leibler's divergence of the posterior from the exact one, in nats per step; NaN without one."""

    @property
    def error(self) -> float:
        """The expected calibration error: the mean distance of the curve from the diagonal."""
        gap = np.abs(self.predicted - self.observed)
        return float(np.sum(self.share * np.where(self.share > 0, gap, 0.0)))

    @classmethod
    def of(cls, answers: "Answers", bins: Bins) -> "Calibration":
        """Judge what a posterior said along some episodes."""
        # A border that no bin lies beyond is none: numbers of few values have fewer than others.
        asked = answers.live[..., None, None] & np.isfinite(np.asarray(bins.edges))
        below, truth = np.clip(np.asarray(answers.below, np.float64)[asked], 0, 1), answers.truth[asked]
        tenth = np.minimum((below * CURVE).astype(int), CURVE - 1)
        count = np.bincount(tenth, minlength=CURVE)
        with np.errstate(invalid="ignore"):
            predicted = np.bincount(tenth, below, CURVE) / count
            observed = np.bincount(tenth, truth, CURVE) / count
        return cls(
            predicted,
            observed,
            count / count.sum(),
            float(np.mean((below - truth) ** 2)),
            float(np.mean(answers.kl[answers.live])),
        )


def calibration(run: Run, *, episodes: int = 1024, seed: int = 0) -> list[Calibration]:
    """Judge the posterior that each run of a batch was grounded with, along the histories that its student makes.

    **Arguments:**

    - `run`: a batch trained with grounding `fictitious`.
    - `episodes`: how many levels of the ground truth are played.
    - `seed`: which levels.

    **Returns:** one judgement for each run of the batch.
    """
    config, env = run.config, require_grounded(run.env)
    beliefs, bins, exact = build_beliefs(config), Bins.of(env, config.belief.bins), exact_posterior(env)

    def one(state: PyTree, student: ActorCritic) -> Answers:
        posterior = env.posterior if beliefs is None else beliefs.posterior(state)
        return ask(env, posterior, exact, bins, student, steps=config.rollout, episodes=episodes, seed=seed)

    answers = jax.tree.map(np.asarray, jit(jax.vmap(one))(run.beliefs, run.networks))
    return [Calibration.of(jax.tree.map(lambda leaf, i=i: leaf[i], answers), bins) for i in range(config.seeds)]


class Answers(eqx.Module):
    """What a posterior said along an episode; leaves lead with time, and those of many episodes with the episode."""

    below: Float[Array, "t k edges"]
    """The probability that each number lies below each border."""
    truth: Bool[Array, "t k edges"]
    kl: Float[Array, " t"]
    live: Bool[Array, " t"]
    """Whether the episode was still going on."""


def ask(
    env: GroundedEnvironment,
    posterior: Posterior,
    exact: Posterior | None,
    bins: Bins,
    student: ActorCritic,
    *,
    steps: int,
    episodes: int,
    seed: int,
) -> Answers:
    """Ask a posterior about levels of the ground truth, along the histories that a student makes on them.

    **Arguments:**

    - `exact`: what it should say, where that is known.
    - `bins`: the bins whose borders it is asked about.
    - `steps`: after how many steps an episode is no longer followed.
    - `seed`: which levels.
    """

    def one(key: PRNGKeyArray) -> Answers:
        level_key, play_key = jax.random.split(key)
        level = env.sample_level(key=level_key)
        return _play(env, posterior, exact, bins, student, level, steps, key=play_key)

    answers: Answers = jax.lax.map(one, jax.random.split(jax.random.key(seed), episodes), batch_size=BATCH)
    return answers


def _play(
    env: GroundedEnvironment,
    posterior: Posterior,
    exact: Posterior | None,
    bins: Bins,
    student: ActorCritic,
    level: Level,
    steps: int,
    *,
    key: PRNGKeyArray,
) -> Answers:
    world, index = env.build(level.layout), bins.index(env.hidden(level.aleatoric))
    truth = index[:, None] <= jnp.arange(bins.shape[1] - 1)

    def step(carry: Any, step_key: PRNGKeyArray) -> tuple[Any, Answers]:
        state, observation, memory, belief, live = carry
        evidence = env.evidence(state)
        masses = bin_masses(env, posterior, belief, evidence, bins, index)
        kl = jnp.asarray(jnp.nan)
        if exact is not None:
            right = bin_masses(env, exact, None, evidence, bins, index)
            kl = jnp.sum(jax.scipy.special.rel_entr(right, jnp.maximum(masses, jnp.finfo(masses.dtype).tiny)))
        answers = Answers(jnp.cumsum(masses, axis=1)[:, :-1], truth, kl, live)
        action_key, luck = jax.random.split(step_key)
        policy, _, memory = student(observation, memory)
        action = student.action_space.decode(policy.sample(key=action_key))
        after = env.step(world, state, action, key=luck)
        belief = posterior.update(belief, after.observation, action, after.done)
        memory = student.remember(memory, action)
        return (after.state, after.observation, memory, belief, live & ~after.done), answers

    reset_key, steps_key = jax.random.split(key)
    state, observation = env.reset(world, level.aleatoric, key=reset_key)
    begin = (state, observation, student.initial_memory(), posterior.init(observation), jnp.array(True))
    return jax.lax.scan(step, begin, jax.random.split(steps_key, steps))[1]


def bin_masses(
    env: GroundedEnvironment,
    posterior: Posterior,
    belief: Belief,
    evidence: Evidence,
    bins: Bins,
    index: Int[Array, " k"],
) -> Float[Array, "k bins"]:
    """The probability of each bin of each hidden number, given that those before it lie in the bins `index`."""
    numbers, size = bins.shape
    if isinstance(posterior, LearnedPosterior):
        network = posterior.network
        return jnp.exp(jnp.stack([network.log_probs(bins, belief, i, index[:i]) for i in range(numbers)]))
    if isinstance(posterior, BetaBernoulli) and numbers == 1:
        below = posterior.rate_given(evidence).cdf(bins.edges[0])
        return jnp.diff(below, prepend=0.0, append=1.0)[None]
    if isinstance(posterior, Enumerated):
        lies_in = jax.vmap(lambda candidate: bins.index(env.hidden(candidate)))(posterior.candidates)
        probability, masses = jnp.exp(posterior.log_posterior(evidence)), []
        for number in range(numbers):
            mass = probability @ jax.nn.one_hot(lies_in[:, number], size)
            masses.append(mass / jnp.sum(mass))
            probability = jnp.where(lies_in[:, number] == index[number], probability, 0.0)
        return jnp.stack(masses)
    raise SamplrError(f"{type(posterior).__name__} does not say how likely the hidden numbers of θ′ are")
