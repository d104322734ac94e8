"""What a search tells whoever watches it. The search draws nothing; the command line does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING

from kernels.attention.problem import Problem
from tuner.record import Record
from tuner.trial import Outcome, Trial

if TYPE_CHECKING:
    from tuner.evaluate.executor import Evaluation


@dataclass(frozen=True)
class Seconds:
    """Where the time of a search went. With one GPU, `wall` is opening, checking, timing, finals,
    waiting, and what the search itself took besides. With more, problems overlap: only their sum
    says much.
    """

    wall: float = 0.0  # since the problem before, or the search's beginning
    compiling: float = 0.0  # seconds of the compile processes together, beside all the rest
    checking: float = 0.0  # inputs, references, loading, and the correctness gate
    timing: float = 0.0
    finals: float = 0.0
    opening: float = 0.0  # starting processes, in which the first candidates are compiled
    waiting: float = 0.0  # with nothing compiled to evaluate
    starting: float = 0.0  # of that, before there was anything to evaluate at all

    @classmethod
    def opened(cls, seconds: float) -> Seconds:
        """What came before the first problem."""
        return cls(wall=seconds, opening=seconds)

    @classmethod
    def of(cls, evaluated: Evaluation) -> Seconds:
        """What an evaluation took."""
        checking = evaluated.checking
        return cls(checking=checking, timing=evaluated.seconds - checking)

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(*(a + b for a, b in zip(astuple(self), astuple(other))))

    @property
    def searching(self) -> float:
        """What is left of `wall`: proposing, storing, telling."""
        known = self.opening + self.checking + self.timing + self.finals + self.waiting
        return max(0.0, self.wall - known)

    @property
    def parts(self) -> dict[str, float]:
        """All of them by name."""
        return {**asdict(self), "searching": self.searching}


@dataclass(frozen=True)
class ProblemSkipped:
    problem: Problem
    index: int  # from 0, of `count` problems in the plan
    count: int
    record: Record | None  # the fresh record that makes a search needless
    reason: str


@dataclass(frozen=True)
class ProblemStarted:
    problem: Problem
    index: int
    count: int
    feasible: int  # configs that no static rule rejects
    rejected: int  # configs that one does
    known: int  # trials that an earlier search left
    trials: int  # new trials this search may make


@dataclass(frozen=True)
class TrialEnded:
    trial: Trial
    done: int  # new trials so far, this one included
    trials: int
    best: Trial | None
    counts: Mapping[Outcome, int]
    eta_s: float | None  # of the trials to come; None after the first, which tells little of them


@dataclass(frozen=True)
class TimedAgain:
    """A trial was timed once more, while nothing was compiled to try."""

    trial: Trial  # as it counts now: by its middling timing, and as it ended the last time
    best: Trial | None
    counts: Mapping[Outcome, int]


@dataclass(frozen=True)
class FinalsStarted:
    problem: Problem
    finalists: int
    rounds: int


@dataclass(frozen=True)
class ProblemEnded:
    problem: Problem
    # None: every candidate failed, or time was up; the default stays in force
    record: Record | None
    counts: Mapping[Outcome, int]
    reasons: Mapping[str, int]  # of what failed
    seconds: Seconds
    cut_short: bool = False  # time was up before there were enough trials


Event = ProblemSkipped | ProblemStarted | TrialEnded | TimedAgain | FinalsStarted | ProblemEnded
Observer = Callable[[Event], None]
