"""Measurements of recorded spaces, some with cycles and some with time alone, made comparable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median

from kernels.attention.config import Config
from kernels.attention.problem import Problem
from tuner.evaluate.space_file import RecordedSpace, counted
from tuner.trial import Candidate, Measurement, Trial


def together(spaces: Iterable[RecordedSpace]) -> dict[Candidate, Trial]:
    """All trials of several templates for one problem on one card, by measures that compare: where
    one of the spaces has no cycles, the others' count as the time that they take at a middling
    clock of their space.

    Raises:
        SpaceError: a file is damaged.
    """
    found = [space.trials for space in spaces]
    if not all(map(counted, found)):
        found = [_at_a_middling_clock(trials) if counted(trials) else trials for trials in found]
    return {trial.candidate: trial for trials in found for trial in trials.values()}


def rescaled(problem: Problem, measured: Measurement, ms: float) -> Measurement:
    """`measured` as if its median were `ms`, without cycles."""
    ratio = ms / measured.median_ms
    return replace(
        measured,
        median_ms=ms,
        samples_ms=tuple(ratio * sample for sample in measured.samples_ms),
        tflops=problem.tflops(ms),
        cycles=None,
    )


def _at_a_middling_clock(trials: Mapping[Config, Trial]) -> dict[Config, Trial]:
    clocks = [m.cycles / m.median_ms for t in trials.values() if (m := t.measurement) and m.cycles]
    clock = median(clocks) if clocks else 1.0
    found = {}
    for config, trial in trials.items():
        if (measured := trial.measurement) is not None and measured.cycles:
            measured = rescaled(trial.problem, measured, measured.cycles / clock)
        found[config] = replace(trial, measurement=measured)
    return found
