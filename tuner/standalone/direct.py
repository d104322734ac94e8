"""How a standalone file repeats a launch: as the package does, without Triton's argument binder.

Nobody imports this module: see portable_host.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kernels.attention.compiler import Loaded
from kernels.attention.launching import DirectLaunch, Work
from kernels.attention.template import Launch


@lru_cache(maxsize=256)
def loaded(kernel: Any, device: int) -> Loaded:  # noqa: ARG001 – what it is loaded on
    return Loaded(kernel)


def direct(kernel: Any, work: Work, device: int) -> Launch | None:
    """What repeats a launch of `kernel`, which is Triton's, on tensors of the same shapes and
    strides. None where this Triton launches in a way that is not known here: its own still does."""
    try:
        return DirectLaunch(loaded(kernel, device), work)
    except Exception:
        return None
