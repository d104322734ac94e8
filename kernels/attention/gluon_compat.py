"""The names that Gluon changed between Triton 3.6 and 3.9, under one name each."""

from triton.experimental.gluon import language as gl

# 3.6: thread_barrier; since 3.7: barrier.
thread_barrier = getattr(gl, "thread_barrier", None) or gl.barrier
