"""With several evaluators the finals of one problem run beside the trials of the next."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from kernels.attention.problem import Problem
from tuner.evaluate.executor import Race
from tuner.search.driver import search
from tuner.search.events import Event, FinalsStarted, ProblemEnded, ProblemStarted, TrialEnded
from tuner.search.options import Options
from tuner.store.database import Store

from .conftest import ToyExecutor, ToyTemplate, problem

PROBLEMS = [problem(seqlen) for seqlen in (8192, 4096, 2048)]


class Racing(ToyExecutor):
    """A race lasts a while."""

    def __init__(self, evaluators: int) -> None:
        super().__init__()
        self.evaluate_slots = evaluators
        self.under_way: list[threading.Timer] = []
        self.most = 0

    def race(self, problem: Problem, *asked: Any) -> Future[Race]:
        result = super().race(problem, *asked).result()
        future: Future[Race] = Future()
        timer = threading.Timer(0.3, lambda: future.set_result(result))
        timer.start()
        self.under_way = [each for each in self.under_way if each.is_alive()] + [timer]
        self.most = max(self.most, len(self.under_way))
        return future


@pytest.mark.parametrize("evaluators", [1, 2, 4])
def test_no_gpu_waits_for_anothers_race(toy: ToyTemplate, store: Store, evaluators: int) -> None:
    executor = Racing(evaluators)
    events: list[Event] = []
    options = Options(trials=12, sampler="random")
    found = search(PROBLEMS, executor, store, (), options, events.append)
    assert [record.problem for record in found if record] == PROBLEMS
    assert {record.uid for record in store.records()} == {r.uid for r in found if r}
    assert executor.most <= evaluators
    told = [event.trial for event in events if isinstance(event, TrialEnded)]
    assert len({(t.problem, t.candidate) for t in told}) == len(told) == 36
    ended = [event for event in events if isinstance(event, ProblemEnded)]
    assert [event.problem for event in ended] == PROBLEMS
    assert all(0.25 < event.seconds.finals < 2 for event in ended)
    kinds = [
        type(event) for event in events
        if isinstance(event, FinalsStarted | ProblemStarted | ProblemEnded)
    ]  # fmt: skip
    one_by_one = [ProblemStarted, FinalsStarted, ProblemEnded] * 3
    assert (kinds == one_by_one) == (evaluators == 1)


def test_what_was_interrupted_during_finals_races_again_and_tries_nothing(
    toy: ToyTemplate, store: Store
) -> None:
    class Interrupted(Racing):
        def race(self, problem: Problem, *asked: Any) -> Future[Race]:
            if self.raced:
                raise KeyboardInterrupt
            return super().race(problem, *asked)

    options = Options(trials=12, sampler="random")
    with pytest.raises(KeyboardInterrupt):
        search(PROBLEMS, Interrupted(2), store, (), options)
    again = Racing(2)
    found = search(PROBLEMS, again, store, (), options)
    assert [record.problem for record in found if record] == PROBLEMS
    assert len(again.evaluated) == 12  # of the last problem
