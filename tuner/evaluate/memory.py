"""Whether a GPU has the memory to check and time a problem."""

from __future__ import annotations

from kernels.attention.problem import Problem

_SHARE = 0.9  # the rest is the driver's and the allocator's


def refuse_for_memory(problem: Problem, memory_gib: int) -> str | None:
    """Why `problem` is too large for a GPU of `memory_gib`; None if it is not."""
    # q, k, v, out, SDPA's out, their difference, FlashAttention's copies of q, k and v, a peer's
    # out, and one head's fp32 scores thrice.
    elements = problem.batch * problem.heads * problem.seqlen * problem.headdim
    need = 20 * elements + 3 * 4 * problem.seqlen**2
    if need <= _SHARE * memory_gib * 2**30:
        return None
    return (
        f"{problem} needs {need / 2**30:.0f} GiB to check and time, "
        f"but the GPU has {memory_gib} GiB"
    )
