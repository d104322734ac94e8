"""The trials of earlier searches that still hold."""

from __future__ import annotations

import math

from kernels.attention.problem import Problem
from tuner.evaluate.executor import Executor
from tuner.evaluate.timing import CLEARLY_SLOW
from tuner.search.candidates import CandidateSet
from tuner.store.database import Store
from tuner.trial import Outcome, Trial


def recalled(
    problem: Problem, candidates: CandidateSet, executor: Executor, store: Store
) -> list[Trial]:
    """What `store` knows of `candidates` on `problem`, by the very kernels and in the very manner
    that `executor` would measure them. Where it would count cycles, trials by time are none, but
    for those so slow that no clock explains it: of launches too short to count in, one says that.
    """
    target = executor.target
    stored = store.trials(
        problem, hardware=target.hardware, triton=target.triton, origin=executor.origin
    )
    known = [
        trial
        for trial in stored
        if trial.candidate in candidates
        and trial.template_version == executor.template_version(problem, trial.candidate.template)
    ]
    if not executor.counts_cycles:
        return known
    fastest_ms = min(
        (
            trial.measurement.median_ms
            for trial in known
            if trial.measurement is not None and trial.measurement.cycles is not None
        ),
        default=math.inf,
    )
    return [
        trial
        for trial in known
        if trial.measurement is None
        or trial.measurement.cycles is not None
        or (
            trial.outcome is Outcome.PRUNED
            and trial.measurement.median_ms > CLEARLY_SLOW * fastest_ms
        )
    ]
