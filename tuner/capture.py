"""Which CUDA graph the current stream is being captured into."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import torch

UNTOLD = 0
"""In place of the id of a graph, where the driver does not tell it."""


def current() -> int | None:
    """An id of the graph, which no other graph of this process has; None if there is none."""
    # To ask a CUDA that is not in use would put it to use, after which no process may fork.
    if not torch.cuda.is_initialized() or not torch.cuda.is_current_stream_capturing():
        return None
    ask = _asker()
    if ask is None:
        return UNTOLD
    stream = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
    status, graph = ctypes.c_int(), ctypes.c_uint64()
    asked = ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(graph)
    return UNTOLD if ask(*asked, None, None, None) else graph.value


@cache
def _asker() -> Any:
    """cuStreamGetCaptureInfo_v2 of the CUDA driver API."""
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        return cuda.cuStreamGetCaptureInfo_v2
    except (OSError, AttributeError):
        return None
