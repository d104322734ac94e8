"""What Gluon calls differently in Triton 3.6 and in 3.9, under one name each."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.language import core

# 3.6: triton.language.core._aggregate.
aggregate = getattr(gluon, "aggregate", None) or core._aggregate

# 3.6: thread_barrier. Waits for the threads of this partition.
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier

# 3.6: tma.async_copy_global_to_shared.
load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared

__all__ = ["aggregate", "barrier", "load_tile"]
