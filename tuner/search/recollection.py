"""The trials of earlier searches that still hold."""

from __future__ import annotations

from kernels.attention.problem import Problem
from tuner.evaluate.executor import Executor
from tuner.search.candidates import CandidateSet
from tuner.store.database import Store
from tuner.trial import Outcome, Trial


def recalled(
    problem: Problem, candidates: CandidateSet, executor: Executor, store: Store
) -> list[Trial]:
    """What `store` knows of `candidates` on `problem`, by the very kernels and in the very manner
    that `executor` would measure them: not by time where it would count cycles."""
    target = executor.target
    stored = store.trials(
        problem, hardware=target.hardware, triton=target.triton, origin=executor.origin
    )
    return [
        trial
        for trial in stored
        if trial.candidate in candidates
        and trial.template_version == executor.template_version(problem, trial.candidate.template)
        and (not executor.counts_cycles or _comparable_by_cycles(trial))
    ]


def _comparable_by_cycles(trial: Trial) -> bool:
    """Whether cycles were counted; or it was stopped after two samples, mostly single launches that
    are too short to count in: so slow that no clock explains it."""
    measured = trial.measurement
    if measured is None or measured.cycles is not None:
        return True
    return trial.outcome is Outcome.PRUNED and len(measured.samples_ms) <= 2
