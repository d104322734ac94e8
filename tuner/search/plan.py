"""Which problems a search is for: one shape, or a grid."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from kernels.attention.problem import GRID_SEQLENS, HEADDIMS, Problem


def plan(
    headdims: Sequence[int] = HEADDIMS,
    seqlens: Sequence[int] = GRID_SEQLENS,
    causals: Sequence[bool] = (True, False),
    dtypes: Sequence[str] = ("fp16",),
    batch: int | None = None,
    heads: int | None = None,
) -> list[Problem]:
    """Every combination once, in the order in which neighbours can seed each other: problems of one
    specialization stand together and share their binaries, longest seqlen first, since its winner
    is the least disturbed by scheduling tails; those of the other dtype follow, whose winners and
    latencies are much the same.

    Raises:
        ValueError: a value is out of its domain; the sentence names it.
    """
    problems = (
        Problem.on_grid(headdim, seqlen, causal, dtype, batch, heads)
        for headdim, causal, dtype, seqlen in product(
            headdims, causals, dtypes, sorted(set(seqlens), reverse=True)
        )
    )
    return list(dict.fromkeys(problems))
