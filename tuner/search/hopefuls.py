"""Who may be the fastest, by few timings each; and more of these while a GPU has nothing to try.

What the finals must tell apart is the less the better the trials are known: so a wait for the
compiler is no time lost.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from kernels.attention.problem import Problem
from tuner.evaluate.executor import Evaluation, Executor
from tuner.evaluate.timing import PLACES, SLOWER
from tuner.moments import now
from tuner.search.credible import credible_evaluation
from tuner.trial import Candidate, Measurement, Outcome, Trial

# The fastest of the exploration that compete for places in the finals, at most. Two trials of one
# config differ by up to 1 % in cycles, by 5 % where none are counted: at D128 S8192 causal (H200)
# 11 lie within 4 % of the best of their space.
HOPEFULS = 16
# So many timings of a config are enough: by cycles the middling one is right within half a per
# cent, and who is then further behind than this is not the fastest.
ENOUGH = 3
SURELY_SLOWER = 1.02


class Hopefuls:
    """Those of one problem's trials that may be the fastest."""

    def __init__(self, problem: Problem, executor: Executor) -> None:
        self._problem = problem
        self._executor = executor
        self._timings: dict[Candidate, list[Measurement]] = {}  # of those timed more than once
        self._under_way: dict[Future[Evaluation], Candidate] = {}

    @property
    def under_way(self) -> tuple[Future[Evaluation], ...]:
        """What is being timed again."""
        return tuple(self._under_way)

    def among(self, ranking: Sequence[Trial], but: Container[Candidate] = ()) -> list[Candidate]:
        """Those of `ranking`, all trials that ended ok, the fastest first, that may be the fastest,
        and are not among `but`. There are as many as there are places in the finals at least, lest
        one figure that is far too good leave no other."""
        fastest = [trial for trial in ranking if trial.candidate not in but][:HOPEFULS]
        return [
            trial.candidate
            for place, trial in enumerate(fastest)
            if place < PLACES or trial.measured.steady_ms <= self._bar(trial, ranking[0])
        ]

    def time_again(self, ranking: Sequence[Trial], gpus: int, but: Container[Candidate]) -> None:
        """Keep so many GPUs busy with hopefuls that have not been timed often enough and are not
        among `but`, those with the fewest timings first."""
        busy = self._under_way.values()
        hopefuls = [c for c in self.among(ranking) if c not in but and c not in busy]
        free = [candidate for candidate in hopefuls if self._count(candidate) < ENOUGH]
        for candidate in sorted(free, key=self._count)[: max(0, gpus - len(busy))]:
            future = self._executor.evaluate(self._problem, candidate, None)
            self._under_way[future] = candidate

    def take(self, trials: Mapping[Candidate, Trial]) -> Iterator[tuple[Evaluation, Trial]]:
        """What was timed again since the last call, and what of `trials` that is now: one counts by
        its middling timing, of two by the slower, and ends as it last did."""
        for future in [future for future in self._under_way if future.done()]:
            del self._under_way[future]
            evaluated = credible_evaluation(future.result())
            yield evaluated, self._amended(trials[evaluated.candidate], evaluated)

    def withdraw(self) -> None:
        """Ask no more for what no GPU has begun with."""
        for future in [future for future in self._under_way if future.cancel()]:
            del self._under_way[future]

    def forget(self) -> None:
        """Whatever becomes of what is under way."""
        self.withdraw()
        self._under_way.clear()

    def _amended(self, trial: Trial, again: Evaluation) -> Trial:
        measured = again.measurement
        if again.outcome is Outcome.OK and measured is not None:
            measured = self._middling(trial, measured)
        return replace(
            trial,
            outcome=again.outcome,
            reason=again.reason or trial.reason,
            measurement=measured,
            measured_at=now(),
        )

    def _middling(self, trial: Trial, measured: Measurement) -> Measurement:
        timings = self._timings.setdefault(trial.candidate, [trial.measured])
        timings.append(measured)
        alike = [each for each in timings if each.cycles is not None] or timings
        return sorted(alike, key=lambda each: each.steady_ms)[len(alike) // 2]

    def _count(self, candidate: Candidate) -> int:
        """How often it was timed."""
        return len(self._timings.get(candidate, [None]))

    def _bar(self, trial: Trial, best: Trial) -> float:
        sure = self._known_well(trial.candidate) and self._known_well(best.candidate)
        return (SURELY_SLOWER if sure else SLOWER) * best.measured.steady_ms

    def _known_well(self, candidate: Candidate) -> bool:
        timings = self._timings.get(candidate, [])
        return sum(each.cycles is not None for each in timings) >= ENOUGH
