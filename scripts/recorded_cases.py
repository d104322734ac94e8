"""Recorded spaces as a search sees them, and what each may know of the others."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log2
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (makes kernels.attention importable)
from kernels.attention import registry
from kernels.attention.problem import Problem
from tuner.evaluate.comparable import together
from tuner.evaluate.space_file import RecordedSpace, read_space
from tuner.evaluate.t4 import SUFFIXES, SpaceError, read_results
from tuner.search.candidates import CandidateSet
from tuner.search.features import parameter_features
from tuner.search.score import Landscape
from tuner.search.space import SearchSpace, search_space
from tuner.target import Hardware, Target
from tuner.trial import Candidate, Measurement, Outcome, Trial

_NOWHERE = Target(Hardware(0, 0, 0, 0), "unknown", "unknown", "unknown", "unknown")
_NOTHING = Problem(64, 1, False, "fp16", 1, 1)  # of the community's spaces, which have none


@dataclass(frozen=True)
class Case:
    """A recorded space as a search sees it."""

    name: str
    space: SearchSpace
    trials: tuple[Trial, ...]  # in the order of the candidates
    defaults: tuple[Candidate, ...]

    @property
    def landscape(self) -> Landscape:
        values = [
            t.measurement.steady_ms if t.measurement and t.outcome.timed
            else np.nan
            for t in self.trials
        ]  # fmt: skip
        return Landscape(np.array(values))

    @property
    def winner(self) -> Candidate:
        return self.trials[int(np.nanargmin(self.landscape.values))].candidate


@cache
def cases(folders: tuple[str, ...]) -> dict[str, Case]:
    """The spaces of `folders`, by name; those of several templates for one problem on one card make
    one, as a search sees them.

    Raises:
        SpaceError: one is damaged, or cannot be scored.
    """
    found = {}
    ours: dict[str, list[RecordedSpace]] = {}
    for folder in folders:
        for path in sorted(Path(folder).iterdir()):
            if not (path.name.endswith(SUFFIXES) and path.is_file()) or path.name[0] == ".":
                continue
            try:
                space = read_space(path)
            except SpaceError:
                case = foreign_case(path)
                found[case.name] = case
            else:
                words = space.header.target.gpu_name.removeprefix("NVIDIA ").split() or ["unknown"]
                ours.setdefault(f"{words[0]} {space.header.problem}", []).append(space)
    for name, spaces in ours.items():
        try:
            found[name] = own_case(name, spaces)
            _ = found[name].space.features  # made late: here it is known whose fault it is
        except (LookupError, ValueError) as error:
            raise SpaceError(f"{spaces[0].path} is of no space that is searched: {error}") from None
    for name, case in found.items():
        if len(set(case.landscape.values[np.isfinite(case.landscape.values)])) < 2:
            raise SpaceError(f"the space {name} has no two times, so that nothing can be scored")
    return found


def own_case(name: str, spaces: Sequence[RecordedSpace]) -> Case:
    """All that was recorded of one problem on one card."""
    problem, hardware = spaces[0].header.problem, spaces[0].header.target.hardware
    order = registry.names()
    spaces = sorted(spaces, key=lambda space: order.index(space.header.template))
    trials = tuple(together(spaces).values())
    candidates = CandidateSet(tuple(trial.candidate for trial in trials), 0, ())
    defaults = [
        Candidate(of, registry.get(of).default(problem, hardware.capability))
        for of in dict.fromkeys(trial.candidate.template for trial in trials)
    ]
    return Case(
        name,
        search_space(candidates, problem, hardware),
        trials,
        tuple(default for default in defaults if default in candidates),
    )


def foreign_case(path: Path) -> Case:
    name = path.name.split(".")[0]
    results = read_results(path)
    trials = []
    for result in results:
        measurement = None
        if result.outcome is Outcome.OK:
            ms = result.measurements.get("time") or median(result.samples_ms)
            measurement = Measurement(ms, 0.0, result.samples_ms, 0.0, 0.0)
        candidate = Candidate(name, result.config)
        trials.append(
            Trial(_NOTHING, _NOWHERE, candidate, "", result.outcome, "replay", "",
                  measurement=measurement)
        )  # fmt: skip
    configs = [result.config for result in results]
    choices = {key: tuple(dict.fromkeys(c[key] for c in configs)) for key in configs[0]}
    candidates = CandidateSet(tuple(trial.candidate for trial in trials), 0, ())
    space = SearchSpace(candidates, {name: choices}, lambda: parameter_features(configs))
    return Case(name, space, tuple(trials), ())


def summary(case: Case) -> dict[str, Any]:
    landscape = case.landscape
    right = landscape.values[np.isfinite(landscape.values)]
    return {
        "configs": len(landscape.values),
        "failures": len(landscape.values) - len(right),
        "within 5 %": int((right <= 1.05 * landscape.optimum).sum()),
        "within 2 %": int((right <= 1.02 * landscape.optimum).sum()),
        "window of the score": landscape.window,
    }


def neighbours(case: Case, known: Iterable[Case]) -> list[Candidate]:
    """The winners of the other spaces of this headdim and mask, on any card."""
    problem = case.trials[0].problem
    like = [
        other
        for other in known
        if other.name != case.name
        and replace(other.trials[0].problem, seqlen=1, batch=1, heads=1)
        == replace(problem, seqlen=1, batch=1, heads=1)
    ]
    return list(dict.fromkeys(other.winner for other in like))


def nearest(case: Case, known: Iterable[Case]) -> Case | None:
    """The space of the same binaries on the same card whose seqlen is nearest."""
    mine = case.trials[0]
    like = [
        other
        for other in known
        if other.trials[0].problem.specialization == mine.problem.specialization
        and other.trials[0].target == mine.target
        and other.name != case.name
    ]

    def distance(other: Case) -> float:
        return abs(log2(other.trials[0].problem.seqlen / mine.problem.seqlen))

    return min(like, key=distance, default=None)
