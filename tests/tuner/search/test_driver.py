from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from kernels.attention.config import Config
from kernels.attention.problem import Problem
from tuner.evaluate.executor import Compilation
from tuner.evaluate.timing import PLACES
from tuner.resolve import resolve
from tuner.search import samplers
from tuner.search.candidates import enumerate_candidates
from tuner.search.driver import search
from tuner.search.events import Event, ProblemEnded, ProblemSkipped, ProblemStarted, TrialEnded
from tuner.search.options import Options
from tuner.store.database import Store
from tuner.trial import Candidate, Outcome

from .conftest import H100, SMALL, ToyExecutor, ToyTemplate, done, latency, problem, record

P = problem()
BEST = Candidate("toy", Config(BLOCK_M=128, BLOCK_N=64, num_stages=3, flag=True))
DEFAULT = Candidate("toy", ToyTemplate().default(P, 90))


def run(executor: ToyExecutor, store: Store, *problems, inherited=(), **options):
    events: list[Event] = []
    results = search(problems or [P], executor, store, inherited, Options(**options), events.append)
    return results, events


def test_exhaustive_finds_the_optimum_and_keeps_all(executor: ToyExecutor, store: Store) -> None:
    (found,), events = run(executor, store, sampler="exhaustive")
    assert found is not None
    assert found.candidate == BEST
    assert found.default_ms is not None
    assert found.default_ms > found.measurement.median_ms
    assert [peer.name for peer in found.peers] == ["cudnn"]
    assert store.records() == [found]
    started = next(e for e in events if isinstance(e, ProblemStarted))
    assert started.feasible == len(store.trials()) == len(set(executor.evaluated))
    assert started.feasible + started.rejected == 5 * 4 * 4 * 2


def test_the_default_search_gets_close(executor: ToyExecutor, store: Store) -> None:
    (found,), _ = run(executor, store)
    assert found is not None
    assert latency(P, found.candidate.config) <= 1.03 * latency(P, BEST.config)
    assert executor.evaluated[0] == DEFAULT
    assert len(store.trials()) == 60


def test_faults_are_outcomes_and_never_win(executor: ToyExecutor, store: Store) -> None:
    executor.faults = {
        BEST: Outcome.WRONG,
        DEFAULT: Outcome.CRASHED,
        Candidate("toy", Config(BLOCK_M=128, BLOCK_N=64, num_stages=3, flag=False)): (
            Outcome.TIMEOUT
        ),
        Candidate("toy", Config(BLOCK_M=128, BLOCK_N=64, num_stages=2, flag=True)): (
            Outcome.COMPILE_ERROR
        ),
    }
    (found,), events = run(executor, store, sampler="exhaustive")
    assert found is not None
    assert found.candidate not in executor.faults
    assert not set(executor.raced) & set(executor.faults)
    assert found.default_ms is None
    ended = next(e for e in events if isinstance(e, ProblemEnded))
    assert ended.counts[Outcome.WRONG] == ended.counts[Outcome.CRASHED] == 1
    stored = {t.candidate: t.outcome for t in store.trials()}
    assert all(stored[c] is outcome for c, outcome in executor.faults.items())


def test_everything_fails(executor: ToyExecutor, store: Store) -> None:

    feasible = enumerate_candidates(P.specialization, 90).feasible
    executor.faults = dict.fromkeys(feasible, Outcome.WRONG)
    (found,), events = run(executor, store, trials=12)
    assert found is None
    assert store.records() == []
    ended = next(e for e in events if isinstance(e, ProblemEnded))
    assert dict(ended.reasons) == {"wrong: it was wrong": 12}
    assert resolve(store.records(), H100, P).source == "default"


@pytest.mark.parametrize(("handicap", "wins"), [(1.04, True), (1.3, False)])
def test_who_was_unlucky_in_its_trial_wins_by_the_heat(
    toy: ToyTemplate, store: Store, handicap: float, wins: bool
) -> None:
    class Unlucky(ToyExecutor):
        def evaluate(self, problem: Problem, candidate: Candidate, best_ms: float | None):
            self.latency = lambda problem, config: (
                latencies(problem, config) * (handicap if candidate == BEST else 1.0)
            )
            try:
                return super().evaluate(problem, candidate, best_ms)
            finally:
                self.latency = latencies

    def latencies(problem: Problem, config: Config) -> float:
        """Eight configs are near the best."""
        close = config["BLOCK_M"] == 128 and config["BLOCK_N"] == 64
        order = int(config["num_stages"]) - 1 + 4 * (not config["flag"])
        return 1.0 if config == BEST.config else 1.01 + 0.002 * order if close else 1.2

    executor = Unlucky(noise=1e-4)
    (found,), _ = run(executor, store, sampler="exhaustive")
    by_trial = sorted(store.trials(), key=lambda t: t.measurement.median_ms)
    assert [t.candidate for t in by_trial].index(BEST) >= PLACES
    assert found is not None
    assert (found.candidate == BEST) is wins


