"""Exploring one problem: candidates are compiled ahead, evaluated as they are ready, and told."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from kernels.attention import registry
from kernels.attention.problem import Problem, Specialization
from tuner.evaluate.executor import Compilation, Evaluation, Executor
from tuner.record import Record
from tuner.search import neighbours
from tuner.search.candidates import CandidateSet
from tuner.search.events import Observer, ProblemStarted, Seconds, TrialEnded
from tuner.search.proposals import Proposals
from tuner.search.space import search_space
from tuner.store import Store
from tuner.trial import Candidate, Outcome, Trial

# Of a problem's time, what is kept for the finals: this fraction, at most so many seconds.
_FINALS_SHARE, _FINALS_SECONDS = 0.3, 4.0


class Exploration:
    """The trials of one problem.

    Args:
        trials: how many trials to have in the end, those of earlier searches included.
        forget: do not count on trials of earlier searches.
        deadline: on the monotonic clock, finals included; None for no limit.
        binaries: what earlier problems compiled already, and so costs no more; added to.
    """

    def __init__(
        self,
        problem: Problem,
        candidates: CandidateSet,
        executor: Executor,
        store: Store,
        records: Iterable[Record],
        sampler: str,
        seed: int,
        trials: int,
        forget: bool = False,
        deadline: float | None = None,
        binaries: set[tuple[Candidate, Specialization]] | None = None,
    ) -> None:
        self.problem = problem
        self.candidates = candidates
        self.executor = executor
        self.trials: dict[Candidate, Trial] = {}
        self.counts: Counter[Outcome] = Counter()
        self.reasons: Counter[str] = Counter()
        self.seconds = Seconds()
        self._store = store
        if not forget:
            for trial in self._recalled(problem):
                self._keep(trial)
        capability = executor.target.hardware.capability
        self.defaults = tuple(
            Candidate(name, registry.get(name).default(problem, capability))
            for name in dict.fromkeys(c.template for c in candidates.feasible)
        )
        space = search_space(candidates, problem, executor.target.hardware)
        records = list(records)
        prior = None
        if sampler == "surrogate":
            prior = neighbours.prior(problem, records, space, self._recalled)
        self._proposals = Proposals(
            space, sampler, seed, self.trials.values(),
            [*self.defaults, *neighbours.winners(problem, records)], prior,
        )  # fmt: skip
        self._known = len(self.trials)
        self._target = max(0, trials - self._known)
        self._started = 0
        self._done = 0
        self._deadline = deadline
        self._binaries = set() if binaries is None else binaries
        self._compiling: dict[Future[Compilation], Candidate] = {}
        self._evaluating: dict[Future[Evaluation], Compilation] = {}
        self._ready: deque[Compilation] = deque()

    @property
    def best(self) -> Trial | None:
        """The fastest trial that ended ok."""
        ranked = self.ranking()
        return ranked[0] if ranked else None

    def ranking(self) -> list[Trial]:
        """All trials that ended ok, fastest first."""
        right = [trial for trial in self.trials.values() if trial.outcome is Outcome.OK]
        return sorted(right, key=self._rank)

    def run(self, observer: Observer, index: int = 0, count: int = 1) -> None:
        """Try candidates until there are enough trials, none is left, or time is up."""
        began = time.monotonic()
        observer(
            ProblemStarted(
                self.problem, index, count, len(self.candidates.feasible),
                self.candidates.rejected, self._known, min(self._target, self._proposals.left),
            )
        )  # fmt: skip
        try:
            while self._submit():
                now = time.monotonic()
                under_way: list[Future[Any]] = [*self._evaluating, *self._compiling]
                done, _ = wait(
                    under_way,
                    timeout=self._time_left(began),
                    return_when=FIRST_COMPLETED,
                )
                if not self._evaluating:
                    waited = time.monotonic() - now
                    self.seconds = replace(self.seconds, waiting=self.seconds.waiting + waited)
                if not done:
                    return  # time is up
                for future in under_way:  # in the order of submission: the same seed, the same run
                    if future in done:
                        self._collect(future, observer, began)
                if self._time_left(began) == 0:
                    return  # also where results are there at once, as in a replay
        finally:
            self._abandon()

    def _submit(self) -> bool:
        """Keep compilers and GPUs busy; False when nothing is under way any more."""
        while self._ready and len(self._evaluating) < self.executor.evaluate_slots:
            compiled = self._ready.popleft()
            best = self.best
            future = self.executor.evaluate(
                self.problem,
                compiled.candidate,
                best.measurement.median_ms if best and best.measurement else None,
            )
            self._evaluating[future] = compiled
        ahead = self.executor.compile_slots + self.executor.evaluate_slots
        while self._started < self._target and len(self._compiling) + len(self._ready) < ahead:
            candidate = self._proposals.next()
            if candidate is None:
                break
            self._started += 1
            self._compiling[self.executor.compile(self.problem, candidate)] = candidate
        return bool(self._compiling or self._evaluating or self._ready)

    def _collect(self, future: Future[Any], observer: Observer, began: float) -> None:
        if future in self._compiling:
            del self._compiling[future]
            compiled: Compilation = future.result()
            binary = (compiled.candidate, self.problem.specialization)
            if binary not in self._binaries:
                self._binaries.add(binary)
                spent = self.seconds.compiling + compiled.seconds
                self.seconds = replace(self.seconds, compiling=spent)
            if compiled.outcome is Outcome.OK:
                self._ready.append(compiled)
            else:
                self._end(compiled, None, observer, began)
        else:
            compiled = self._evaluating.pop(future)
            evaluated: Evaluation = future.result()
            self.seconds = replace(
                self.seconds, evaluating=self.seconds.evaluating + evaluated.seconds
            )
            self._end(compiled, evaluated, observer, began)

    def _end(
        self,
        compiled: Compilation,
        evaluated: Evaluation | None,
        observer: Observer,
        began: float,
    ) -> None:
        last = evaluated or compiled
        candidate = compiled.candidate
        trial = Trial(
            problem=self.problem,
            target=self.executor.target,
            candidate=candidate,
            template_version=self.executor.template_version(self.problem, candidate.template),
            outcome=last.outcome,
            origin=self.executor.origin,
            measured_at=utc_now(),
            reason=last.reason,
            measurement=evaluated.measurement if evaluated else None,
            resources=compiled.resources,
            compile_s=compiled.seconds,
            evaluate_s=evaluated.seconds if evaluated else None,
        )
        self._proposals.tell(trial)
        if trial.outcome is Outcome.REJECTED:
            self._started -= 1  # costs no trial, and is nothing to keep
            return
        self._store.add_trial(trial)
        self._keep(trial)
        self._done += 1
        left = self._target - self._done
        elapsed = time.monotonic() - began
        eta = elapsed / self._done * left
        if self._deadline is not None:
            eta = min(eta, max(0.0, self._deadline - time.monotonic()))
        observer(TrialEnded(trial, self._done, self._target, self.best, dict(self.counts), eta))

    def _keep(self, trial: Trial) -> None:
        self.trials[trial.candidate] = trial
        self.counts[trial.outcome] += 1
        if trial.outcome not in (Outcome.OK, Outcome.PRUNED):
            self.reasons[f"{trial.outcome.value}: {trial.reason}"] += 1

    def _recalled(self, problem: Problem) -> list[Trial]:
        """The trials of earlier searches for `problem` that still hold."""
        target = self.executor.target
        stored = self._store.trials(problem=problem, hardware=target.hardware, triton=target.triton)
        return [
            trial
            for trial in stored
            if trial.origin == self.executor.origin
            and trial.candidate in self.candidates
            and trial.template_version
            == self.executor.template_version(problem, trial.candidate.template)
        ]

    def _rank(self, trial: Trial) -> tuple[float, int]:
        assert trial.measurement is not None
        return trial.measurement.median_ms, self.candidates.rank(trial.candidate)

    def _time_left(self, began: float) -> float | None:
        if self._deadline is None:
            return None
        total = max(0.0, self._deadline - began)
        reserve = min(_FINALS_SHARE * total, _FINALS_SECONDS)
        return max(0.0, self._deadline - reserve - time.monotonic())

    def _abandon(self) -> None:
        under_way: list[Future[Any]] = [*self._compiling, *self._evaluating]
        for future in under_way:
            future.cancel()
        self._compiling.clear()
        self._evaluating.clear()
        self._ready.clear()


def utc_now() -> str:
    """This moment in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
