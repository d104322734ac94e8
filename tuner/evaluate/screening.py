"""Refusing a kernel between Triton's stages, before the dear ones are paid for.

How much shared memory a block needs is known once there is LLVM IR; PTX and ptxas, half of a
compilation or more, come after that. Triton itself compares it with what there is only when it
loads the finished binary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from kernels.attention.compiler import check_shared_memory
from tuner.evaluate.child import note


def install() -> None:
    """Screen all compilations of this process by Triton for CUDA, of `tl` and Gluon alike. Without
    Triton, or with one that is built otherwise, nothing is screened: the finished binary still is.

    Not by Triton's hook for stages, which is part of its cache's key: whoever launches would not
    find what was compiled.
    """
    try:
        from triton.backends.nvidia.compiler import CUDABackend
    except ImportError:
        return
    to_ptx = getattr(CUDABackend, "make_ptx", None)
    if to_ptx is not None and not hasattr(to_ptx, "__wrapped__"):
        CUDABackend.make_ptx = _screened(to_ptx)


def _screened(to_ptx: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(to_ptx)
    def screened(backend: Any, source: Any, metadata: dict[str, Any], *more: Any) -> Any:
        check_shared_memory(metadata.get("shared", 0), backend.target.arch)
        ptx = to_ptx(backend, source, metadata, *more)
        # ptxas has no limit of its own: from here on the deadline is for it alone.
        note("ptxas")
        return ptx

    return screened
