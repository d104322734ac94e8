"""Whether a problem of a plan is to be searched, and all its search starts from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernels.attention.problem import Problem
from tuner.evaluate.executor import Executor
from tuner.liveness import refusal
from tuner.record import Record
from tuner.search import neighbours
from tuner.search.candidates import CandidateSet, enumerate_candidates
from tuner.search.exploration import Exploration
from tuner.search.forerun import Forerunner
from tuner.search.options import Options
from tuner.search.recollection import recalled
from tuner.search.space import search_space
from tuner.search.verdict import CUT_SHORT
from tuner.standing import standing
from tuner.store.database import Store
from tuner.trial import Candidate


@dataclass(frozen=True)
class Skip:
    """A problem that is not searched, and why; with the fresh record that makes it needless."""

    reason: str
    record: Record | None = None


class Turns:
    """Opens the explorations of a plan."""

    def __init__(
        self,
        problems: Sequence[Problem],
        executor: Executor,
        store: Store,
        options: Options,
        forerunner: Forerunner,
    ) -> None:
        self._problems = problems
        self._executor = executor
        self._store = store
        self._options = options
        self._forerunner = forerunner
        self._candidates: dict[Problem, CandidateSet] = {}

    def open(self, problem: Problem, seeds: Sequence[Record]) -> Exploration | Skip:
        """The exploration of `problem`, not yet run, or why there is none.

        Raises:
            StoreError: the database cannot be read.
            KeyError: an option names a template that is not registered.
        """
        candidates = self.candidates(problem)
        wanted = self._options.wanted(len(candidates.feasible))
        hardware, triton = self._executor.target.hardware, self._executor.target.triton
        own = standing(self._store.records()).get((problem, hardware.key, triton))
        if reason := self._needless(problem, own, candidates, wanted):
            return Skip(reason, own)
        unserved = self._executor.refuse(problem)
        if unserved is None and not candidates.feasible:
            unserved = "; ".join(candidates.refusals) or self._lack(problem)
        if unserved is not None:
            return Skip(unserved)
        return Exploration(
            problem, candidates, self._executor, self._store, seeds,
            [*self._problems, *(record.problem for record in seeds)],
            self._options.sampler, self._options.seed, wanted,
            self._options.force, self._forerunner, self._options.apart,
        )  # fmt: skip

    def candidates(self, problem: Problem) -> CandidateSet:
        """What may be tried for `problem`, and by this executor; asked again and again."""
        if problem not in self._candidates:
            self._candidates[problem] = self._enumerated(problem).only(
                lambda candidate: self._executor.lack(problem, candidate) is None
            )
        return self._candidates[problem]

    def _enumerated(self, problem: Problem) -> CandidateSet:
        capability = self._executor.target.hardware.capability
        return enumerate_candidates(problem.specialization, capability, self._options.templates)

    def _lack(self, problem: Problem) -> str:
        """Why nothing can be tried for `problem`."""
        lacks = Counter(self._executor.lack(problem, c) for c in self._enumerated(problem).feasible)
        return next((why for why, _ in lacks.most_common() if why), "no config is feasible")

    def expected(self, problem: Problem, searched: Iterable[Problem]) -> list[Candidate]:
        """What may be tried for `problem`, by what the nearest of `searched` lets one expect, the
        fastest first; nothing where that is nothing."""
        import numpy as np

        candidates = self.candidates(problem)
        space = search_space(candidates, problem, self._executor.target.hardware)
        prior = neighbours.prior(
            problem, searched, space,
            lambda other: recalled(other, candidates, self._executor, self._store),
            any_mask=True,
        )  # fmt: skip
        if prior is None:
            return []
        return [candidates.feasible[place] for place in np.argsort(prior, kind="stable")]

    def _needless(
        self, problem: Problem, own: Record | None, candidates: CandidateSet, wanted: int
    ) -> str | None:
        """Why `problem` need not be searched; None if it must."""
        executor, options = self._executor, self._options
        if own is None or options.force:
            return None
        version = executor.template_version(problem, own.candidate.template)
        if own.template_version != version:
            return None
        if refusal(own.candidate, problem, executor.target.hardware.capability) is not None:
            return None
        if (own.origin == "replay") != (executor.origin == "replay"):
            return None
        if CUT_SHORT in own.note:
            return None
        known = len(recalled(problem, candidates, executor, self._store))
        asked = options.trials is not None or options.sampler == "exhaustive"
        # There may be more to try now than there was. Of a record that came without its trials, or
        # of some templates alone, that is not to be told.
        more = known > 0 and options.templates is None
        if known < wanted and (asked or more):
            return None
        return f"has a fresh record of {own.measured_at[:10]}; --force searches again"
