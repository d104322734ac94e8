"""What is known from problems like this one: their winners, and how their latencies lie."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from math import log, log2
from typing import TYPE_CHECKING

from kernels.attention.problem import Problem
from tuner.liveness import revived
from tuner.record import Record
from tuner.search.space import SearchSpace
from tuner.trial import Candidate, Trial

if TYPE_CHECKING:
    from tuner.search.features import Array

# Records of neighbouring problems whose winners are tried first.
_WINNERS = 10
# Of these, so many nearest must be tried, and race in the finals where they are right.
_NEAREST = 2
# Trials that a neighbour must have for its latencies to say something of ours.
_TRIALS = 12


def winners(
    problem: Problem, records: Iterable[Record], among: Container[Candidate]
) -> list[Candidate]:
    """Winners for problems like this one that are `among` what may be tried, the likest first."""
    like = [
        record
        for record in records
        if (record.problem.headdim, record.problem.causal) == (problem.headdim, problem.causal)
    ]
    likest = sorted(like, key=lambda record: (*_distance(record.problem, problem), record.uid))
    candidates = dict.fromkeys(revived(record.candidate) for record in likest)
    return [candidate for candidate in candidates if candidate in among][:_WINNERS]


def nearest(
    problem: Problem, records: Iterable[Record], among: Container[Candidate]
) -> list[Candidate]:
    """What would serve `problem` without a record of its own among `records`: the winners for the
    nearest problems, and for itself under another Triton."""
    return winners(problem, records, among)[:_NEAREST]


def prior(
    problem: Problem,
    others: Iterable[Problem],
    space: SearchSpace,
    trials: Callable[[Problem], list[Trial]],
    any_mask: bool = False,
) -> Array | None:
    """What the nearest problem of the same headdim and mask lets one expect: the logarithm of each
    candidate's latency but for a constant, None if no such problem was searched.

    A tile that is a quarter slower at one seqlen is about that at the next: by replay, a search
    with such a prior is within 2 % of the best in a fifth fewer evaluations. Where no problem of
    the same binaries is known, one of the other dtype will do (on the H100 their logarithms
    correlate by 0.7 even among the fastest).

    Args:
        others: problems that may have been searched.
        trials: those known of a problem.
        any_mask: where there is none of the same mask, one of the other will do.
    """

    def far(other: Problem) -> tuple[object, ...]:
        masks = other.causal != problem.causal
        return masks, other.dtype != problem.dtype, *_distance(other, problem), other

    like = [
        other
        for other in {*others} - {problem}
        if other.headdim == problem.headdim and (any_mask or other.causal == problem.causal)
    ]
    for other in sorted(like, key=far):
        known = [trial for trial in trials(other) if trial.candidate in space.candidates]
        if sum(trial.measurement is not None for trial in known) >= _TRIALS:
            return expected(known, space)
    return None


def expected(trials: Iterable[Trial], space: SearchSpace) -> Array:
    """The logarithm of each candidate's latency but for a constant, learned from `trials`."""
    import numpy as np

    from tuner.search.gaussian_process import GaussianProcess
    from tuner.search.surrogate import levelled

    logs = {
        space.candidates.rank(trial.candidate): log(trial.measurement.steady_ms)
        if trial.measurement is not None
        else np.inf
        for trial in trials
    }
    points, values = space.features[list(logs)], levelled(np.array(list(logs.values())))
    centre, deviation = values.mean(), values.std() or 1.0
    process = GaussianProcess(points.shape[1])
    process.fit(points, (values - centre) / deviation)
    process.condition(points, (values - centre) / deviation)
    mean, _ = process.predict(space.features)
    return np.asarray(deviation * mean, dtype=float)


def _distance(one: Problem, other: Problem) -> tuple[float, float]:
    return (
        (one.dtype != other.dtype) + abs(log2(one.seqlen / other.seqlen)),
        abs(log2(one.batch * one.heads / (other.batch * other.heads))),
    )
