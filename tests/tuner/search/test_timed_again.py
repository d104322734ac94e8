"""What a GPU does while nothing is compiled to try."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from concurrent.futures import Future
from dataclasses import replace

import pytest

from kernels.attention.config import Config
from kernels.attention.problem import Problem
from tuner.evaluate.executor import Evaluation
from tuner.search.driver import search
from tuner.search.events import Event, ProblemEnded, TimedAgain, TrialEnded
from tuner.search.hopefuls import ENOUGH, HOPEFULS, SURELY_SLOWER, Hopefuls
from tuner.search.options import Options
from tuner.store.database import Store
from tuner.trial import Candidate, Measurement, Outcome, Trial

from .conftest import H100, ToyExecutor, ToyTemplate, problem
from .test_under_a_budget import SlowExecutor
from .virtual_time import VirtualTime

P = problem()


class Noting(SlowExecutor):
    """Keeps every timing; the second time those in `fickle` are wrong, those in `mad` without a
    figure."""

    def __init__(self, time: VirtualTime, compile_s: float = 0.15) -> None:
        super().__init__(time, compile_s)
        self.noise = 0.02
        self.timings: dict[Candidate, list[Measurement]] = defaultdict(list)
        self.fickle: set[Candidate] = set()
        self.mad: set[Candidate] = set()

    def measure(self, problem, candidate, rounds) -> Measurement:
        measured = super().measure(problem, candidate, rounds)
        if rounds == 5:  # of a trial, not of a race
            self.timings[candidate].append(measured)
            if candidate in self.fickle:
                self.faults[candidate] = Outcome.WRONG
            if candidate in self.mad and len(self.timings[candidate]) > 1:
                return replace(measured, median_ms=math.nan)
        return measured


def searched(executor: ToyExecutor, store: Store) -> list[Event]:
    events: list[Event] = []
    search([P], executor, store, (), Options(trials=24, sampler="random"), events.append)
    return events


def test_hopefuls_are_timed_again_and_count_by_the_middling_timing(
    toy: ToyTemplate, store: Store, virtual_time: VirtualTime
) -> None:
    executor = Noting(virtual_time, compile_s=0.4)
    events = searched(executor, store)
    told = [event.trial.candidate for event in events if isinstance(event, TrialEnded)]
    assert len(told) == len(set(told)) == 24  # a trial is told once, however often it is timed
    counts = Counter({candidate: len(each) for candidate, each in executor.timings.items()})
    assert set(counts) == set(told)
    assert max(counts.values()) == ENOUGH
    trials = {trial.candidate: trial for trial in store.trials(P)}
    assert len(trials) == 24
    for candidate, timings in executor.timings.items():
        measured = trials[candidate].measurement
        assert measured is not None
        ordered = sorted(timing.steady_ms for timing in timings)
        assert measured.steady_ms == ordered[len(ordered) // 2]
    slowest = sorted(told, key=lambda c: executor.latency(P, c.config))[-6:]
    assert all(counts[candidate] == 1 for candidate in slowest)
    assert sum(counts.values()) > 24 + HOPEFULS / 2
    again = [event for event in events if isinstance(event, TimedAgain)]
    assert len(again) == sum(counts.values()) - 24
    assert again[-1].trial == trials[again[-1].trial.candidate]
    (end,) = [event for event in events if isinstance(event, ProblemEnded)]
    assert end.seconds.timing == pytest.approx(0.1 * sum(counts.values()))


@pytest.mark.parametrize("outcome", [Outcome.WRONG, Outcome.CRASHED])
def test_who_fails_when_timed_again_does_not_race(
    toy: ToyTemplate, store: Store, virtual_time: VirtualTime, outcome: Outcome
) -> None:
    executor = Noting(virtual_time)
    best = Candidate("toy", toy.default(P, 90))
    executor.latency = lambda _, config: 1.0 if config == best.config else 1.05
    which = executor.fickle if outcome is Outcome.WRONG else executor.mad
    which.add(best)
    events = searched(executor, store)
    (record,) = store.records()
    (stored,) = [trial for trial in store.trials(P) if trial.candidate == best]
    assert stored.outcome is outcome
    assert ("it was wrong" if outcome is Outcome.WRONG else "median_ms is nan") in stored.reason
    assert record.candidate != best
    assert best not in executor.raced
    (ended,) = [event for event in events if isinstance(event, ProblemEnded)]
    assert ended.counts[outcome] == 1
    assert sum(ended.counts.values()) == 24
    assert ended.reasons == {f"{outcome.value}: {stored.reason}": 1}


def test_where_the_compiler_is_not_waited_for_nothing_is_timed_twice(
    toy: ToyTemplate, executor: ToyExecutor, store: Store
) -> None:
    searched(executor, store)
    assert len(executor.evaluated) == len(set(executor.evaluated)) == 24


def ended(place: int, ms: float, counted: bool) -> Trial:
    candidate = Candidate("toy", Config(place=place))
    cycles = ms * 1.5e6 if counted else None
    measured = Measurement(ms, 0.01, (ms,) * 3, 1.0, 1e-4, cycles=cycles)
    return Trial(P, H100, candidate, "v", Outcome.OK, "cuda", "2026-11-28T00:00:00+00:00",
                 measurement=measured)  # fmt: skip


class Repeating(ToyExecutor):
    """Times everything as it was timed before."""

    def __init__(self, trials: list[Trial]) -> None:
        super().__init__()
        self.known = {trial.candidate: trial for trial in trials}

    def evaluate(self, problem: Problem, candidate: Candidate, best_ms) -> Future[Evaluation]:
        assert best_ms is None  # a hopeful is not to be stopped early
        self.evaluated.append(candidate)
        future: Future[Evaluation] = Future()
        measured = self.known[candidate].measurement
        future.set_result(Evaluation(candidate, Outcome.OK, "", measured, 0.1))
        return future


@pytest.mark.parametrize("counted", [True, False])
def test_with_enough_timings_by_cycles_fewer_may_be_the_fastest(counted: bool) -> None:
    trials = [ended(place, 1 + place / 250, counted) for place in range(40)]
    executor = Repeating(trials)
    hopefuls = Hopefuls(P, executor)
    assert hopefuls.among(trials) == [trial.candidate for trial in trials[:HOPEFULS]]
    assert hopefuls.among(trials, but={trials[2].candidate}) == [
        trial.candidate for trial in [*trials[:2], *trials[3 : HOPEFULS + 1]]
    ]
    known = {trial.candidate: trial for trial in trials}
    while True:
        hopefuls.time_again(trials, 2, but=())
        if not hopefuls.under_way:
            break
        assert len(hopefuls.under_way) <= 2
        for _, trial in hopefuls.take(known):
            assert (
                replace(trial, measured_at=known[trial.candidate].measured_at)
                == (known[trial.candidate])
            )
    assert len(set(executor.evaluated[:HOPEFULS])) == HOPEFULS  # those with the fewest first
    counts = Counter(executor.evaluated)
    assert set(counts) == {trial.candidate for trial in trials[:HOPEFULS]}
    assert set(counts.values()) == {ENOUGH - 1}
    near = 1 + int((SURELY_SLOWER - 1) * 250 + 1e-9)  # what lies within so much of the best
    assert near < HOPEFULS
    kept = trials[: near if counted else HOPEFULS]
    assert hopefuls.among(trials) == [trial.candidate for trial in kept]
    # One timing of a new best is not enough to rule out others.
    best = ended(99, 0.99, counted)
    assert len(hopefuls.among([best, *trials])) == HOPEFULS


def test_timings_with_cycles_have_the_say() -> None:
    lucky, trial = ended(0, 0.8, counted=False), ended(0, 1.0, counted=True)
    executor = Repeating([trial])
    hopefuls = Hopefuls(P, executor)
    for ms in (1.0, 1.1):
        executor.known = {trial.candidate: ended(0, ms, counted=True)}
        hopefuls.time_again([lucky], 1, but=())
        ((_, now),) = hopefuls.take({lucky.candidate: lucky})
    assert now.measurement is not None
    assert now.measurement.steady_ms == pytest.approx(1.1)


def test_an_opinion_of_trials_stays() -> None:
    marked = replace(ended(0, 1.0, counted=False), reason="single launches")
    hopefuls = Hopefuls(P, Repeating([marked]))
    hopefuls.time_again([marked], 1, but=())
    ((evaluated, now),) = hopefuls.take({marked.candidate: marked})
    assert evaluated.reason == ""
    assert now.reason == "single launches"
    assert now.measured_at > marked.measured_at


def test_with_one_gpu_the_walls_are_all_the_time(
    toy: ToyTemplate, store: Store, virtual_time: VirtualTime
) -> None:
    events: list[Event] = []
    began = virtual_time.now
    options = Options(trials=8, sampler="random")
    executor = Noting(virtual_time, 0.1)
    search([P, problem(512)], executor, store, (), options, events.append)
    took = virtual_time.now - began
    seconds = [event.seconds for event in events if isinstance(event, ProblemEnded)]
    assert sum(each.wall for each in seconds) == pytest.approx(took)
    assert all(each.wall > 0.05 for each in seconds)
    assert sum(each.waiting for each in seconds) < 0.8 * took
