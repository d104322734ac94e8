"""What the entry points accept. A refusal is one sentence: the argument, what came, what may."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def validate(q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float | None) -> float:
    """Check the arguments of an attention forward; return the scale to use.

    Plain attribute reads only, so that torch.compile traces through it.

    Raises:
        TypeError: not tensors, not floating point, mixed dtypes, or a wrong kind of number.
        ValueError: wrong rank, device, or shapes that do not fit together.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}, but must be a torch.Tensor")
        if tensor.dim() != 4:
            raise ValueError(
                f"{name} has {tensor.dim()} dimensions, but must have 4: "
                "(batch, nheads, seqlen, headdim)"
            )
        if tensor.dtype not in _FLOATS:
            raise TypeError(
                f"{name} is {tensor.dtype}, but must be torch.float16 or torch.bfloat16"
            )
        if not tensor.is_cuda:
            raise ValueError(f"{name} is on {tensor.device}, but must be on a CUDA device")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise TypeError(f"{name} is {tensor.dtype}, but must have q's dtype {q.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}, but must be on q's {q.device}")
        if tensor.shape[0] != q.shape[0]:
            raise ValueError(
                f"{name} has batch {tensor.shape[0]}, but must have q's batch {q.shape[0]}"
            )
    if k.shape[3] != q.shape[3]:
        raise ValueError(f"k has headdim {k.shape[3]}, but must have q's headdim {q.shape[3]}")
    if q.shape[3] == 0 or v.shape[3] == 0:
        raise ValueError("headdim is 0, but must be at least 1")
    if v.shape[1] != k.shape[1] or v.shape[2] != k.shape[2]:
        raise ValueError(
            f"v has (nheads, seqlen) {(v.shape[1], v.shape[2])}, but must have k's "
            f"{(k.shape[1], k.shape[2])}"
        )
    if k.shape[1] != q.shape[1] and (k.shape[1] == 0 or q.shape[1] % k.shape[1] != 0):
        raise ValueError(f"k has {k.shape[1]} heads, but their number must divide q's {q.shape[1]}")
    if not isinstance(causal, bool):
        raise TypeError(f"causal is {causal!r}, but must be True or False")
    if sm_scale is None:
        return 1 / math.sqrt(q.shape[3])
    if isinstance(sm_scale, bool) or not isinstance(sm_scale, (int, float)):
        raise TypeError(f"sm_scale is {sm_scale!r}, but must be a number or None")
    if not math.isfinite(sm_scale):
        raise ValueError(f"sm_scale is {sm_scale}, but must be finite")
    return float(sm_scale)
