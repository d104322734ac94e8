"""Compiling ahead of need: what the compilers do while the problem at hand leaves them idle.

A search waits for the compiler at the start of a specialization, where nothing is compiled, and
whenever its model changes its mind. Both cost least where the likely binaries are there already:
templates' defaults and winners for the problems to come, and what the model at hand thinks next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain

from kernels.attention.problem import Problem, Specialization
from tuner.evaluate.executor import Compilation, Executor
from tuner.trial import Candidate, Outcome

Binary = tuple[Candidate, Specialization]
Job = tuple[Problem, Candidate]


class Forerunner:
    """Compilations nobody waits for yet, and what came of all. Their binaries stay with the
    executor, which serves an equal compilation later at once."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._ended: dict[Binary, Outcome] = {}
        self._jobs: Iterator[Job] = iter(())
        self._afterwards: Iterator[Job] = iter(())
        self._under_way: dict[Future[Compilation], Job] = {}
        self._asked: set[Binary] = set()
        self._seconds = 0.0

    def plan(self, jobs: Iterable[Job], afterwards: Iterable[Job] = ()) -> None:
        """What to compile when there is room, in this order, in place of what was planned: `jobs`
        before what is likely for the problem at hand, `afterwards` after that. Both are drawn as
        there is."""
        self._jobs, self._afterwards = iter(jobs), iter(afterwards)

    def fill(self, free: int, likely: Callable[[], Sequence[Job]] = tuple) -> None:
        """Keep up to `free` compilations going: what is planned, what is `likely`, and what is
        planned for afterwards."""
        self._reap()
        jobs = chain(self._jobs, _drawn(likely), self._afterwards)
        while len(self._under_way) < free:
            job = next(jobs, None)
            if job is None:
                return
            problem, candidate = job
            binary = candidate, problem.specialization
            if binary not in self._ended and binary not in self._asked:
                self._asked.add(binary)
                self._under_way[self._executor.compile(problem, candidate)] = job

    def compiled(self, specialization: Specialization) -> list[Candidate]:
        """Candidates whose binaries for `specialization` are there."""
        self._reap()
        return [
            candidate
            for (candidate, of), outcome in self._ended.items()
            if of == specialization and outcome is Outcome.OK
        ]

    def note(self, compiled: Compilation, specialization: Specialization) -> float:
        """Take note of a compilation that has ended; its CPU seconds, 0 if it is known already."""
        binary = compiled.candidate, specialization
        if binary in self._ended:
            return 0.0
        self._ended[binary] = compiled.outcome
        return compiled.seconds

    def take_seconds(self) -> float:
        """CPU seconds of compilations that ended since the last call."""
        self._reap()
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _reap(self) -> None:
        for future in [future for future in self._under_way if future.done()]:
            problem, candidate = self._under_way.pop(future)
            if future.cancelled():
                self._asked.discard((candidate, problem.specialization))
            else:
                self._seconds += self.note(future.result(), problem.specialization)


def _drawn(likely: Callable[[], Sequence[Job]]) -> Iterator[Job]:
    """What is likely, worked out only when the first is drawn."""
    yield from likely()
