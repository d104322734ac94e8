"""The search: plan, propose, compile ahead, evaluate, race the finalists, keep the verdict.

One driver process asks and tells; executors do the work. Every trial is stored as it ends, so that
an interrupted search loses nothing and the same command goes on where it stopped.

While the finals of one problem occupy the GPU, the next one is prepared and its first candidates
are compiled.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernels.attention.problem import Problem, Specialization
from tuner.evaluate.executor import Executor
from tuner.record import Record
from tuner.search import neighbours
from tuner.search.budget import Budget
from tuner.search.events import Event, Observer, ProblemEnded, ProblemSkipped, Seconds
from tuner.search.exploration import Exploration
from tuner.search.forerun import Forerunner, Job
from tuner.search.opening import defaults
from tuner.search.options import Options
from tuner.search.turns import Skip, Turns
from tuner.search.verdict import Final, begin, crown, incumbent_of
from tuner.store.database import Store

# Specializations after the one at hand whose seeds are compiled in idle compilers, and how many
# candidates besides those. By simulation of a grid of 72 problems with 15 compilers that saves a
# fifth of the time for which the GPU waits; neither more specializations nor more candidates do.
_COMING = 2
_FORESEEN = 64
# Of a revisit's share of the time, what exploring must get for it to be worth the finals.
_LEAST_REVISIT_S = 1.0


def _ignore(event: Event) -> None:
    """The observer of nobody."""


def search(
    problems: Sequence[Problem],
    executor: Executor,
    store: Store,
    inherited: Iterable[Record],
    options: Options,
    observer: Observer = _ignore,
) -> list[Record | None]:
    """Search every problem; one record each, None where no candidate succeeded or time was up.

    Args:
        store: where trials and records go, and whose fresh records make a search needless.
        inherited: standing records of all databases in force. They seed neighbours, and one for the
            very problem races in the finals.
        observer: is told of everything as it happens.

    Raises:
        StoreError: the database cannot be written.
        KeyError: an option names a template that is not registered.
    """
    return _Search(problems, executor, store, inherited, options, observer).run()


@dataclass(frozen=True)
class _Racing:
    """A problem whose finals are under way, if it came to any."""

    index: int
    exploration: Exploration
    final: Final | None

    @property
    def done(self) -> bool:
        """Whether its verdict is there already."""
        return self.final is None or self.final.race.done()


class _Search:
    def __init__(
        self,
        problems: Sequence[Problem],
        executor: Executor,
        store: Store,
        inherited: Iterable[Record],
        options: Options,
        observer: Observer,
    ) -> None:
        self._problems = problems
        self._executor = executor
        self._store = store
        self._rounds = options.rounds
        self._observer = observer
        self._budget = Budget(options.budget_s, len(problems))
        self._seeds = list(inherited)
        self._results: list[Record | None] = [None] * len(problems)
        self._forerunner = Forerunner(executor)
        self._turns = Turns(problems, executor, store, options, self._forerunner)
        self._opened: dict[int, Exploration | Skip] = {}
        self._racing: deque[_Racing] = deque()
        self._accounted = time.monotonic()  # until when we said where the time went
        self._finals_s = 0.0  # of the last ones

    def run(self) -> list[Record | None]:
        count = len(self._problems)
        played: list[int] = []
        for index, problem in enumerate(self._problems):
            turn = self._open(index)
            if self._budget.spent and isinstance(turn, Exploration):
                turn = Skip("the time was up before its turn")
            if isinstance(turn, Skip):
                self._results[index] = turn.record
                self._observer(ProblemSkipped(problem, index, count, turn.record, turn.reason))
            else:
                self._play(index, turn, count - index)
                played.append(index)
        self._settle_all()
        self._revisit(played)
        self._settle_all()
        return self._results

    def _settle_all(self) -> None:
        while self._racing:
            self._settle()

    def _open(self, index: int) -> Exploration | Skip:
        if index not in self._opened:
            self._opened[index] = self._turns.open(self._problems[index], self._seeds)
        return self._opened[index]

    def _play(self, index: int, exploration: Exploration, problems: int) -> None:
        """Explore, start the finals, and keep the verdicts that are there.

        Args:
            problems: still to be searched, this one included.
        """
        exploration.seconds = Seconds()
        problem, incumbent = exploration.problem, incumbent_of(exploration, self._seeds)
        own = [incumbent.candidate] if incumbent else []
        others = [record for record in self._seeds if record is not incumbent]
        nearest = neighbours.nearest(problem, others, exploration.candidates)
        exploration.require([*own, *nearest])
        self._forerunner.plan(self._coming(index), self._foreseen(index))
        end = self._budget.clock() + self._budget.part(problems)
        exploration.run(self._observer, index, len(self._problems), self._budget, problems)
        left = end - self._budget.clock()
        final = begin(exploration, incumbent, self._rounds, left, self._observer)
        self._racing.append(_Racing(index, exploration, final))
        self._look_ahead(index)
        # A race keeps one GPU. Where there are more, the next problem begins on those.
        while self._racing and (
            len(self._racing) >= self._executor.evaluate_slots or self._racing[0].done
        ):
            self._settle()

    def _settle(self) -> None:
        """Wait for the oldest finals, and keep their verdict."""
        oldest = self._racing.popleft()
        exploration = oldest.exploration
        record = crown(oldest.final) if oldest.final else None
        if record is not None:
            self._finals_s = exploration.seconds.finals
            self._store.add_record(record)
            self._seeds = [*(r for r in self._seeds if r.key != record.key), record]
            self._results[oldest.index] = record
        compiling = self._forerunner.take_seconds()
        before, self._accounted = self._accounted, time.monotonic()
        wall = self._accounted - before
        self._observer(
            ProblemEnded(
                exploration.problem,
                record,
                exploration.counts,
                exploration.reasons,
                exploration.seconds + Seconds(wall=wall, compiling=compiling),
                exploration.cut_short,
            )
        )

    def _look_ahead(self, index: int) -> None:
        """Open the next problem to be searched, and have its first candidates compiled."""
        for later in range(index + 1, len(self._problems)):
            if isinstance(turn := self._open(later), Exploration):
                turn.prefetch()
                break
        self._forerunner.fill(self._executor.compile_slots)

    def _revisit(self, played: Sequence[int]) -> None:
        """What is left of the time goes to the problems that were cut short, those without a record
        and with the fewest trials first. By now their neighbours' winners are known, and compiled.
        """
        short = [
            (self._results[index] is not None, len(turn.trials), index)
            for index in played
            if isinstance(turn := self._opened[index], Exploration) and turn.cut_short
        ]
        worth = int(self._budget.left / (self._finals_s + _LEAST_REVISIT_S)) if short else 0
        chosen = [index for _, _, index in sorted(short)[:worth]]
        for number, index in enumerate(chosen):
            turn = self._opened[index]
            if isinstance(turn, Exploration) and not self._budget.spent:
                self._play(index, turn, len(chosen) - number)

    def _coming(self, index: int) -> Iterator[Job]:
        """What the problems after number `index` start from: the defaults of those that share its
        binaries or follow soon, and the winners for the like."""
        first, capability = self._next(index), self._executor.target.hardware.capability
        for problem in self._problems[index:]:
            if problem.specialization in first and self._executor.refuse(problem) is None:
                candidates = self._turns.candidates(problem)
                for candidate in defaults(problem, candidates, capability):
                    yield problem, candidate
        for specialization, problem in first.items():
            if specialization != self._problems[index].specialization:
                known = self._turns.candidates(problem)
                for candidate in neighbours.winners(problem, self._seeds, known):
                    yield problem, candidate

    def _foreseen(self, index: int) -> Iterator[Job]:
        """What the specializations after that of problem `index` will probably try, by the trials
        of their like."""
        for specialization, problem in self._next(index).items():
            if specialization != self._problems[index].specialization:
                expected = self._turns.expected(problem, self._problems[: index + 1])
                for candidate in expected[:_FORESEEN]:
                    yield problem, candidate

    def _next(self, index: int) -> dict[Specialization, Problem]:
        """The specializations that are at hand and come next, each with its first problem."""
        first: dict[Specialization, Problem] = {}
        for problem in self._problems[index:]:
            if problem.specialization not in first and self._executor.refuse(problem) is None:
                first[problem.specialization] = problem
                if len(first) > _COMING:
                    break
        return first