def test_the_default_is_kept_where_nothing_beats_it(executor: ToyExecutor, store: Store) -> None:
    executor.latency = lambda problem, config: 1.0
    (found,), _ = run(executor, store, trials=15)
    assert found is not None
    assert found.candidate == DEFAULT
    assert "default" in found.note


def test_the_default_is_kept_where_another_is_faster_by_less_than_is_worth_it(
    executor: ToyExecutor, store: Store
) -> None:
    faster = Config(BLOCK_M=128, BLOCK_N=64, num_stages=3, flag=True)
    assert faster != DEFAULT.config
    times = {faster: 0.999, DEFAULT.config: 1.0}
    executor.noise = 1e-4
    executor.latency = lambda problem, config: times.get(config, 1.05)
    (found,), _ = run(executor, store, sampler="exhaustive")
    assert Candidate("toy", faster) in executor.raced
    assert found is not None
    assert found.candidate == DEFAULT
    assert found.note == "the default is kept: no candidate was faster beyond the noise"


def test_the_incumbent_races_and_the_verdict_stands(executor: ToyExecutor, store: Store) -> None:
    config = Config(BLOCK_M=128, BLOCK_N=32, num_stages=3, flag=True)
    lucky = record(P, config=config, ms=0.0001)
    (found,), _ = run(executor, store, inherited=[lucky], trials=5)
    assert found is not None
    assert lucky.candidate in executor.raced
    assert lucky.uid in found.supersedes


def nearly_flat(of: Problem, config: Config) -> float:
    """Four configs within a few tenths of a percent; all others 5 % and more slower."""
    if config["BLOCK_M"] == 128 and config["BLOCK_N"] == 64 and int(config["num_stages"]) in (2, 3):
        return 1.0 + 0.001 * (2 * (config["num_stages"] == 2) + (config["flag"] is False))
    return 1.05 * latency(of, config)


