"""What a search asks of whatever compiles and measures for it: this machine, a cluster, a replay.

The search stays in one driver process and only submits and waits. Executors are interchangeable:
none raises for what a candidate does; every fault of a candidate is an outcome.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType

from kernels.attention import registry
from kernels.attention.problem import Problem, Specialization
from kernels.attention.template import Resources
from tuner.evaluate.timing import DECIDE_S
from tuner.target import Target
from tuner.trial import Candidate, Measurement, Origin, Outcome, Trial


@dataclass(frozen=True)
class Compilation:
    """How compiling a candidate ended: ok, compile_error, spills, out_of_resources, crashed,
    timeout; or rejected, where it cannot be tried at all."""

    candidate: Candidate
    outcome: Outcome
    reason: str = ""
    resources: Resources | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Evaluation:
    """How running a compiled candidate ended: ok, pruned, wrong, out_of_resources, crashed,
    timeout."""

    candidate: Candidate
    outcome: Outcome
    reason: str = ""
    measurement: Measurement | None = None
    seconds: float = 0.0
    checking: float = 0.0  # of these, what was not timing: inputs, loading, the correctness gate


@dataclass(frozen=True)
class Race:
    """Interleaved rounds: the samples number i of all were taken right after each other."""

    entrants: Mapping[Candidate, Measurement]  # in the rounds they shared with the peers
    # ms per round, by library
    peers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # who crashed, hung or was wrong here, with the reason
    dropped: Mapping[Candidate, str] = field(default_factory=dict)
    # peers that cannot run here, with the reason
    absent: Mapping[str, str] = field(default_factory=dict)
    # what held the clocks down, besides the power cap
    throttles: tuple[str, ...] = ()
    # ms that entrants are compared by (Measurement.steady_ms), per round: of these and of the
    # rounds that they went on with alone, the same ones for all; fewer of those that were beaten
    # before; empty where it is the ms of the rounds with the peers
    deciding: Mapping[Candidate, tuple[float, ...]] = field(default_factory=dict)

    def compared(self, candidate: Candidate) -> tuple[float, ...]:
        """The ms that an entrant is compared by, of all rounds that it ran in."""
        return self.deciding.get(candidate, self.entrants[candidate].samples_ms)


# Of a target: what a search on it compiles first.
Opening = Callable[[Target], Iterable[tuple[Candidate, Specialization]]]


class Executor(ABC):
    """Compiles, evaluates and races candidates for one target."""

    target: Target
    origin: Origin
    cold: bool = False  # times single launches with a cold L2
    counts_cycles: bool = False  # of trials, which then are not comparable with such that have none
    compile_slots: int  # how many compilations run at once
    evaluate_slots: int  # how many evaluations run at once: one per GPU

    @abstractmethod
    def announce(self) -> str:
        """One sentence for the user: where the figures of this search come from."""

    @abstractmethod
    def refuse(self, problem: Problem) -> str | None:
        """Why this executor cannot serve `problem`; None if it can."""

    def check(  # noqa: B027 – who measures brings nothing along
        self, problems: Iterable[Problem], accept: Callable[[Trial], object]
    ) -> None:
        """Make sure, before anything is kept, that what this executor brings along for `problems`
        can be: every trial of it is one to `accept`, which else raises a ValueError.

        Raises:
            SpaceError: it cannot; the message names the file.
            OSError: a file cannot be read.
        """

    def template_version(self, problem: Problem, template: str) -> str:  # noqa: ARG002
        """The version of the kernel that this executor's figures for `problem` speak of."""
        return registry.get(template).version

    def lack(self, problem: Problem, candidate: Candidate) -> str | None:  # noqa: ARG002
        """Why this executor has nothing to say of `candidate`, so that a search need not ask; None
        if it can be tried. Cheap: asked of every feasible candidate."""
        return None

    @abstractmethod
    def compile(self, problem: Problem, candidate: Candidate) -> Future[Compilation]: ...

    @abstractmethod
    def evaluate(
        self, problem: Problem, candidate: Candidate, best_ms: float | None
    ) -> Future[Evaluation]:
        """Correctness gate, then timing; timing stops early (pruned) once the candidate is clearly
        slower than `best_ms`, the steady_ms of another's measurement."""

    @abstractmethod
    def race(
        self,
        problem: Problem,
        entrants: Sequence[Candidate],
        rounds: int,
        decide_s: float = DECIDE_S,
        hopefuls: Sequence[Candidate] = (),
    ) -> Future[Race]:
        """Time `entrants` and the peers in interleaved rounds, at least `rounds`; where there is a
        card, then the fastest entrants alone until they are told apart or shown to be tied, for
        `decide_s` at most. Of `hopefuls` the fastest few (timing.PLACES) of a heat before that
        join the entrants."""

    @abstractmethod
    def close(self) -> None:
        """End every process this executor started. Safe to call twice."""

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
