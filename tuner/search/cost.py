"""What a search would take, roughly: so many trials, so long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from kernels.attention.problem import Problem
from tuner.evaluate.compile_farm import available_cpus
from tuner.search.candidates import enumerate_candidates
from tuner.search.options import Options
from tuner.trial import Trial

# Of a trial on an H200 and a core of its host, all of which compile at once; and what every search
# takes besides: starting the processes, and the finals.
_COMPILE_S, _EVALUATE_S = 3.7, 0.05
_BESIDES_S = 15.0
# How often a trial launches its kernel at least, and a race of some ten its kernels; at what rate.
_LAUNCHES, _LAUNCHES_OF_FINALS, _TFLOPS = 30, 600, 400.0

# Trials from which their own times are believed.
_ENOUGH = 10


@dataclass(frozen=True)
class Cost:
    """Of searching one problem."""

    trials: int
    seconds: float  # wall clock, with as many compilers as `cores`
    cores: int
    measured: bool  # by trials in the database; else what is typical

    def __str__(self) -> str:
        basis = "by its trials so far" if self.measured else "typically"
        return (
            f"about {self.seconds:.0f} s for {self.trials} trials with {self.cores} cores, {basis}"
        )


def estimate(problem: Problem, capability: int, known: Iterable[Trial] = ()) -> Cost:
    """The cost of a search of `problem` from nothing.

    Args:
        known: trials of it, or of one like it. Replayed ones do not count: what they took is what
            another machine took, and much of it came out of a cache.
    """
    feasible = enumerate_candidates(problem.specialization, capability).feasible
    trials = Options().wanted(len(feasible))
    cores = available_cpus()
    timed = [
        (trial.compile_s, trial.evaluate_s)
        for trial in known
        if trial.origin == "cuda" and trial.compile_s is not None and trial.evaluate_s is not None
    ]
    measured = len(timed) >= _ENOUGH
    launch_s = problem.flops / (_TFLOPS * 1e12)
    compile_s, evaluate_s = _COMPILE_S, _EVALUATE_S + _LAUNCHES * launch_s
    if measured:
        compile_s, evaluate_s = (fmean(column) for column in zip(*timed))
    # Compiling goes on beside evaluating: the slower of the two decides.
    seconds = _BESIDES_S + _LAUNCHES_OF_FINALS * launch_s
    seconds += trials * max(compile_s / cores, evaluate_s)
    return Cost(trials, seconds, cores, measured)


def command(problem: Problem) -> str:
    """The command line that searches exactly this problem."""
    mask = "--causal" if problem.causal else "--no-causal"
    return (
        f"tuner search --hdim {problem.headdim} --seqlen {problem.seqlen} {mask} "
        f"--dtype {problem.dtype} --batch {problem.batch} --heads {problem.heads}"
    )
