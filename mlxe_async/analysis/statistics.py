"""Statistics of a study: few runs, skewed times, and failures that count.

A failed run is not a missing value. Wherever a quantity is "less is better" (episodes, seconds), a failure stands as
infinity, worse than anything: medians, intervals and tests treat it so. What cannot be known, such as the ratio of two
medians that are both infinite, is NaN.

Interquartile mean and percentile bootstrap as recommended by Agarwal et al. 2021 (Deep reinforcement learning at the
edge of the statistical precipice); the estimator of survival by Kaplan & Meier 1958; the exact bound of a share by
Clopper & Pearson 1934. All random draws come from a fixed seed, so the same outcomes give the same table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

RESAMPLES = 2000
DRAWN_AT_ONCE = 1_000_000  # values in the samples that a statistic is asked of in one go
LEVEL = 0.95
EXACT_SIGNS = 14  # pairs up to which all sign patterns are tried, beyond that a sample of them
SIGN_SAMPLES = 20_000
DIGITS = 9
FEWEST_RUNS = 6  # of fewer, no bootstrap interval of a median holds it with 95 %
_SEED = 20_260_101


def iqm(values: Sequence[float] | Doubles) -> float:
    """Mean of the middle half; where a quarter is no whole number, values on the border count in part.

    Raises:
        ValueError: there are no values.
    """
    if not len(values):
        raise ValueError("interquartile mean: expected at least one value, got none")
    return float(iqms(np.asarray(values, dtype=np.float64)))


def iqms(samples: Doubles) -> Doubles:
    """Interquartile mean of each of several samples (..., n), as (...)."""
    ordered = np.sort(samples)
    count = ordered.shape[-1]
    # Each value takes 1/count of the way from 0 to 1; what of it lies between 1/4 and 3/4 is its weight.
    edges = np.arange(count + 1) / count
    weights = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    inside = weights > 1e-12
    found: Doubles = np.sum(ordered[..., inside] * weights[inside], axis=-1) / weights[inside].sum()
    return found


def median(values: Sequence[float] | Doubles) -> float:
    """The middle value, or the mean of the two middle ones; infinity where it falls on one.

    Raises:
        ValueError: there are no values.
    """
    if not len(values):
        raise ValueError("median: expected at least one value, got none")
    return float(np.median(np.asarray(values, dtype=np.float64)))


def medians(samples: Doubles) -> Doubles:
    """Median of each of several samples (samples, n)."""
    found: Doubles = np.median(samples, axis=1)
    return found


def means(samples: Doubles) -> Doubles:
    """Mean of each of several samples (samples, n)."""
    found: Doubles = samples.mean(axis=1)
    return found


def bootstrap(
    values: Sequence[float] | Doubles,
    statistic: Callable[[Doubles], Doubles] = medians,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic of independent values (n,) or rows (n, k) that stay together.

    Args:
        values: one per run; rows where several quantities of a run, or of a pair of runs, belong together.
        statistic: of many samples at once, (samples, n) or (samples, n, k); one value each.
        level: share of resamples inside the interval.
        resamples: how often to draw n values with replacement.

    Of few values it is narrower than it says: those of five lie on one side of the median with a probability of
    2 / 2^5, so that even the interval from the least to the greatest of five holds it in 94 % of studies only.
    A resample of which the statistic is NaN may be anything: it counts as the least for one end, as the greatest for
    the other.
    """
    data = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(_SEED)
    draws = rng.integers(len(data), size=(resamples, len(data)))
    at_once = max(1, DRAWN_AT_ONCE // len(data))
    parts = [statistic(data[draws[start : start + at_once]]) for start in range(0, resamples, at_once)]
    replicates = np.concatenate(parts)
    unknown, tail = np.isnan(replicates), (1 - level) / 2
    low, high = np.where(unknown, -np.inf, replicates), np.where(unknown, np.inf, replicates)
    # Between two neighbours one of them is taken, so that infinity is fine.
    return float(np.quantile(low, tail, method="lower")), float(np.quantile(high, 1 - tail, method="higher"))


@dataclass(frozen=True)
class SurvivalCurve:
    """Share of runs that have not got there yet: 1 before the first time, then `shares[i]` from `times[i]` on.

    Args:
        times: at which at least one run got there, ascending.
        shares: of the runs not there yet, just after each.
        censored: when runs ended that never got there.
    """

    times: tuple[float, ...]
    shares: tuple[float, ...]
    censored: tuple[float, ...]

    @property
    def median(self) -> float | None:
        """The first time by which half of the runs have got there; None when that was never reached."""
        reached = (time for time, share in zip(self.times, self.shares, strict=True) if share <= 0.5 + 1e-12)
        return next(reached, None)


def kaplan_meier(times: Sequence[float], happened: Sequence[bool]) -> SurvivalCurve:
    """Product-limit estimator: at each time the share is multiplied by 1 - events / runs still under way.

    Args:
        times: when each run got there, or was given up.
        happened: which of the two. A run given up at a time was still under way for events at that time.

    Raises:
        ValueError: the two differ in length.
    """
    if len(times) != len(happened):
        raise ValueError(f"kaplan_meier: expected as many times as verdicts, got {len(times)} and {len(happened)}")
    ends, came = np.asarray(times, np.float64), np.asarray(happened, bool)
    at, events = np.unique(ends[came], return_counts=True)
    under_way = (ends >= at[:, None]).sum(1)
    shares = np.cumprod(1 - events / under_way)
    return SurvivalCurve(tuple(at.tolist()), tuple(shares.tolist()), tuple(np.sort(ends[~came]).tolist()))


def binomial_tail(successes: int, trials: int, share: float) -> float:
    """Probability of at most `successes` in independent trials, each with probability `share`."""
    if share <= 0 or successes >= trials:
        return 1.0
    if share >= 1:
        return 0.0
    logs = [
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(share)
        + (trials - k) * math.log1p(-share)
        for k in range(successes + 1)
    ]
    return min(1.0, math.fsum(map(math.exp, logs)))


def share_bound(failures: int, runs: int, level: float = LEVEL) -> float:
    """Exact one-sided upper bound (Clopper-Pearson) of the share of failures: with 0 of 100 it is 3.0 %.

    With a share above it, so few failures would have been seen with a probability of less than 1 - `level`.

    Raises:
        ValueError: the counts are impossible.
    """
    if not 0 <= failures <= runs or runs == 0:
        raise ValueError(f"share of failures: expected 0 <= failures <= runs and runs > 0, got {failures} of {runs}")
    if failures == runs:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if binomial_tail(failures, runs, middle) > 1 - level:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def signed_ranks(differences: Sequence[float] | Doubles) -> Doubles:
    """Ranks of the absolute differences, equal ones sharing their mean rank, with the differences' signs (n,).

    A difference of 0 keeps its rank's place but has no sign. Infinite ones are the largest, and equal. Equal are those
    that agree in nine digits: log 2 - log 1 and log 6 - log 3 differ by a rounding error.
    """
    values = np.array([float(f"{value:.{DIGITS - 1}e}") for value in np.asarray(differences, dtype=np.float64)])
    sizes = np.abs(values)
    smaller = (sizes[None, :] < sizes[:, None]).sum(1)
    equal = (sizes[None, :] == sizes[:, None]).sum(1)
    ranks: Doubles = np.sign(values) * (smaller + (equal + 1) / 2)
    return ranks


def sign_flip_test(differences: Sequence[float] | Doubles) -> float:
    """Two-sided p-value of a paired permutation test: were the two of each pair exchangeable?

    The statistic is the absolute sum; each pair's difference may as well have had the other sign. All 2^n patterns
    are tried for up to 14 pairs, else 20,000 random ones, the observed one included.

    Args:
        differences: one per pair, finite: pass `signed_ranks` of those that may be infinite.

    Raises:
        ValueError: one is not finite.
    """
    values = np.asarray(differences, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("sign-flip test: expected finite differences, got an infinite one or NaN")
    values = values[values != 0]
    if not len(values):
        return 1.0
    observed = abs(values.sum()) * (1 - 1e-12)
    if len(values) <= EXACT_SIGNS:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(values))))
        return float(np.mean(np.abs(signs @ values) >= observed))
    rng = np.random.default_rng(_SEED)
    signs = rng.choice((1.0, -1.0), size=(SIGN_SAMPLES - 1, len(values)))
    return float((1 + np.sum(np.abs(signs @ values) >= observed)) / SIGN_SAMPLES)


