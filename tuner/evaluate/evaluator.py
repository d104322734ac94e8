"""One GPU: the process that owns it, what is asked of that, and how its death is put down to whom.

Every way in which a candidate can end is typed here, in whatever process this lies: the driver of a
search on this machine, or an actor on another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from kernels.attention.problem import Problem
from tuner.evaluate import wire
from tuner.evaluate.executor import Evaluation, Race
from tuner.evaluate.process import HandlerError, Timeout, Worker, WorkerError
from tuner.evaluate.timing import PLACES
from tuner.target import Target
from tuner.trial import Candidate, Outcome

# Seconds without a sign of life from a GPU worker, which tells each step of an evaluation or race.
# The longest step makes the inputs and references of a problem, some seconds.
SILENCE_S = 20.0

FACTORY = "tuner.evaluate.gpu_worker:handlers"


class Evaluator:
    """Evaluates and races on one GPU, one request at a time; calls block."""

    def __init__(
        self,
        factory: str = FACTORY,
        options: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        deadline_s: float = SILENCE_S,
    ) -> None:
        """
        Args:
            factory, options, environment: what the process runs, see `Worker`.
            deadline_s: seconds before a step of an evaluation or race counts as hung.
        """
        self._worker = Worker(factory, options, environment)
        self._deadline_s = deadline_s

    @property
    def pid(self) -> int | None:
        """Of the process that owns the GPU; None while there is none."""
        return self._worker.pid

    def hello(self) -> Target:
        """What the GPU is.

        Raises:
            RuntimeError: it cannot be used; says why.
        """
        try:
            return wire.target_from_json(self._worker.persist("hello", {}, self._deadline_s))
        except (WorkerError, HandlerError) as error:
            raise RuntimeError(f"the GPU cannot be used: {error}") from None

    def evaluate(self, problem: Problem, candidate: Candidate, best_ms: float | None) -> Evaluation:
        """How running `candidate` ends, see `Executor.evaluate`. Raises for nothing it does."""
        began = time.perf_counter()
        arguments = {
            "problem": wire.problem_to_json(problem),
            "candidate": wire.candidate_to_json(candidate),
            "best_ms": best_ms,
        }
        try:
            reply = self._worker.persist("evaluate", arguments, self._deadline_s)
        except (WorkerError, HandlerError) as error:
            seconds = time.perf_counter() - began
            step = getattr(error, "note", None)
            reason = f"{error}, during {step}" if step else str(error)
            return Evaluation(candidate, _outcome(error), reason, None, seconds, seconds)
        return wire.evaluation_from_json(reply, candidate)

    def race(
        self,
        problem: Problem,
        entrants: Sequence[Candidate],
        rounds: int,
        decide_s: float,
        hopefuls: Sequence[Candidate] = (),
    ) -> Race:
        """Race, and again without whoever killed the worker, until a race comes through. There is
        one heat at most: if somebody fails, it is the first of the hopefuls who race again."""
        left = list(dict.fromkeys([*entrants, *hopefuls]))
        seeded = set(entrants)
        dropped: dict[Candidate, str] = {}
        absent: dict[str, str] = {}
        while True:
            arguments = {
                "problem": wire.problem_to_json(problem),
                "entrants": [wire.candidate_to_json(candidate) for candidate in left],
                "seeded": sum(candidate in seeded for candidate in left),  # the first ones
                "rounds": rounds,
                "decide_s": decide_s,
                "without": list(absent),
            }
            try:
                reply = self._worker.persist("race", arguments, self._deadline_s)
                break
            except (WorkerError, HandlerError) as error:
                reason = f"{_outcome(error).value}: {error}"
                culprit = getattr(error, "note", None)
                if culprit is not None and culprit.isdigit():
                    dropped[left.pop(int(culprit))] = reason
                elif culprit is not None and culprit not in absent and culprit != "making inputs":
                    absent[culprit] = reason
                else:  # not one of them: the device itself fails
                    dropped.update(dict.fromkeys(left, reason))
                    return Race({}, {}, dropped, absent)
                hoping = [candidate for candidate in left if candidate not in seeded]
                left = [candidate for candidate in left if candidate not in hoping[PLACES:]]
        measurements = map(wire.measurement_from_json, reply["entrants"])
        return Race(
            entrants={c: m for c, m in zip(left, measurements) if m is not None},
            peers={name: tuple(samples) for name, samples in reply["peers"].items()},
            dropped={**dropped, **{c: r for c, r in zip(left, reply["dropped"]) if r}},
            absent={**absent, **reply["absent"]},
            throttles=tuple(reply["throttles"]),
            deciding={c: tuple(s) for c, s in zip(left, reply["deciding"]) if s is not None},
        )

    def close(self) -> None:
        """Kill the process and all it started. Safe to call twice, and from any thread."""
        self._worker.close()


def _outcome(error: Exception) -> Outcome:
    return Outcome.TIMEOUT if isinstance(error, Timeout) else Outcome.CRASHED
