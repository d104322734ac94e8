"""The executor without a GPU: measurements recorded on another machine, served as if taken now."""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TypeVar

from kernels.attention import registry
from kernels.attention.problem import Problem
from tuner.device import has_gpu
from tuner.evaluate.comparable import rescaled, together
from tuner.evaluate.executor import Compilation, Evaluation, Executor, Race
from tuner.evaluate.space_file import RecordedSpace, read_folder
from tuner.evaluate.t4 import SpaceError
from tuner.evaluate.timing import DECIDE_S, PLACES, spread
from tuner.liveness import unserved
from tuner.trial import Candidate, Measurement, Origin, Outcome, Trial

T = TypeVar("T")

# Outcomes that a candidate has before it ever runs.
_COMPILE_OUTCOMES = (Outcome.COMPILE_ERROR, Outcome.SPILLS, Outcome.OUT_OF_RESOURCES)
_NAMED = 8  # problems that a refusal lists


def shipped_spaces() -> Path:
    """The folder of the spaces that come with the package and are replayed by default."""
    return Path(__file__).resolve().parent.parent / "spaces" / "h100"


class ReplayExecutor(Executor):
    """Serves the problems of a folder of recorded spaces, all of one target: the one with most.

    Equal searches see equal figures: nothing here is random, and nothing takes time.
    """

    origin: Origin = "replay"
    compile_slots = 1
    evaluate_slots = 1

    def __init__(self, folder: Path | None = None) -> None:
        """
        Args:
            folder: of the recorded spaces; None: those that come with the package.

        Raises:
            SpaceError: a file in it is damaged, or there is none to serve.
            OSError: it cannot be read.
        """
        folder = folder or shipped_spaces()
        groups: dict[tuple[str, str], list[RecordedSpace]] = defaultdict(list)
        for space in read_folder(folder):
            target = space.header.target
            groups[target.hardware.key, target.triton].append(space)
        if not groups:
            raise SpaceError(f"{folder} holds no recorded space, so there is nothing to replay")
        _, chosen = max(groups.items(), key=lambda item: (len(item[1]), item[0]))
        latest = max(chosen, key=lambda space: space.header.recorded_at)
        self.target = latest.header.target
        self._dates = sorted({space.header.recorded_at[:10] for space in chosen})
        self._spaces: dict[Problem, dict[str, RecordedSpace]] = defaultdict(dict)
        self._trials: dict[Problem, dict[Candidate, Trial]] = {}  # of those that were asked for
        self._lacks: dict[tuple[Problem, str], str] = {}
        # The latest of several recordings of one template and problem.
        for space in sorted(chosen, key=lambda space: space.header.recorded_at):
            self._spaces[space.header.problem][space.header.template] = space

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems there are recordings of."""
        return tuple(sorted(self._spaces))

    def announce(self) -> str:
        first, last = self._dates[0], self._dates[-1]
        date = first if first == last else f"{first} to {last}"
        why = "" if has_gpu() else "No GPU here: "
        text = (
            f"{why}replaying measurements recorded on {self.target.gpu_name} "
            f"({self.target.hardware}) on {date}, Triton {self.target.triton}"
        )
        changed = self._changed()
        if changed:
            kernels = "kernels of" if len(changed) > 1 else "kernel of"
            have = "have" if len(changed) > 1 else "has"
            text += f"; since then the {kernels} {' and '.join(changed)} {have} changed"
        return f"{text[0].upper()}{text[1:]}."

    def refuse(self, problem: Problem) -> str | None:
        if problem in self._spaces:
            return None
        if reason := unserved(problem, self.target.hardware.capability):
            return reason
        names = [str(known) for known in self.problems[:_NAMED]]
        more = len(self._spaces) - len(names)
        if more:
            names.append(f"{more} more")
        return f"{problem} was not recorded, only {', '.join(names)}"

    def check(self, problems: Iterable[Problem], accept: Callable[[Trial], object]) -> None:
        """As `Executor.check`. Of the spaces that come with the package tests know that all they
        hold is accepted: those are read, as a search would, and no more."""
        for problem in problems:
            for space in self._spaces.get(problem, {}).values():
                space.check(accept if space.path.parent != shipped_spaces() else bool)

    def template_version(self, problem: Problem, template: str) -> str:
        space = self._spaces.get(problem, {}).get(template)
        return "" if space is None else space.header.template_version

    def lack(self, problem: Problem, candidate: Candidate) -> str | None:
        recorded = self._trial(problem, candidate) is not None
        return None if recorded else self._lack(problem, candidate.template)

    def compile(self, problem: Problem, candidate: Candidate) -> Future[Compilation]:
        trial = self._trial(problem, candidate)
        if trial is None:
            why = self._lack(problem, candidate.template)
            return _done(Compilation(candidate, Outcome.REJECTED, why))
        seconds = trial.compile_s or 0.0
        hung_or_crashed = trial.outcome in (Outcome.CRASHED, Outcome.TIMEOUT)
        if trial.outcome in _COMPILE_OUTCOMES or (hung_or_crashed and trial.evaluate_s is None):
            return _done(
                Compilation(candidate, trial.outcome, trial.reason, trial.resources, seconds)
            )
        return _done(Compilation(candidate, Outcome.OK, "", trial.resources, seconds))

    def evaluate(
        self,
        problem: Problem,
        candidate: Candidate,
        best_ms: float | None,  # noqa: ARG002 – it ended as it ended
    ) -> Future[Evaluation]:
        trial = self._trial(problem, candidate)
        if trial is None:
            why = self._lack(problem, candidate.template)
            return _done(Evaluation(candidate, Outcome.REJECTED, why))
        measured = trial.measurement and _at_one_clock(problem, trial.measurement)
        return _done(
            Evaluation(candidate, trial.outcome, trial.reason, measured, trial.evaluate_s or 0.0)
        )

    def race(
        self,
        problem: Problem,
        entrants: Sequence[Candidate],
        rounds: int,
        decide_s: float = DECIDE_S,  # noqa: ARG002 – no sample but the recorded ones
        hopefuls: Sequence[Candidate] = (),
    ) -> Future[Race]:
        """The recorded samples drawn anew, with replacement: `rounds` of every entrant and peer. By
        what is recorded the heat went as their trials did; and so the race, where cycles are."""
        raced, dropped, compared = {}, {}, {}
        others = [candidate for candidate in hopefuls if candidate not in entrants]
        for candidate in dict.fromkeys([*entrants, *self._fastest(problem, others)]):
            trial = self._trial(problem, candidate)
            if trial is None or trial.measurement is None:
                dropped[candidate] = (
                    trial.reason if trial else self._lack(problem, candidate.template)
                )
                continue
            recorded = _at_one_clock(problem, trial.measurement)
            samples = _drawn(str(candidate), recorded.samples_ms, rounds)
            compared[candidate] = (
                samples if recorded.cycles is None else (recorded.median_ms,) * rounds
            )
            median_ms = median(samples)
            raced[candidate] = replace(
                recorded,
                median_ms=median_ms,
                spread=spread(samples),
                samples_ms=samples,
                tflops=problem.tflops(median_ms),
            )
        peers = {
            name: _drawn(name, samples, rounds)
            for space in self._spaces.get(problem, {}).values()
            for name, samples in space.header.peers.items()
        }
        return _done(Race(raced, peers, dropped, deciding=compared))

    def close(self) -> None:
        pass

    def _fastest(self, problem: Problem, hopefuls: Sequence[Candidate]) -> list[Candidate]:
        def steady_ms(candidate: Candidate) -> float:
            trial = self._trial(problem, candidate)
            if trial is None or trial.measurement is None:
                return math.inf
            return trial.measurement.steady_ms

        return sorted(hopefuls, key=steady_ms)[:PLACES]

    def _trial(self, problem: Problem, candidate: Candidate) -> Trial | None:
        if problem not in self._trials:
            self._trials[problem] = together(self._spaces.get(problem, {}).values())
        return self._trials[problem].get(candidate)

    def _lack(self, problem: Problem, template: str) -> str:
        """Why a config of `template` has no trial: for want of a recording, or because those that
        there are speak of a kernel with other parameters, or just this one was left out."""
        if (problem, template) not in self._lacks:
            self._lacks[problem, template] = self._find_lack(problem, template)
        return self._lacks[problem, template]

    def _find_lack(self, problem: Problem, template: str) -> str:
        space = self._spaces.get(problem, {}).get(template)
        if space is None:
            return f"{template} was not recorded for {problem}"
        if template not in registry.names():
            return "not recorded"
        present, capability = registry.get(template), self.target.hardware.capability
        refusals = Counter(
            present.reject(problem.specialization, config, capability) for config in space.trials
        )
        if None in refusals:
            return "not recorded"
        ((refusal, _),) = refusals.most_common(1)
        return (
            f"none of the {len(space.trials)} recorded configs of {template} fits its present "
            f"kernel: {refusal}"
        )

    def _changed(self) -> list[str]:
        recorded: dict[str, set[str]] = defaultdict(set)
        for spaces in self._spaces.values():
            for template, space in spaces.items():
                recorded[template].add(space.header.template_version)
        return sorted(name for name, versions in recorded.items() if versions != {_version(name)})


def _version(template: str) -> str | None:
    found = registry.find(template)
    return None if found is None else found.version


def _at_one_clock(problem: Problem, measured: Measurement) -> Measurement:
    """`measured` as if at 1.5 GHz, whatever it ran at, where cycles were counted."""
    if measured.cycles is None:
        return measured
    return replace(
        rescaled(problem, measured, measured.steady_ms),
        cycles=measured.cycles,
        sm_clock_mhz=1500,  # see steady_ms
    )


def _drawn(name: str, samples: Sequence[float], rounds: int) -> tuple[float, ...]:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return tuple(random.Random(seed).choices(samples, k=rounds))


def _done(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future