def probability_of_improvement(ours: Sequence[float] | Doubles, theirs: Sequence[float] | Doubles) -> float:
    """Probability that a run of ours needs less than a run of theirs; equal ones count half, so do two failures."""
    a, b = np.asarray(ours, dtype=np.float64)[:, None], np.asarray(theirs, dtype=np.float64)[None, :]
    return float(np.mean((a < b) + 0.5 * (a == b)))


@dataclass(frozen=True)
class Comparison:
    """Two settings under the same seeds, in one quantity of which less is better; ratios below 1 favour the first.

    Args:
        pairs: seeds that both have.
        both: pairs in which neither failed.
        median_ratio: of the medians of all pairs, failures infinite: infinite where only the first fails in half of
            them, 0 where only the second does, NaN where both do.
        median_interval: its 95 % bootstrap interval, pairs drawn together.
        mean_ratio: geometric mean of the ratios of the pairs in `both`; None without any.
        mean_interval: its interval.
        p_value: of the paired permutation test on signed ranks of the log ratios, failures infinite, ties as in
            `signed_ranks`.
        improvement: probability that a run of the first needs less than a run of the second.
    """

    pairs: int
    both: int
    median_ratio: float
    median_interval: tuple[float, float]
    mean_ratio: float | None
    mean_interval: tuple[float, float] | None
    p_value: float
    improvement: float


