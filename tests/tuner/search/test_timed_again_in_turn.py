"""In which order what is compiled and what is timed again get to the GPUs, step by step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as futures_ended
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tuner.evaluate.executor import Evaluation
from tuner.search import exploration
from tuner.search.budget import Budget
from tuner.search.candidates import enumerate_candidates
from tuner.search.exploration import Exploration
from tuner.search.hopefuls import Hopefuls
from tuner.store.database import Store
from tuner.trial import Outcome

from .conftest import ToyExecutor, ToyTemplate, problem
from .test_budget import Clock
from .test_timed_again import ended
from .test_under_a_budget import BEST, DEFAULT

P = problem()
OTHER = BEST


class Manual(ToyExecutor):
    """Compilations and evaluations end when a test says so, those asked for first first."""

    def __init__(self) -> None:
        super().__init__()
        self.compilations: list[tuple[Future[Any], Any]] = []
        self.evaluations: list[tuple[Future[Any], Any]] = []
        self.wrong = False
        self.queued = False  # what is asked for, until it ends

    def compile(self, problem, candidate) -> Future[Any]:
        return self._begun(self.compilations, super().compile(problem, candidate).result())

    def evaluate(self, problem, candidate, best_ms) -> Future[Any]:
        result = super().evaluate(problem, candidate, best_ms).result()
        return self._begun(self.evaluations, result)

    def _begun(self, line: list[tuple[Future[Any], Any]], result: object) -> Future[Any]:
        future: Future[Any] = Future()
        if not self.queued:
            future.set_running_or_notify_cancel()
        line.append((future, result))
        return future

    def compile_one(self) -> None:
        future, result = self.compilations.pop(0)
        future.set_result(result)

    def time_one(self) -> None:
        future, result = self.evaluations.pop(0)
        if self.wrong:
            result = Evaluation(result.candidate, Outcome.WRONG, "it was wrong", None, 0.1)
        future.set_result(result)


class Stage:
    """An exploration whose waits end as `steps` say, and with KeyboardInterrupt after those."""

    def __init__(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, trials: int = 8, **options: Any
    ) -> None:
        self.executor, self.store, self.clock = Manual(), store, Clock()
        candidates = enumerate_candidates(P.specialization, 90)
        self.exploration = Exploration(
            P, candidates, self.executor, store, [], [], "random", 0, trials, **options
        )
        self._monkeypatch = monkeypatch

    def play(self, *steps: Callable[[], object]) -> None:
        left = iter(steps)

        def wait(futures, timeout=None, return_when=None):
            if not futures:
                return set(), set()
            step = next(left, None)
            if step is None:
                raise KeyboardInterrupt
            step()
            return futures_ended(futures, timeout=0)

        self._monkeypatch.setattr(exploration, "wait", wait)
        with suppress(KeyboardInterrupt):
            self.exploration.run(lambda _: None, budget=Budget(100.0, 1, self.clock))


def test_what_is_compiled_goes_before_what_is_timed_again(
    toy: ToyTemplate, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(store, monkeypatch)
    executor = stage.executor

    def both() -> None:
        executor.compile_one()
        executor.time_one()

    stage.play(executor.compile_one, executor.time_one, both, executor.time_one)
    first, again, second, *_ = executor.evaluated
    assert first == again == DEFAULT
    assert second != DEFAULT


@pytest.mark.parametrize("ends", [True, False])
def test_once_time_is_up_what_runs_is_taken_and_no_more_begun(
    toy: ToyTemplate, store: Store, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    stage = Stage(store, monkeypatch)
    executor = stage.executor

    def late() -> None:
        stage.clock.now += 1000
        if ends:
            executor.time_one()

    def at_last() -> None:
        executor.wrong = True
        if executor.evaluations:
            executor.time_one()

    stage.play(executor.compile_one, executor.time_one, late, at_last)
    assert executor.evaluated == [DEFAULT, DEFAULT]
    assert stage.exploration.cut_short
    (trial,) = store.trials(P)
    assert trial.outcome is (Outcome.OK if ends else Outcome.WRONG)
    assert stage.exploration.trials == {DEFAULT: trial}


def test_what_runs_is_taken_when_the_last_candidate_does_not_compile(
    toy: ToyTemplate, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(store, monkeypatch, trials=2)
    executor = stage.executor

    def failed() -> None:
        future, result = executor.compilations.pop(0)
        future.set_result(replace(result, outcome=Outcome.SPILLS))

    def at_last() -> None:
        executor.wrong = True
        executor.time_one()

    stage.play(executor.compile_one, executor.time_one, failed, at_last)
    assert not stage.exploration.cut_short
    outcomes = {trial.candidate == DEFAULT: trial.outcome for trial in store.trials(P)}
    assert outcomes == {True: Outcome.WRONG, False: Outcome.SPILLS}


def test_what_no_gpu_has_begun_with_makes_way(
    toy: ToyTemplate, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(store, monkeypatch)
    executor = stage.executor
    executor.evaluate_slots = 2
    again: list[Future[Any]] = []

    def queued() -> None:
        executor.queued = True
        executor.time_one()

    def then_compiled() -> None:
        again.append(executor.evaluations[-1][0])
        executor.compile_one()

    cancelled: list[bool] = []
    stage.play(
        executor.compile_one, queued, then_compiled,
        lambda: cancelled.extend(future.cancelled() for future in again),
    )  # fmt: skip
    assert cancelled == [True]
    assert len(executor.evaluated) >= 3
    assert executor.evaluated[2] != DEFAULT


def test_a_gpu_that_times_again_does_not_wait(
    toy: ToyTemplate, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(store, monkeypatch)

    def later() -> None:
        stage.clock.now += 5.0

    def compiled_later() -> None:
        later()
        stage.executor.compile_one()

    stage.play(compiled_later, stage.executor.time_one, later)
    assert stage.executor.evaluated == [DEFAULT, DEFAULT]
    assert stage.exploration.seconds.waiting == 5.0


def test_what_was_timed_again_is_kept_whatever_comes_of_the_next(
    toy: ToyTemplate, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(store, monkeypatch)
    executor = stage.executor

    def interrupted() -> None:
        executor.wrong = True
        executor.time_one()
        executor.stop_after = len(executor.evaluated)  # the next one is a KeyboardInterrupt
        stage.exploration.trials[OTHER] = replace(
            stage.exploration.trials[DEFAULT], candidate=OTHER
        )

    stage.play(executor.compile_one, executor.time_one, interrupted)
    (trial,) = store.trials(P)
    assert trial.outcome is Outcome.WRONG


@pytest.mark.parametrize("reason", ["recalled", "apart"])
def test_nothing_is_timed_again_that_another_search_tried_or_for_a_recording(
    toy: ToyTemplate, store: Store, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    stage = Stage(store, monkeypatch, apart=reason == "apart")
    if reason == "recalled":
        stage.play(stage.executor.compile_one, stage.executor.time_one)
        stage = Stage(store, monkeypatch)
        assert list(stage.exploration.trials) == [DEFAULT]
        stage.play(lambda: None)
        assert stage.executor.evaluated == []
    else:
        stage.play(stage.executor.compile_one, stage.executor.time_one, lambda: None)
        assert stage.executor.evaluated == [DEFAULT]


def test_what_is_paused_is_forgotten() -> None:
    trials = [ended(place, 1 + place / 250, True) for place in range(4)]
    executor = Manual()
    executor.queued, executor.latency = True, lambda *_: 1.0
    hopefuls = Hopefuls(P, executor)
    hopefuls.time_again(trials, 2, but=())
    hopefuls.time_again(trials, 3, but=())
    assert executor.evaluated == [trial.candidate for trial in trials[:3]]  # none twice at once
    running, *others = hopefuls.under_way
    running.set_running_or_notify_cancel()
    hopefuls.forget()
    assert [future.cancelled() for future in (running, *others)] == [False, True, True]
    assert hopefuls.under_way == ()
    assert list(hopefuls.take({})) == []
