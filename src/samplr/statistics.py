"""Statistics over seeds: what a difference between methods is worth, and what could have been seen at all.

A *score* is one number for one run: the mean of its episodes. Runs are independent; the tracks that one run drives are
not, because one student drives them all. `samplr.evaluation.Estimate` has means and standard errors.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy import optimize, stats

Alternative = Literal["two-sided", "less", "greater"]
Scores = Float[np.ndarray, "runs tasks"]

SIGNIFICANCE = 0.05
CONFIDENCE = 0.95
WANTED_POWER = 0.8


@dataclass(frozen=True)
class Interval:
    """An estimate with a 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """What Welch's t-test says of two samples, a and b."""

    difference: Interval
    """Mean of a − mean of b; its interval is two-sided whatever the alternative."""
    p_value: float
    effect_size: float
    """Cohen's d."""
    power: float
    """The chance that this test finds a difference as large as the one seen, if it is real."""
    detectable: float
    """The smallest difference that this test would find in 80 % of cases."""


@dataclass(frozen=True)
class Spread:
    """How uncertain a difference of two means is: its standard error, and Welch's degrees of freedom."""

    standard_error: float
    freedom: float

    @classmethod
    def of(cls, a: np.ndarray, b: np.ndarray) -> "Spread":
        """s² = s_a²/n_a + s_b²/n_b, and ν = s⁴ / ((s_a²/n_a)²/(n_a−1) + (s_b²/n_b)²/(n_b−1))."""
        parts = [np.var(x, ddof=1) / len(x) for x in (a, b)]
        square = sum(parts)
        if square == 0:
            return cls(0.0, len(a) + len(b) - 2.0)
        freedom = square**2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, (a, b), strict=True))
        return cls(math.sqrt(square), float(freedom))


