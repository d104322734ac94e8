"""Which problems to tune so that those that production missed find a record close by."""

from __future__ import annotations

from collections.abc import Iterable

from kernels.attention.problem import Problem, ratio

# So close, a neighbour's winner is as good as one's own, within what measurements can tell.
SEQLEN_RATIO = 1.1
BATCH_HEADS_RATIO = 1.5


def representatives(missed: Iterable[Problem], tuned: Iterable[Problem] = ()) -> list[Problem]:
    """The fewest of `missed` that, with those `tuned`, cover all, longest seqlen first; problems of
    one specialization stand together and share binaries, as in `plan`."""
    chosen: list[Problem] = []
    there = list(tuned)
    ordered = sorted(
        set(missed),
        key=lambda problem: (
            problem.headdim, problem.dtype, not problem.causal,
            -problem.seqlen, -problem.batch * problem.heads, problem,
        ),
    )  # fmt: skip
    for problem in ordered:
        if not covered(problem, there):
            chosen.append(problem)
            there.append(problem)
    return chosen


def covered(problem: Problem, tuned: Iterable[Problem]) -> bool:
    """Whether one of `tuned` is close enough to serve `problem` as well as its own record would."""
    return any(
        other.specialization == problem.specialization
        and ratio(other.seqlen, problem.seqlen) <= SEQLEN_RATIO
        and ratio(other.batch * other.heads, problem.batch * problem.heads) <= BATCH_HEADS_RATIO
        for other in tuned
    )
