"""One config tried on one problem: it ends in exactly one typed outcome, and that is kept."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from kernels.attention.config import Config
from kernels.attention.problem import Problem
from kernels.attention.template import Resources
from tuner.target import Target

Origin = Literal["cuda", "replay"]
"""`cuda`: measured on this target. `replay`: read back from a recorded measurement of it."""


class Outcome(str, Enum):
    """How a trial ended."""

    OK = "ok"
    REJECTED = "rejected"  # by a static rule
    COMPILE_ERROR = "compile_error"
    SPILLS = "spills"  # compiled, but spills so much that timing it is hopeless
    OUT_OF_RESOURCES = "out_of_resources"
    WRONG = "wrong"  # ran, but differs from the reference
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    PRUNED = "pruned"  # right, but clearly slower than the best: timing stopped early

    @property
    def timed(self) -> bool:
        """Whether it ran, was right, and has a measurement."""
        return self in (Outcome.OK, Outcome.PRUNED)


@dataclass(frozen=True)
class Candidate:
    """A config of a template: what a trial tries."""

    template: str
    config: Config

    def __str__(self) -> str:
        return f"{self.template}({self.config})"


@dataclass(frozen=True)
class Measurement:
    """The timing of a candidate that passed the correctness gate."""

    median_ms: float
    spread: float  # interquartile range of the samples over their median
    samples_ms: tuple[float, ...]  # one per round; a round is the mean of several launches
    tflops: float
    max_diff: float  # largest |out − fp32 reference| over all inputs of the gate
    sm_clock_mhz: int | None = None  # median under load, where NVML answers
    power_w: int | None = None
    cycles: float | None = None  # of a multiprocessor, a launch: the median, where counted

    @property
    def steady_ms(self) -> float:
        """What candidates are compared by, see `steady_ms`."""
        return steady_ms(self.median_ms, self.cycles)


def steady_ms(ms: float, cycles: float | None) -> float:
    """What `cycles` take at 1.5 GHz, a middling clock of a Hopper GPU at its power cap: `ms` moves
    with the clock that the cap leaves. Where no cycles were counted, `ms` it is."""
    return ms if cycles is None else cycles / 1.5e6


@dataclass(frozen=True)
class Trial:
    """What is known of one candidate on one problem and target."""

    problem: Problem
    target: Target
    candidate: Candidate
    template_version: str
    outcome: Outcome
    origin: Origin
    measured_at: str  # UTC, ISO 8601, seconds
    reason: str = ""  # one sentence for every outcome but ok; of ok, how it was measured
    measurement: Measurement | None = None  # ok and pruned
    resources: Resources | None = None  # whatever compiled
    compile_s: float | None = None
    evaluate_s: float | None = None

    @property
    def measured(self) -> Measurement:
        """The measurement of one that was timed (see `Outcome.timed`); of no other."""
        assert self.measurement is not None
        return self.measurement

    @property
    def steady_tflops(self) -> float | None:
        """Its rate by `Measurement.steady_ms`, which is what it is compared by; None without."""
        return self.problem.tflops(self.measurement.steady_ms) if self.measurement else None

    @property
    def key(self) -> tuple[Problem, str, str, str, str, str, str]:
        """What a database holds at most one trial of; in a fixed order."""
        target, candidate = self.target, self.candidate
        return (
            self.problem, target.hardware.key, target.triton, candidate.template,
            self.template_version, candidate.config.key, self.origin,
        )  # fmt: skip
