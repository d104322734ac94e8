"""Whether two of those that were timed in the same rounds differ by more than noise.

Drift and power capping hit all alike: what counts is the paired ratio within a round, not the
absolute figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import fmean, median, stdev

# Two are told apart if the mean log ratio of their rounds is this many standard errors from zero,
# and if it is worth more than this fraction.
_ERRORS = 2.5
_WORTH = 0.003
# A tie is settled once more rounds could hardly show a difference of more than this fraction.
_TIED = 0.005


def slower(samples: Sequence[float], reference: Sequence[float], errors: float = _ERRORS) -> bool:
    """Whether `samples` are slower than `reference`, taken in the same rounds, beyond the noise: by
    so many standard errors."""
    ratios = _ratios(samples, reference)
    if len(ratios) < 2:
        return sum(ratios) > _WORTH
    # The median shrugs off a single disturbed round; the error is that of a mean.
    return median(ratios) > log(1 + _WORTH) and fmean(ratios) > errors * _error(ratios)


def beaten(samples: Sequence[float], reference: Sequence[float]) -> bool:
    """Whether `samples` are slower by so much that hardly another race would have it otherwise."""
    ratios, worth = _ratios(samples, reference), log(1 + 2 * _WORTH)
    if len(ratios) < 2:
        return sum(ratios) > worth
    return median(ratios) > worth and fmean(ratios) - _ERRORS * _error(ratios) > worth


def ratio(samples: Sequence[float], reference: Sequence[float]) -> float:
    """How many times as slow as `reference` `samples` are, by the median of their rounds."""
    return exp(median(_ratios(samples, reference)))


def settled(lanes: Sequence[Sequence[float]]) -> bool:
    """Whether each of `lanes` is slower than the fastest of them, or tied with it for good."""
    if not lanes:
        return True
    fastest = min(lanes, key=median)
    return all(slower(lane, fastest) or _tied(lane, fastest) for lane in lanes)


def _tied(samples: Sequence[float], reference: Sequence[float]) -> bool:
    ratios = _ratios(samples, reference)
    return len(ratios) >= 2 and _ERRORS * _error(ratios) <= _TIED


def _ratios(samples: Sequence[float], reference: Sequence[float]) -> list[float]:
    return [log(mine / theirs) for mine, theirs in zip(samples, reference)]


def _error(ratios: Sequence[float]) -> float:
    return stdev(ratios) / sqrt(len(ratios))