@pytest.mark.parametrize("sampler", ["exhaustive", samplers.DEFAULT])
@pytest.mark.parametrize("rounds", [16, 40])
@pytest.mark.parametrize("noise", [0.0005, 0.004])
def test_two_searches_that_differ_both_name_the_other_winner(
    toy: ToyTemplate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: float, rounds: int,
    sampler: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(ToyTemplate, "space", lambda self, specialization: SMALL)
    found = []
    for seed in range(12):
        with Store.open(tmp_path / f"{seed}.db") as store:
            executor = ToyExecutor(noise, seed)
            executor.latency = nearly_flat
            (one,), _ = run(executor, store, sampler=sampler, seed=seed, rounds=rounds)
        assert one is not None
        found.append(one)
    assert len({one.candidate for one in found}) > 1  # else there was nothing to tell
    for one, other in permutations(found, 2):
        assert one.candidate == other.candidate or str(other.candidate) in one.tied


@pytest.mark.parametrize("sampler", ["surrogate", "tpe"])
def test_two_searches_by_other_seeds_crown_the_same(
    toy: ToyTemplate, tmp_path: Path, sampler: str
) -> None:
    found = set()
    for seed in range(4):
        with Store.open(tmp_path / f"{seed}.db") as store:
            (one,), _ = run(ToyExecutor(0.01, seed), store, sampler=sampler, seed=seed)
        assert one is not None
        found.add(one.candidate)
    assert found == {BEST}


def test_trials_by_time_are_no_trials_where_cycles_are_counted(
    executor: ToyExecutor, store: Store
) -> None:
    run(executor, store, trials=10)
    run(executor, store, trials=10)
    assert len(executor.evaluated) == 10
    executor.counts_cycles = True
    run(executor, store, trials=10)
    assert len(executor.evaluated) == 20


@pytest.mark.parametrize(
    ("outcome", "times", "known"),
    [(Outcome.PRUNED, 4.0, True), (Outcome.PRUNED, 1.0, False), (Outcome.OK, 4.0, False)],
)
def test_without_cycles_a_trial_counts_whose_slowness_no_clock_explains(
    toy: ToyTemplate, store: Store, outcome: Outcome, times: float, known: bool
) -> None:
    class Counting(ToyExecutor):
        """Every fifth trial is too short to count in."""

        counts_cycles = True

        def evaluate(self, problem, candidate, best_ms):
            one = super().evaluate(problem, candidate, best_ms).result()
            ms, kind = 1.0 + len(self.evaluated) / 100, Outcome.OK
            cycles: float | None = 1.5e6 * ms
            if len(self.evaluated) % 5 == 0:
                ms, cycles, kind = times, None, outcome
            measured = replace(one.measurement, median_ms=ms, cycles=cycles)
            return done(replace(one, outcome=kind, measurement=measured))

    executor = Counting()
    run(executor, store, trials=20)
    _, events = run(executor, store, trials=20)
    assert len(executor.evaluated) == (20 if known else 24)
    assert any(isinstance(event, ProblemSkipped) for event in events) == known


def test_force_measures_anew_and_supersedes(executor: ToyExecutor, store: Store) -> None:
    (first,), _ = run(executor, store, trials=10)
    (second,), _ = run(executor, store, inherited=[first], trials=10, force=True)
    assert first is not None
    assert second is not None
    assert first.uid in second.supersedes
    assert len(executor.evaluated) == 20


def test_neighbours_seed_each_other(executor: ToyExecutor, store: Store) -> None:
    run(executor, store, problem(8192), problem(4096), trials=40)
    first = next(r for r in store.records() if r.problem.seqlen == 8192)
    # Behind what was proposed before its finals were over.
    assert first.candidate in executor.evaluated[40 : 40 + executor.compile_slots + 2]


def test_refused_and_unserved_problems_are_skipped(executor: ToyExecutor, store: Store) -> None:
    results, events = run(executor, store, problem(7), P, trials=5)
    assert results[0] is None
    assert results[1] is not None
    skipped = [e for e in events if isinstance(e, ProblemSkipped)]
    assert [e.reason for e in skipped] == ["not this one"]


def test_a_rejection_by_the_executor_costs_no_trial(executor: ToyExecutor, store: Store) -> None:
    executor.faults = {BEST: Outcome.REJECTED, DEFAULT: Outcome.REJECTED}
    run(executor, store, trials=10)
    assert len(store.trials()) == 10
    assert not {t.candidate for t in store.trials()} & {BEST, DEFAULT}


def test_progress_counts_up_to_the_total_with_best_and_eta(
    executor: ToyExecutor, store: Store
) -> None:
    _, events = run(executor, store, trials=8)
    ended = [e for e in events if isinstance(e, TrialEnded)]
    assert [e.done for e in ended] == list(range(1, 9))
    assert all(e.trials == 8 for e in ended)
    first, *later = (e.eta_s for e in ended)
    assert first is None  # which had to wait for processes and compilers, as no other has
    assert all(eta is not None and eta >= 0 for eta in later)
    assert later[-1] == 0
    best = [e.best.measurement.median_ms for e in ended if e.best]
    assert best == sorted(best, reverse=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"trials": 0}, "trials is 0"),
        ({"budget_s": 0.0}, "budget is 0s"),
        ({"budget_s": float("nan")}, "budget is nan"),
        ({"sampler": "luck"}, "sampler is 'luck'"),
        ({"rounds": 1}, "rounds is 1"),
    ],
)
def test_bad_options_are_named(options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Options(**options)


def test_a_winner_under_an_older_triton_is_tried_and_races(
    executor: ToyExecutor, store: Store
) -> None:
    config = Config(BLOCK_M=16, BLOCK_N=16, num_stages=1, flag=False)  # slow: nobody asks for it
    older = record(P, config=config, target=replace(H100, triton="3.5.0"))
    (found,), _ = run(executor, store, inherited=[older], trials=8)
    assert found is not None
    assert older.candidate in executor.evaluated[:2]
    assert older.candidate in executor.raced
    assert found.supersedes == ()


def test_what_the_next_specialization_will_try_is_compiled_before_its_turn(
    executor: ToyExecutor, store: Store
) -> None:
    asked: list[tuple[bool, Candidate]] = []
    compile_one = executor.compile

    def compile_(of: Problem, candidate: Candidate) -> Future[Compilation]:
        asked.append((of.causal, candidate))
        return compile_one(of, candidate)

    executor.compile = compile_  # type: ignore[method-assign]
    full = problem(4096, causal=False)
    ahead: list[Candidate] = []

    def watch(event: Event) -> None:
        if isinstance(event, ProblemStarted) and event.problem == full:
            ahead.extend(candidate for causal, candidate in asked if not causal)

    search([problem(8192), P, full], executor, store, [], Options(trials=30), watch)
    assert len(set(ahead)) > 20
    assert BEST in ahead
