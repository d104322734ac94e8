"""A search on many GPUs rehearsed without any: every evaluator is a process that replays.

What starts, feeds, loses and replaces processes is the same as on GPUs; only the figures are
recorded ones. So a cluster can be tried before it has a card, and faults before they cost one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from kernels.attention.problem import Problem
from tuner.evaluate import gpu_worker, wire
from tuner.evaluate.child import Handler
from tuner.evaluate.executor import Compilation, Evaluation, Executor, Race
from tuner.evaluate.replay import ReplayExecutor
from tuner.evaluate.timing import DECIDE_S
from tuner.trial import Candidate, Origin, Outcome, Trial

GPU_FACTORY = "tuner.evaluate.rehearsal:evaluating"
COMPILE_FACTORY = "tuner.evaluate.rehearsal:compiling"


def options(folder: Path | None, pace: float = 0.0) -> dict[str, Any]:
    """The options of both factories.

    Args:
        folder: of the recorded spaces; None: those that come with the package.
        pace: what fraction of the recorded time a worker spends on what it replays.
    """
    return {"folder": None if folder is None else str(folder.resolve()), "pace": pace}


class Rehearsal(Executor):
    """An executor whose processes replay (see `options`), with the words of a replay."""

    origin: Origin = "replay"

    def __init__(self, processes: Executor, recorded: ReplayExecutor) -> None:
        self._processes = processes
        self._recorded = recorded
        self.target = recorded.target
        self.compile_slots = processes.compile_slots
        self.evaluate_slots = processes.evaluate_slots

    def announce(self) -> str:
        return f"{self._recorded.announce()[:-1]}; rehearsed by {self.evaluate_slots} evaluators."

    def refuse(self, problem: Problem) -> str | None:
        return self._recorded.refuse(problem)

    def check(self, problems: Iterable[Problem], accept: Callable[[Trial], object]) -> None:
        self._recorded.check(problems, accept)

    def template_version(self, problem: Problem, template: str) -> str:
        return self._recorded.template_version(problem, template)

    def lack(self, problem: Problem, candidate: Candidate) -> str | None:
        return self._recorded.lack(problem, candidate)

    def compile(self, problem: Problem, candidate: Candidate) -> Future[Compilation]:
        return self._processes.compile(problem, candidate)

    def evaluate(
        self, problem: Problem, candidate: Candidate, best_ms: float | None
    ) -> Future[Evaluation]:
        return self._processes.evaluate(problem, candidate, best_ms)

    def race(
        self,
        problem: Problem,
        entrants: Sequence[Candidate],
        rounds: int,
        decide_s: float = DECIDE_S,
        hopefuls: Sequence[Candidate] = (),
    ) -> Future[Race]:
        return self._processes.race(problem, entrants, rounds, decide_s, hopefuls)

    def close(self) -> None:
        self._processes.close()


def evaluating(folder: str | None = None, pace: float = 0.0) -> Mapping[str, Handler]:
    """The handlers of a GPU worker, replayed."""
    recorded = _recorded(folder)
    return gpu_worker.serve(recorded.target, _Replay(recorded, pace))


def compiling(folder: str | None = None, pace: float = 0.0) -> Mapping[str, Handler]:
    """The handlers of a compile worker, replayed."""
    recorded = _recorded(folder)

    def compile_one(
        candidate: Mapping[str, Any],
        specialization: Mapping[str, Any],
        capability: int,  # noqa: ARG001 – that of the recording
    ) -> wire.Json:
        wanted = wire.candidate_from_json(candidate)
        serves = wire.specialization_from_json(specialization)
        result = Compilation(wanted, Outcome.REJECTED, "not recorded")
        # A binary serves every problem of a specialization, so whichever recorded it will do.
        for problem in recorded.problems:
            if problem.specialization == serves and result.outcome is Outcome.REJECTED:
                result = recorded.compile(problem, wanted).result()
        time.sleep(pace * result.seconds)
        return wire.compilation_to_json(result)

    return {"compile": compile_one}


class _Replay:
    """Takes its time."""

    def __init__(self, recorded: ReplayExecutor, pace: float) -> None:
        self._recorded = recorded
        self._pace = pace

    def evaluate(self, problem: Problem, candidate: Candidate, best_ms: float | None) -> Evaluation:
        result = self._recorded.evaluate(problem, candidate, best_ms).result()
        time.sleep(self._pace * result.seconds)
        return result

    def race(
        self,
        problem: Problem,
        entrants: Sequence[Candidate],
        rounds: int,
        decide_s: float,
        without: Sequence[str] = (),  # noqa: ARG002 – recorded peers do not crash
        hopefuls: Sequence[Candidate] = (),
    ) -> Race:
        return self._recorded.race(problem, entrants, rounds, decide_s, hopefuls).result()


def _recorded(folder: str | None) -> ReplayExecutor:
    return ReplayExecutor(None if folder is None else Path(folder))
