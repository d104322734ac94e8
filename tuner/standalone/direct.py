"""How a standalone file repeats a launch: as the package does, without Triton's argument binder.

Nobody imports this module: see portable_host.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import triton

from kernels.attention.compiler import Loaded
from kernels.attention.launching import DirectLaunch, Work
from kernels.attention.template import Launch

NEWEST = (3, 9)  # Triton whose launcher is known here


@lru_cache(maxsize=256)
def loaded(kernel: Any, device: int) -> Loaded | None:  # noqa: ARG001 – what it is loaded on
    if tuple(map(int, triton.__version__.split(".")[:2])) > NEWEST:
        return None
    try:
        return Loaded(kernel)
    except Exception:  # a launcher that is not known after all
        return None


def direct(kernel: Any, work: Work, device: int) -> Launch | None:
    """What repeats a launch of `kernel`, which is Triton's, on tensors of the same shapes and
    strides. None where this Triton launches in a way that is not known here: its own still does."""
    known = loaded(kernel, device)
    try:
        return None if known is None else DirectLaunch(known, work)
    except Exception:  # nor are its descriptors
        return None
