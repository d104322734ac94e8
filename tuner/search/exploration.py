"""Exploring one problem: candidates are compiled ahead, evaluated as they are ready, and told.

While none is ready, the GPUs time those again that may be the fastest.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from kernels.attention.problem import Problem
from tuner.evaluate.executor import Compilation, Evaluation, Executor
from tuner.moments import now
from tuner.record import Record
from tuner.search import neighbours, samplers
from tuner.search.budget import Budget, Share
from tuner.search.candidates import CandidateSet
from tuner.search.credible import credible_evaluation
from tuner.search.events import Observer, ProblemStarted, Seconds, TimedAgain, TrialEnded
from tuner.search.forerun import Forerunner, Job
from tuner.search.hopefuls import Hopefuls
from tuner.search.objective import MARK
from tuner.search.opening import around, defaults
from tuner.search.proposals import Proposals
from tuner.search.recollection import recalled
from tuner.search.space import search_space
from tuner.search.supply import Supply
from tuner.store.database import Store
from tuner.trial import Candidate, Outcome, Trial

_LIKELY = 8  # candidates that the model thinks of next, for idle compilers
# A candidate whose binary is there is preferred to others of up to so many times its merit; among
# the last trials to nearly any, for whose compilation the GPU would wait with nothing else to do.
_FAVOUR, _FAVOUR_LATE = 10.0, 1e6
_LATE = 12
_LAST_EVALUATION_S = 1.0  # that is waited for when time is up


class Exploration:
    """The trials of one problem. It can be run again after its time was up, and goes on.

    Args:
        records: standing ones, whose winners are tried early.
        others: problems whose trials may be known and say something of this one's.
        trials: how many trials to have in the end, those of earlier searches included.
        forget: do not count on trials of earlier searches for this problem.
        forerunner: who takes the compilers that are left over, and knows all that is compiled.
        apart: as in Options.
    """

    def __init__(
        self,
        problem: Problem,
        candidates: CandidateSet,
        executor: Executor,
        store: Store,
        records: Iterable[Record],
        others: Iterable[Problem],
        sampler: str,
        seed: int,
        trials: int,
        forget: bool = False,
        forerunner: Forerunner | None = None,
        apart: bool = False,
    ) -> None:
        self.problem = problem
        self.candidates = candidates
        self.executor = executor
        self.trials: dict[Candidate, Trial] = {}
        self.counts: Counter[Outcome] = Counter()
        self.reasons: Counter[str] = Counter()
        self.seconds = Seconds()
        self.cut_short = False  # time was up before there were enough trials
        self._apart = apart
        self._store = store
        self._hopefuls = Hopefuls(problem, executor)
        if not forget:
            for trial in recalled(problem, candidates, executor, store):
                self._keep(trial)
        self._recalled = frozenset(self.trials)  # of earlier searches, compiled by nobody here
        self.defaults = defaults(problem, candidates, executor.target.hardware.capability)
        self._required = dict.fromkeys(c for c in self.defaults if c in candidates)
        self._ended = set(self.trials)
        space = search_space(candidates, problem, executor.target.hardware)
        then = neighbours.winners(problem, records, candidates)
        prior = None
        if sampler == "surrogate":
            prior = neighbours.prior(
                problem, others, space, lambda other: recalled(other, candidates, executor, store)
            )
            untried = self.trials.keys() <= set(self.defaults)
            if untried and not then and prior is None:
                then = around(self.defaults, candidates, trials)
        self._proposals = Proposals(
            space, sampler, seed, self.trials.values(), [*self.defaults, *then], prior
        )
        self._sampler = sampler
        patience = samplers.PATIENCE.get(sampler, math.inf)
        self._supply = Supply(executor.compile_slots, executor.evaluate_slots, patience)
        # Of new trials, over all runs: proposed, ended, and how many there shall be.
        self._started = 0
        self._done = 0
        self._target = max(0, trials - len(self.trials))
        self._done_before = 0  # in earlier runs
        self._forerunner = forerunner or Forerunner(executor)
        self._compiling: dict[Future[Compilation], Candidate] = {}
        self._evaluating: dict[Future[Evaluation], Compilation] = {}
        self._ready: deque[Compilation] = deque()
        self._fed = False  # whether anything was given to a GPU yet
        self._recompile: deque[Candidate] = deque()  # proposed, but no longer being compiled
        self._guessed_at = -1  # trials told when the next line was worked out
        self._guesses: Sequence[Job] = ()

    def require(self, candidates: Iterable[Candidate]) -> None:
        """Try these first, and whatever the time until the last call, like the defaults."""
        wanted = [c for c in candidates if c in self.candidates]
        self._required.update(dict.fromkeys(wanted))
        self._proposals.seed(wanted)

    @property
    def required(self) -> tuple[Candidate, ...]:
        """What must be tried before there can be a verdict."""
        return tuple(self._required)

    @property
    def missing(self) -> list[Candidate]:
        """What of it was not."""
        return [candidate for candidate in self._required if candidate not in self._ended]

    @property
    def left(self) -> int:
        """How many trials are still to be made."""
        return self._target - self._done

    @property
    def best(self) -> Trial | None:
        """The fastest trial that ended ok."""
        ranked = self.ranking()
        return ranked[0] if ranked else None

    def ranking(self) -> list[Trial]:
        """All trials that ended ok, fastest first."""
        right = [trial for trial in self.trials.values() if trial.outcome is Outcome.OK]
        return sorted(right, key=self._rank)

    def hopefuls(self, but: Container[Candidate]) -> list[Candidate]:
        """Those besides `but` that may be the fastest, by what timings there are."""
        return self._hopefuls.among(self.ranking(), but)

    def prefetch(self) -> None:
        """Start compiling what will be tried first."""
        self._propose()

    def run(
        self,
        observer: Observer,
        index: int = 0,
        count: int = 1,
        budget: Budget | None = None,
        problems: int = 1,
    ) -> None:
        """Try candidates until there are enough trials, none is left, or time is up.

        Args:
            problems: still to be searched with `budget`, this one included.
        """
        share = Share(budget or Budget(), problems)
        self._done_before = self._done
        required = sum(candidate in self._proposals for candidate in self.missing)
        most = self._started + self._proposals.left
        self._target = min(max(self._target, self._started + required), most)
        observer(
            ProblemStarted(
                self.problem, index, count, len(self.candidates.feasible),
                self.candidates.rejected, len(self.trials), self.left,
            )
        )  # fmt: skip
        self.cut_short = True
        try:
            self._submit()
            idle = share.clock()
            samplers.warm_up(self._sampler)  # while the first candidates are compiled
            while self._submit():
                self._time_again(share)
                if self._compilation_ended:
                    idle = share.clock()  # till now it was the search that kept the GPU waiting
                again = self._hopefuls.under_way
                futures: list[Future[Any]] = [*self._evaluating, *self._compiling, *again]
                left = self._time_left(share)
                timeout = None if math.isinf(left) else left
                done, _ = wait(futures, timeout=timeout, return_when=FIRST_COMPLETED)
                if not self._evaluating and not again:
                    waited = share.clock() - idle
                    self.seconds += Seconds(waiting=waited, starting=0.0 if self._fed else waited)
                idle = share.clock()
                for future in futures:  # in the order of submission: the same seed, the same run
                    if future in done and future not in again:
                        self._collect(future, observer, share)
                self._collect_again(observer, share)
                if self._time_left(share) <= 0:
                    # Also where results are there at once, as in a replay.
                    self._collect_last(observer, share)
                    self.cut_short = self.left > 0
                    return
            self.cut_short = False
            self._collect_last(observer, share)
        finally:
            self._pause()

    def _submit(self) -> bool:
        """Keep compilers and GPUs busy; False when nothing is under way any more."""
        self._feed()
        self._propose()
        free = self.executor.compile_slots - len(self._compiling)
        if free > 0:
            self._forerunner.fill(free, self._likely)
        return bool(self._compiling or self._evaluating or self._ready)

    def _feed(self) -> None:
        """Give the GPUs what is compiled."""
        if self._ready:
            self._hopefuls.withdraw()
        while self._ready and len(self._evaluating) < self.executor.evaluate_slots:
            compiled = self._ready.popleft()
            candidate = compiled.candidate
            future = self.executor.evaluate(self.problem, candidate, self._to_beat(candidate))
            self._supply.evaluating(future)
            self._evaluating[future] = compiled
            self._fed = True

    def _to_beat(self, candidate: Candidate) -> float | None:
        """The steady ms against which the timing of `candidate` may stop early."""
        for trial in self.ranking():
            if trial.measurement and (
                not self._apart or trial.candidate.template == candidate.template
            ):
                return trial.measurement.steady_ms
        return None

    def _propose(self) -> None:
        while self._recompile:
            self._compile(self._recompile.popleft())
        while self._started < self._target and self._supply.has_room(
            len(self._compiling), len(self._ready), len(self.trials), self._proposals.seeded
        ):
            late = self._target - self._started <= _LATE
            self._proposals.favour(
                self._forerunner.compiled(self.problem.specialization),
                by=_FAVOUR_LATE if late else _FAVOUR,
            )
            candidate = self._proposals.next()
            if candidate is None:
                break
            self._started += 1
            self._compile(candidate)

    def _compile(self, candidate: Candidate) -> None:
        future = self.executor.compile(self.problem, candidate)
        self._supply.compiling(future)
        self._compiling[future] = candidate

    def _likely(self) -> Sequence[Job]:
        told = len(self._ended)
        if told != self._guessed_at:
            self._guessed_at = told
            self._guesses = [(self.problem, c) for c in self._proposals.likely(_LIKELY)]
        return self._guesses

    def _collect(self, future: Future[Any], observer: Observer, share: Share) -> None:
        if future in self._compiling:
            candidate = self._compiling.pop(future)
            if future.cancelled():  # by another problem that wanted the same binary
                self._recompile.append(candidate)
                return
            compiled: Compilation = future.result()
            spent = self._forerunner.note(compiled, self.problem.specialization)
            self.seconds += Seconds(compiling=spent)
            if compiled.outcome is Outcome.OK:
                self._ready.append(compiled)
            else:
                self._end(compiled, None, observer, share)
        else:
            compiled = self._evaluating.pop(future)
            evaluated: Evaluation = credible_evaluation(future.result())
            self.seconds += Seconds.of(evaluated)
            self._end(compiled, evaluated, observer, share)

    def _collect_last(self, observer: Observer, share: Share) -> None:
        """What is on a GPU at the end. Where there is one, the finals would wait for it anyway."""
        self._hopefuls.withdraw()
        futures = [*self._evaluating, *self._hopefuls.under_way]
        done, _ = wait(futures, timeout=_LAST_EVALUATION_S)
        for future in [future for future in self._evaluating if future in done]:
            self._collect(future, observer, share)
        self._collect_again(observer, share)

    @property
    def _compilation_ended(self) -> bool:
        return any(future.done() for future in self._compiling)

    def _time_again(self, share: Share) -> None:
        """Give GPUs for which nothing is compiled what may be the fastest."""
        free = self.executor.evaluate_slots - len(self._evaluating)
        busy = self._apart or self._ready or self._compilation_ended or free <= 0
        if not busy and self._compiling and share.left > 0:
            self._hopefuls.time_again(self.ranking(), free, but=self._recalled)

    def _collect_again(self, observer: Observer, share: Share) -> None:
        """What was timed again. The sampler, which was told the first timing, learns of it in the
        next search."""
        for evaluated, trial in self._hopefuls.take(self.trials):
            self.seconds += Seconds.of(evaluated)
            self.counts[self.trials[trial.candidate].outcome] -= 1
            self._keep(trial)
            try:
                self._time_again(share)  # the GPU need not wait until this is stored
            finally:
                self._store.add_trial(trial)
            observer(TimedAgain(trial, self.best, dict(self.counts)))

    def _end(
        self,
        compiled: Compilation,
        evaluated: Evaluation | None,
        observer: Observer,
        share: Share,
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
            measured_at=now(),
            reason=last.reason or (MARK if self.executor.cold and evaluated else ""),
            measurement=evaluated.measurement if evaluated else None,
            resources=compiled.resources,
            compile_s=compiled.seconds,
            evaluate_s=evaluated.seconds if evaluated else None,
        )
        self._ended.add(candidate)
        if trial.outcome is Outcome.REJECTED:
            self._proposals.tell(trial)
            self._started -= 1  # costs no trial, and is nothing to keep
            self._note(trial)
            return
        self._keep(trial)
        try:
            if share.left > 0:
                self._feed()  # at once: the GPU need not wait until this is stored
        finally:
            self._store.add_trial(trial)
        self._proposals.tell(trial)
        self._done += 1
        done, trials = self._done - self._done_before, self._target - self._done_before
        eta = share.eta_s(done, trials)
        observer(TrialEnded(trial, done, trials, self.best, dict(self.counts), eta))

    def _keep(self, trial: Trial) -> None:
        self.trials[trial.candidate] = trial
        self.counts[trial.outcome] += 1
        self._note(trial)

    def _note(self, trial: Trial) -> None:
        """Count why it failed, for whoever asks why there is no record."""
        if not trial.outcome.timed:
            self.reasons[f"{trial.outcome.value}: {trial.reason}"] += 1

    def _rank(self, trial: Trial) -> tuple[float, int]:
        return trial.measured.steady_ms, self.candidates.rank(trial.candidate)

    def _time_left(self, share: Share) -> float:
        if not self.missing:
            share.begin()
        return share.left

    def _pause(self) -> None:
        """Free compilers and GPUs. What runs already goes on, and is collected in the next run."""
        for future in [future for future in self._compiling if future.cancel()]:
            self._recompile.append(self._compiling.pop(future))
        for task in [task for task in self._evaluating if task.cancel()]:
            self._ready.appendleft(self._evaluating.pop(task))
        self._hopefuls.forget()
