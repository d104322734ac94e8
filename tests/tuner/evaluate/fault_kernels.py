"""A kernel that writes where it must not."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def write_far_away(pointer):  # type: ignore[no-untyped-def]
    tl.store(pointer + (tl.program_id(0).to(tl.int64) + (1 << 44)), 1.0)