def compare_paired(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """Compare positive values of the same seeds, infinity being a failure.

    Raises:
        ValueError: there is no pair, or a value is not above 0, so that it has no logarithm.
    """
    pairs = np.column_stack([np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)])
    if not len(pairs):
        raise ValueError("paired comparison: expected at least one pair, got none")
    if not (pairs > 0).all():
        raise ValueError(f"paired comparison: expected values above 0, got {pairs[~(pairs > 0)][0]}")
    finite = pairs[np.isfinite(pairs).all(1)]
    logs = np.log(pairs)
    with np.errstate(invalid="ignore"):
        differences = np.where(np.isinf(logs).all(1), 0.0, logs[:, 0] - logs[:, 1])
    return Comparison(
        pairs=len(pairs),
        both=len(finite),
        median_ratio=float(_median_ratios(pairs[None])[0]),
        median_interval=_ratios(bootstrap(pairs, _median_ratios)),
        mean_ratio=float(_mean_ratios(finite[None])[0]) if len(finite) else None,
        mean_interval=bootstrap(finite, _mean_ratios) if len(finite) > 1 else None,
        p_value=sign_flip_test(signed_ranks(differences)),
        improvement=probability_of_improvement(pairs[:, 0], pairs[:, 1]),
    )


def band(curves: Sequence[Any], *, resamples: int = 300) -> tuple[Doubles, Doubles, Doubles]:
    """Mean of several curves on one grid (runs, points), and the ends of its 95 % bootstrap interval, runs drawn whole.

    Returns:
        Three arrays (points,); with a single run all three are that run.
    """
    data = np.asarray(curves, dtype=np.float64)
    rng = np.random.default_rng(_SEED)
    means = data[rng.integers(len(data), size=(resamples, len(data)))].mean(1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return data.mean(0), low, high


def _median_ratios(pairs: Doubles) -> Doubles:
    ours, theirs = medians(pairs).T
    with np.errstate(invalid="ignore"):
        ratios: Doubles = ours / theirs
    return ratios


def _mean_ratios(pairs: Doubles) -> Doubles:
    logs = np.log(pairs)
    ratios: Doubles = np.exp((logs[..., 0] - logs[..., 1]).mean(axis=1))
    return ratios


def _ratios(interval: tuple[float, float]) -> tuple[float, float]:
    return max(0.0, interval[0]), interval[1]  # what may be anything is no less than 0