def welch(a: Any, b: Any, alternative: Alternative = "two-sided") -> Comparison:
    """Welch's t-test of two samples whose variances may differ.

    **Arguments:**

    - `a`, `b`: a score for each run, at least two of each.
    - `alternative`: what is to be shown of a's mean: that it is another, `less`, or `greater` than b's.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    spread, difference = Spread.of(a, b), float(a.mean() - b.mean())
    half = stats.t.ppf((1 + CONFIDENCE) / 2, spread.freedom) * spread.standard_error
    return Comparison(
        difference=Interval(difference, difference - half, difference + half),
        p_value=_p_value(difference, spread, alternative),
        effect_size=cohens_d(a, b),
        power=power(difference, spread, alternative),
        detectable=detectable_difference(spread, alternative),
    )


def cohens_d(a: np.ndarray, b: np.ndarray) -> float:
    """d = (mean a − mean b) / s, with s² the pooled variance; infinite where nothing varies but the means differ."""
    freedom = len(a) + len(b) - 2
    pooled = math.sqrt(((len(a) - 1) * np.var(a, ddof=1) + (len(b) - 1) * np.var(b, ddof=1)) / freedom)
    return _ratio(float(np.mean(a) - np.mean(b)), pooled)


def power(difference: float, spread: Spread, alternative: Alternative = "two-sided") -> float:
    """The probability that Welch's test at the 5 % level finds a true difference.

    The statistic then follows a non-central t with ν degrees of freedom and centre difference / s.
    """
    # Long before 1,000 it is certain what is found; from 10¹² on SciPy has no answer.
    centre = float(np.clip(_ratio(difference, spread.standard_error), -1000.0, 1000.0))
    two_sided = alternative == "two-sided"
    critical = stats.t.isf(SIGNIFICANCE / (2 if two_sided else 1), spread.freedom)
    above = stats.nct.sf(critical, spread.freedom, centre) if alternative != "less" else 0.0
    # By symmetry; SciPy's non-central t is accurate in its upper tail.
    below = stats.nct.sf(critical, spread.freedom, -centre) if alternative != "greater" else 0.0
    return float(above + below)


def detectable_difference(spread: Spread, alternative: Alternative = "two-sided") -> float:
    """The smallest difference, without its sign, that the test would find with a power of 80 %."""
    side: Alternative = "two-sided" if alternative == "two-sided" else "greater"
    if spread.standard_error == 0:
        return 0.0
    unit = Spread(1.0, spread.freedom)
    found = optimize.brentq(lambda centre: power(centre, unit, side) - WANTED_POWER, 0.0, 100.0)
    return float(found) * spread.standard_error


def _p_value(difference: float, spread: Spread, alternative: Alternative) -> float:
    t = _ratio(difference, spread.standard_error)
    if alternative == "two-sided":
        return float(2 * stats.t.sf(abs(t), spread.freedom))
    return float(stats.t.sf(t if alternative == "greater" else -t, spread.freedom))


def _ratio(difference: float, scale: float) -> float:
    """`difference / scale`, where nothing may vary at all."""
    if scale > 0:
        return difference / scale
    return math.copysign(math.inf, difference) if difference else 0.0


def cvar(values: Any, share: float = 0.1) -> float:
    """The mean of the worst `share` of the values; one that lies across the border counts in part."""
    worst_first = np.sort(np.asarray(values, float))
    wanted = share * len(worst_first)
    weights = np.clip(wanted - np.arange(len(worst_first)), 0, 1)
    return float(weights @ worst_first / weights.sum())


def interquartile_mean(scores: Any) -> float:
    """The mean of the middle half of all scores."""
    return float(stats.trim_mean(np.asarray(scores, float).ravel(), 0.25))


def interquartile_mean_interval(scores: Scores, *, shared_runs: bool, seed: int = 0) -> Interval:
    """The interquartile mean over runs and tasks, with a bootstrap interval stratified by task.

    Agarwal et al. (2021) draw runs anew for every task, because there every task has runs of its own. Where one run
    has a score in every task, that would take its luck for independent and give intervals that are far too narrow: with
    `shared_runs` a drawn run brings its scores in all tasks.
    """
    (drawn,) = _resamples([scores], shared_runs=shared_runs, seed=seed)
    return _interval(interquartile_mean(scores), stats.trim_mean(drawn.reshape(RESAMPLES, -1), 0.25, axis=1))


def probability_of_improvement(a: Scores, b: Scores) -> float:
    """P(X > Y) + ½ P(X = Y) for a run X of a and Y of b, averaged over tasks: Mann and Whitney's U / (n_a n_b)."""
    return float(_improvement(np.asarray(a, float), np.asarray(b, float)))


def _improvement(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    comparisons = np.sign(a[..., :, None, :] - b[..., None, :, :])
    return (comparisons.mean(axis=(-3, -2, -1)) + 1) / 2


def probability_of_improvement_interval(a: Scores, b: Scores, *, shared_runs: bool, seed: int = 0) -> Interval:
    """The same with a bootstrap interval; see `interquartile_mean_interval`."""
    return _interval(
        probability_of_improvement(a, b), _improvement(*_resamples([a, b], shared_runs=shared_runs, seed=seed))
    )


RESAMPLES = 2000


def _resamples(samples: list[Scores], *, shared_runs: bool, seed: int) -> list[Float[np.ndarray, "n runs tasks"]]:
    """Each sample many times over, its runs drawn with replacement."""
    rng = np.random.default_rng(seed)

    def drawn(scores: Scores) -> np.ndarray:
        runs, tasks = scores.shape
        chosen = rng.integers(runs, size=(RESAMPLES, runs, 1 if shared_runs else tasks))
        return scores[chosen, np.arange(tasks)]

    return [drawn(np.asarray(scores, float)) for scores in samples]


def _interval(value: float, draws: np.ndarray) -> Interval:
    """The percentile interval of a statistic."""
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(value, float(low), float(high))


def repeatability(scores: Float[np.ndarray, "repeats things"]) -> float:
    """The share of a score's variance that lies between the things scored, and not between repeats of one of them.

    This is the intraclass correlation of a one-way analysis of variance; it is below 0 where chance has it so.
    """
    repeats = len(scores)
    between = repeats * scores.mean(axis=0).var(ddof=1)
    within = scores.var(axis=0, ddof=1).mean()
    return float((between - within) / (between + (repeats - 1) * within))
