"""Who may be the fastest, by few timings each; and more of these while a GPU has nothing to try.

What the finals must tell apart is the less the better the trials have: so a wait for the compiler
is no time lost.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from kernels.attention.problem import Problem
from tuner.evaluate.executor import Evaluation, Executor
from tuner.evaluate.timing import PLACES, SLOWER
from tuner.moments import now
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
        self._timings: dict[Candidate, list[Measurement]] = {}  # where more than one
        self._again: dict[Future[Evaluation], Candidate] = {}

    @property
    def under_way(self) -> tuple[Future[Evaluation], ...]:
        """What is being timed again."""
        return tuple(self._again)

    def among(self, ranking: Sequence[Trial], but: Container[Candidate] = ()) -> list[Candidate]:
        """Those of `ranking`, all trials that ended ok, the fastest first, that may be the fastest,
        and are not among `but`. There are as many as there are places in the finals at least, lest
        one figure that is far too good leave no other."""
        fastest = [trial for trial in ranking if trial.candidate not in but][:HOPEFULS]
        return [
            trial.candidate
            for place, trial in enumerate(fastest)
            if place < PLACES or _steady_ms(trial) <= self._bar(trial, ranking[0])
        ]

    def time_again(self, ranking: Sequence[Trial], gpus: int) -> None:
        """Keep so many GPUs busy with hopefuls that have not been timed often enough, those with
        the fewest timings first."""
        counts = {c: self._count(c) for c in self.among(ranking)}
        for candidate in self._again.values():
            counts[candidate] = ENOUGH
        while len(self._again) < gpus:
            if not counts or min(counts.values()) >= ENOUGH:
                return
            candidate = min(counts, key=counts.__getitem__)
            counts[candidate] = ENOUGH
            future = self._executor.evaluate(self._problem, candidate, None)
            self._again[future] = candidate

    def take(self, trials: Mapping[Candidate, Trial]) -> list[tuple[Evaluation, Trial]]:
        """What was timed again since the last call, and what `trials` are by that: one counts by
        its middling timing, and ends as it last did."""
        ended = [future for future in self._again if future.done()]
        for future in ended:
            del self._again[future]
        evaluated = [future.result() for future in ended if not future.cancelled()]
        return [(each, self._amended(trials[each.candidate], each)) for each in evaluated]

    def pause(self) -> None:
        """Begin no more of what was asked for, and forget what is under way."""
        for future in self._again:
            future.cancel()
        self._again.clear()

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
        assert trial.measurement is not None
        timings = self._timings.setdefault(trial.candidate, [trial.measurement])
        timings.append(measured)
        alike = [m for m in timings if (m.cycles is None) == (timings[0].cycles is None)]
        return sorted(alike, key=lambda m: m.steady_ms)[(len(alike) - 1) // 2]

    def _count(self, candidate: Candidate) -> int:
        """How often it was timed."""
        return len(self._timings.get(candidate, [None]))

    def _bar(self, trial: Trial, best: Trial) -> float:
        sure = all(self._known_well(each) for each in (trial, best))
        return (SURELY_SLOWER if sure else SLOWER) * _steady_ms(best)

    def _known_well(self, trial: Trial) -> bool:
        measured = trial.measurement
        counted = measured is not None and measured.cycles is not None
        return counted and self._count(trial.candidate) >= ENOUGH


def _steady_ms(trial: Trial) -> float:
    assert trial.measurement is not None
    return trial.measurement.steady_ms
