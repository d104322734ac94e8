"""The search: plan, propose, compile ahead, evaluate, race the finalists, keep the verdict.

One driver process asks and tells; executors do the work. Every trial is stored as it ends, so that
an interrupted search loses nothing and the same command goes on where it stopped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kernels.attention import registry
from kernels.attention.problem import Problem, Specialization
from tuner.evaluate.executor import Executor
from tuner.record import Record, standing
from tuner.search import samplers
from tuner.search.candidates import enumerate_candidates
from tuner.search.events import Event, Observer, ProblemEnded, ProblemSkipped
from tuner.search.exploration import Exploration
from tuner.search.verdict import Finals
from tuner.store import Store
from tuner.trial import Candidate

DEFAULT_TRIALS = 60


@dataclass(frozen=True)
class Options:
    """How to search.

    Raises:
        ValueError: a value is out of its domain; the sentence names it.
    """

    trials: int | None = None  # per problem, those of earlier searches included; None: the default
    budget_s: float | None = None  # wall clock for all problems together
    sampler: str = samplers.DEFAULT
    seed: int = 0
    force: bool = False  # search though there is a fresh record, and measure everything anew
    templates: tuple[str, ...] | None = None  # None: all that serve the target
    rounds: int = 11  # of the finals

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < 1:
            raise ValueError(f"trials is {self.trials}, but must be at least 1")
        if self.budget_s is not None and not self.budget_s > 0:
            raise ValueError(f"budget is {self.budget_s:g}s, but must be more than 0s")
        if self.sampler not in samplers.NAMES:
            raise ValueError(
                f"sampler is {self.sampler!r}, but must be one of {', '.join(samplers.NAMES)}"
            )
        if self.rounds < 3:
            raise ValueError(f"rounds is {self.rounds}, but must be at least 3")

    def wanted(self, feasible: int) -> int:
        """How many trials a finished search of a problem has."""
        default = feasible if self.sampler == "exhaustive" else DEFAULT_TRIALS
        return min(feasible, default if self.trials is None else self.trials)


def _ignore(event: Event) -> None:
    """The observer of nobody."""


def search(
    problems: Sequence[Problem],
    executor: Executor,
    store: Store,
    inherited: Iterable[Record],
    options: Options,
    observer: Observer = _ignore,
) -> list[Record | None]:
    """Search every problem; one record each, None where no candidate succeeded.

    Args:
        store: where trials and records go, and whose fresh records make a search needless.
        inherited: standing records of all databases in force. They seed neighbours, and one for the
            very problem races in the finals.
        observer: is told of everything as it happens.

    Raises:
        StoreError: the database cannot be written.
        KeyError: an option names a template that is not registered.
    """
    seeds = list(inherited)
    results: list[Record | None] = [None] * len(problems)
    binaries: set[tuple[Candidate, Specialization]] = set()
    deadline = None if options.budget_s is None else time.monotonic() + options.budget_s
    racing: deque[_Racing] = deque()

    def settle() -> None:
        """Wait for the oldest finals, and keep their verdict."""
        nonlocal seeds
        oldest, began = racing.popleft(), time.monotonic()
        record, exploration = oldest.finals.record(), oldest.exploration
        if record is not None:
            store.add_record(record)
            seeds = [*(r for r in seeds if r.key != record.key), record]
        results[oldest.index] = record
        wall = oldest.wall + time.monotonic() - began
        observer(
            ProblemEnded(
                exploration.problem, record, exploration.counts, exploration.reasons,
                replace(exploration.seconds, wall=wall),
            )
        )  # fmt: skip

    for index, problem in enumerate(problems):
        started = time.monotonic()
        candidates = enumerate_candidates(
            problem.specialization, executor.target.hardware.capability, options.templates
        )
        own = standing(store.records()).get(_key(problem, executor))
        if reason := _needless(problem, executor, store, own, options, len(candidates.feasible)):
            observer(ProblemSkipped(problem, index, len(problems), own, reason))
            results[index] = own
            continue
        refusal = executor.refuse(problem)
        if refusal is None and not candidates.feasible:
            refusal = "; ".join(candidates.refusals) or "no config is feasible"
        if refusal is not None:
            observer(ProblemSkipped(problem, index, len(problems), None, refusal))
            continue
        share = None
        if deadline is not None:
            share = started + max(0.0, deadline - started) / (len(problems) - index)
        exploration = Exploration(
            problem, candidates, executor, store, seeds, options.sampler, options.seed,
            trials=options.wanted(len(candidates.feasible)),
            forget=options.force, deadline=share, binaries=binaries,
        )  # fmt: skip
        exploration.run(observer, index, len(problems))
        finals = Finals(exploration, seeds, options.rounds, observer)
        racing.append(_Racing(index, exploration, finals, time.monotonic() - started))
        # A race keeps one GPU. Where there are more, the next problem begins on those.
        while racing and (len(racing) >= executor.evaluate_slots or racing[0].finals.done):
            settle()
    while racing:
        settle()
    return results


@dataclass(frozen=True)
class _Racing:
    """A problem whose finals are under way."""

    index: int
    exploration: Exploration
    finals: Finals
    wall: float  # seconds that went to its exploration


def _key(problem: Problem, executor: Executor) -> tuple[Problem, str, str]:
    return problem, executor.target.hardware.key, executor.target.triton


def _needless(
    problem: Problem,
    executor: Executor,
    store: Store,
    own: Record | None,
    options: Options,
    feasible: int,
) -> str | None:
    """Why `problem` need not be searched; None if it must."""
    if own is None or options.force:
        return None
    version = executor.template_version(problem, own.candidate.template)
    if own.template_version != version or (own.origin == "replay") != (executor.origin == "replay"):
        return None
    if options.trials is not None or options.sampler == "exhaustive":
        # More is asked for than the search behind that record may have tried.
        known = store.trials(
            problem=problem,
            hardware=executor.target.hardware,
            triton=executor.target.triton,
        )
        versions = {name: executor.template_version(problem, name) for name in registry.names()}
        tried = sum(t.template_version == versions.get(t.candidate.template) for t in known)
        if tried < options.wanted(feasible):
            return None
    return f"has a fresh record of {own.measured_at[:10]}; --force searches again"
