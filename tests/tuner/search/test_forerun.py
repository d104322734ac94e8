from __future__ import annotations

from concurrent.futures import Future

from tuner.evaluate.executor import Compilation
from tuner.search.candidates import enumerate_candidates
from tuner.search.forerun import Forerunner
from tuner.trial import Candidate, Outcome

from .conftest import ToyExecutor, problem

P = problem()


class Pending(ToyExecutor):
    """Compilations end when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.futures: list[Future[Compilation]] = []

    def compile(self, problem, candidate: Candidate) -> Future[Compilation]:
        self.compiled.append(candidate)
        self.futures.append(Future())
        return self.futures[-1]

    def finish(self, number: int) -> None:
        compiled = Compilation(self.compiled[number], Outcome.OK, seconds=2.0)
        self.futures[number].set_result(compiled)


def test_what_is_planned_goes_before_what_is_likely_and_only_into_free_places(toy) -> None:
    executor = Pending()
    a, b, c, d, *_ = enumerate_candidates(P.specialization, 90).feasible
    forerunner = Forerunner(executor)
    forerunner.plan([(P, a), (P, b)])
    forerunner.fill(3, lambda: [(P, b), (P, c), (P, d)])
    assert executor.compiled == [a, b, c]
    forerunner.fill(3, lambda: [(P, d)])
    assert executor.compiled == [a, b, c]
    executor.finish(1)
    forerunner.fill(3, lambda: [(P, b), (P, d)])
    assert executor.compiled == [a, b, c, d]


def test_nothing_is_compiled_twice_and_seconds_count_once(toy) -> None:
    executor = Pending()
    a, b, *_ = enumerate_candidates(P.specialization, 90).feasible
    forerunner = Forerunner(executor)
    known = Compilation(a, Outcome.SPILLS, seconds=3.0)
    assert forerunner.note(known, P.specialization) == 3.0
    assert forerunner.note(known, P.specialization) == 0.0
    forerunner.plan([(P, a), (problem(8192), a), (P, b), (problem(8192), b)])
    forerunner.fill(8)
    assert executor.compiled == [b]
    executor.finish(0)
    assert forerunner.take_seconds() == 2.0
    assert forerunner.take_seconds() == 0.0
    assert forerunner.compiled(P.specialization) == [b]  # not what failed


def test_what_was_cancelled_may_be_compiled_again(toy) -> None:
    executor = Pending()
    a, *_ = enumerate_candidates(P.specialization, 90).feasible
    forerunner = Forerunner(executor)
    forerunner.plan([(P, a)])
    forerunner.fill(1)
    executor.futures[0].cancel()
    forerunner.fill(1, lambda: [(P, a)])
    assert executor.compiled == [a, a]


def test_what_is_for_afterwards_waits_for_what_is_likely(toy) -> None:
    executor = Pending()
    a, b, c, d, *_ = enumerate_candidates(P.specialization, 90).feasible
    forerunner = Forerunner(executor)
    forerunner.plan([(P, a)], [(P, b), (P, d)])
    forerunner.fill(2, lambda: [(P, c)])
    assert executor.compiled == [a, c]
    forerunner.fill(3, lambda: [(P, c)])
    assert executor.compiled == [a, c, b]
    executor.finish(0)
    executor.finish(1)
    forerunner.fill(3)
    assert executor.compiled == [a, c, b, d]
