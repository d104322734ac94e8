"""Searches whose compiler takes its time, with a deadline."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pytest

from kernels.attention.config import Config
from kernels.attention.problem import Problem
from tuner.evaluate.executor import Compilation, Evaluation, Race
from tuner.evaluate.timing import DECIDE_S
from tuner.record import Record
from tuner.search.budget import Budget
from tuner.search.candidates import enumerate_candidates
from tuner.search.driver import search
from tuner.search.events import Event, ProblemEnded, ProblemSkipped, ProblemStarted, TrialEnded
from tuner.search.exploration import Exploration
from tuner.search.options import Options
from tuner.store.database import Store
from tuner.trial import Candidate

from .conftest import ToyExecutor, ToyTemplate, latency, problem, record
from .test_budget import Clock
from .virtual_time import VirtualTime, Workers

DEFAULT = Candidate("toy", ToyTemplate().default(problem(), 90))
BEST = Candidate("toy", Config(BLOCK_M=128, BLOCK_N=64, num_stages=3, flag=True))


class SlowExecutor(ToyExecutor):
    """Four compilers and one GPU that take their time; equal compilations are done once."""

    def __init__(
        self, time: VirtualTime, compile_s: float, evaluate_s: float = 0.01, race_s: float = 0.05
    ) -> None:
        super().__init__()
        self.time = time
        self.compile_s, self.evaluate_s, self.race_s = compile_s, evaluate_s, race_s
        self.compilers, self.gpu = Workers(time, self.compile_slots), Workers(time, 1)
        self.known: dict[object, Future[Compilation]] = {}
        self.races: dict[Problem, list[Candidate]] = {}

    def compile(self, problem: Problem, candidate: Candidate) -> Future[Compilation]:
        key = candidate, problem.specialization
        if key not in self.known or self.known[key].cancelled():
            compiled = super().compile
            self.known[key] = self.compilers.submit(
                self.compile_s, lambda: compiled(problem, candidate).result()
            )
        return self.known[key]

    def evaluate(self, problem, candidate, best_ms) -> Future[Evaluation]:
        evaluated = super().evaluate
        return self.gpu.submit(
            self.evaluate_s, lambda: evaluated(problem, candidate, best_ms).result()
        )

    def race(self, problem, *asked) -> Future[Race]:
        entrants, *_, hopefuls = asked
        self.races[problem] = [*entrants, *hopefuls]
        raced = super().race
        return self.gpu.submit(self.race_s, lambda: raced(problem, *asked).result())


def run(
    executor: SlowExecutor, store: Store, *problems: Problem, inherited=(), **options
) -> tuple[list[Record | None], list[Event], float]:
    events: list[Event] = []
    began = executor.time.now
    found = search(problems, executor, store, inherited, Options(**options), events.append)
    return found, events, executor.time.now - began


Slow = Callable[..., SlowExecutor]


@pytest.fixture(autouse=True)
def slow(virtual_time: VirtualTime) -> Slow:
    return partial(SlowExecutor, virtual_time)


def test_the_default_is_waited_for_beyond_an_equal_share(
    toy: ToyTemplate, store: Store, slow: Slow
) -> None:
    # A third of the budget is 1.5 s, a compilation 1.8 s.
    problems = [problem(s) for s in (8192, 4096, 2048)]
    found, _, seconds = run(slow(1.8), store, *problems, budget_s=4.5)
    assert all(found)
    assert all(one.default_ms is not None for one in found if one)
    assert seconds < 6.5


def test_the_first_problem_is_cut_short_says_so_and_is_revisited(
    toy: ToyTemplate, store: Store, slow: Slow
) -> None:
    problems = [problem(s) for s in (8192, 4096, 2048)]
    found, events, seconds = run(slow(0.3), store, *problems, trials=30, budget_s=4.0)
    assert seconds < 4.5
    started = [e for e in events if isinstance(e, ProblemStarted)]
    ended = [e for e in events if isinstance(e, ProblemEnded)]
    assert started[0].problem == problems[0]
    assert ended[0].cut_short
    assert ended[0].record is not None
    assert re.search(r"cut short after (\d|[12]\d) of 30 trials$", ended[0].record.note)
    again = [e for e in ended[1:] if e.problem == problems[0]]
    if again and again[-1].record:
        assert found[0] == again[-1].record
        assert ended[0].record.uid in again[-1].record.supersedes


@pytest.mark.parametrize("ends_at", [3, 8])
def test_a_search_that_has_all_its_trials_when_time_is_up_is_not_cut_short(
    toy: ToyTemplate, store: Store, ends_at: int
) -> None:
    clock, budget_s, trials = Clock(), 10.0, 8

    def watch(event: Event) -> None:
        if isinstance(event, TrialEnded) and event.done == ends_at:
            clock.now += budget_s

    of = problem()
    candidates = enumerate_candidates(of.specialization, 90)
    explored = Exploration(of, candidates, ToyExecutor(), store, [], [], "random", 0, trials)
    explored.run(watch, budget=Budget(budget_s, 1, clock))
    assert len(explored.trials) == trials - explored.left
    assert explored.cut_short == (ends_at < trials) == (explored.left > 0)
    again = Exploration(of, candidates, ToyExecutor(), store, [], [], "random", 0, trials)
    assert again.left == explored.left  # what is known already is not made again


def test_finals_take_no_longer_than_there_is_time_for(toy: ToyTemplate, store: Store) -> None:
    courses: list[tuple[int, float]] = []

    class Noting(ToyExecutor):
        def race(self, problem, entrants, rounds, decide_s=0.0, hopefuls=()) -> Future[Race]:
            courses.append((rounds, decide_s))
            return super().race(problem, entrants, rounds, decide_s, hopefuls)

    def course(seqlen: int, **options) -> tuple[int, float]:
        search([problem(seqlen)], Noting(), store, (), Options(trials=8, **options))
        return courses[-1]

    rounds = Options().rounds
    assert course(512) == (rounds, DECIDE_S)
    assert course(1024, budget_s=600.0) == (rounds, DECIDE_S)
    few, decide_s = course(2048, budget_s=5.0)
    assert few < rounds
    assert 0 < decide_s < 2
    assert course(4096, budget_s=2.0) == (few, 0.0)


def test_a_problem_whose_default_is_not_there_in_time_leaves_no_record(
    toy: ToyTemplate, store: Store, slow: Slow
) -> None:
    found, events, seconds = run(slow(1.5), store, problem(), problem(512), budget_s=0.5)
    assert found == [None, None]
    assert store.records() == []
    assert seconds < 0.5
    (ended,) = [e for e in events if isinstance(e, ProblemEnded)]
    assert ended.cut_short
    assert [type(e) for e in events[-1:]] == [ProblemSkipped]


def test_neighbours_winners_race_though_time_is_short(
    toy: ToyTemplate, store: Store, slow: Slow
) -> None:
    neighbour = record(problem(8192), config=BEST.config)
    executor = slow(0.2)
    (found,), _, _ = run(
        executor, store, problem(4096), inherited=[neighbour], trials=60, budget_s=1.0
    )
    assert {DEFAULT, BEST} <= set(executor.races[problem(4096)])
    assert found is not None
    assert latency(problem(), found.candidate.config) <= latency(problem(), BEST.config)


def test_a_cut_short_search_is_no_reason_to_skip_the_next(
    toy: ToyTemplate, store: Store, slow: Slow
) -> None:
    run(slow(0.2), store, problem(), budget_s=0.7)
    (one,) = store.records()
    assert "cut short" in one.note
    (found,), _, _ = run(slow(0.0), store, problem(), inherited=[one])
    assert found is not None
    assert "cut short" not in found.note
    assert one.uid in found.supersedes
    assert len(store.trials()) == 60


def test_a_forced_search_that_was_cut_short_is_no_reason_either(
    toy: ToyTemplate, store: Store, slow: Slow
) -> None:
    (whole,), _, _ = run(slow(0.0), store, problem())
    (short,), _, _ = run(slow(0.2), store, problem(), inherited=[whole], force=True, budget_s=0.7)
    assert short is not None
    assert whole is not None
    assert whole.uid in short.supersedes
    assert "cut short" in short.note
    (found,), events, _ = run(slow(0.0), store, problem(), inherited=[short])
    assert not [e for e in events if isinstance(e, ProblemSkipped)]
    assert found is not None
    assert "cut short" not in found.note


def test_a_stale_record_is_not_replaced_by_a_search_that_was_cut_short(
    toy: ToyTemplate, store: Store, slow: Slow
) -> None:
    config = Config(BLOCK_M=999)  # of a space that is no more
    stale = record(problem(), config=config, ms=1e-6, template_version="an older one")
    (short,), _, _ = run(slow(0.2), store, problem(), inherited=[stale], budget_s=0.7, trials=50)
    assert short is not None
    assert short.supersedes == ()
    (whole,), _, _ = run(slow(0.0), store, problem(), inherited=[stale], trials=50)
    assert whole is not None
    assert stale.uid in whole.supersedes


def test_the_next_specialization_finds_its_first_binaries(
    toy: ToyTemplate, store: Store, slow: Slow
) -> None:
    moments: list[tuple[float, Event]] = []
    compile_s, race_s = 0.5, 0.2
    executor = slow(compile_s, race_s=race_s)
    search(
        [problem(), problem(causal=False)], executor, store, [], Options(trials=16),
        lambda event: moments.append((executor.time.now, event)),
    )  # fmt: skip
    waits = []
    for at, started in moments:
        if isinstance(started, ProblemStarted):
            first = next(t for t, e in moments if t > at and isinstance(e, TrialEnded))
            waits.append(first - at)
    assert waits[0] > compile_s
    assert waits[1] < compile_s - race_s  # compiled beside the finals
