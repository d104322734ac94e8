"""A small recorded space, as tests of files and of the replay need it."""

from __future__ import annotations

from kernels.attention.config import Config
from kernels.attention.problem import Problem
from kernels.attention.template import Resources
from tuner.target import Hardware, Target
from tuner.trial import Candidate, Measurement, Outcome, Trial

PROBLEM = Problem.on_grid(64, 4096, True)
TARGET = Target(Hardware(90, 132, 79, 700), "NVIDIA H100 80GB HBM3", "3.6.0", "2.11.0", "580.9")
PEERS = {"cudnn": (0.341, 0.342, 0.345), "fa2": (0.51, 0.52, 0.53)}


def config(number: int) -> Config:
    return Config(BLOCK_M=64 * (number + 1), num_warps=4, tma=number % 2 == 0, order="lpt")


def trial(
    number: int,
    outcome: Outcome = Outcome.OK,
    problem: Problem = PROBLEM,
    target: Target = TARGET,
    template: str = "fake",
    version: str = "0123456789ab",
    ms: float | None = None,
    cycles: float | None = None,
) -> Trial:
    """Trial `number`; the measured ones take 0.3 ms and more."""
    compiled = outcome not in (Outcome.COMPILE_ERROR, Outcome.OUT_OF_RESOURCES)
    median = ms or 0.3 + 0.01 * number
    samples = tuple(median * factor for factor in (0.98, 0.99, 1.0, 1.01, 1.02))
    return Trial(
        problem=problem,
        target=target,
        candidate=Candidate(template, config(number)),
        template_version=version,
        outcome=outcome,
        origin="cuda",
        measured_at=f"2026-11-28T10:{number // 60 % 60:02}:{number % 60:02}+00:00",
        reason="" if outcome is Outcome.OK else f"because of {number}",
        measurement=Measurement(
            median, 0.02, samples, problem.flops / median * 1e-9, 0.0013, 1755, 698, cycles
        ) if outcome.timed else None,
        resources=Resources(168, 0, 98304) if compiled else None,
        compile_s=1.25,
        evaluate_s=0.125 if compiled and outcome is not Outcome.SPILLS else None,
    )  # fmt: skip


def one_of_each() -> list[Trial]:
    """A trial per outcome, the first of them ok."""
    return [trial(number, outcome) for number, outcome in enumerate(Outcome)]
