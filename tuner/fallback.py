"""PyTorch's scaled_dot_product_attention, for what is valid but in no template of ours."""

from __future__ import annotations

import warnings

from torch import Tensor
from torch.nn import functional

from kernels.attention.layout import readable

_announced: set[str] = set()


class FallbackWarning(UserWarning):
    """An attention call was served by PyTorch's SDPA, not by a tuned kernel."""


def announce(reason: str) -> None:
    """Warn that SDPA serves a call, once per reason in a process."""
    if reason not in _announced:
        _announced.add(reason)
        warnings.warn(f"served by PyTorch's SDPA: {reason}", FallbackWarning, stacklevel=4)


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float) -> Tensor:
    """(batch, heads, seqlen_q, headdim_v), top-left causal, as SDPA computes it; differentiable.

    Inputs whose base or rows are not aligned to 16 bytes are copied first: SDPA of torch 2.11 was
    off by whole units on a tensor with a 2-byte offset.
    """
    q, k, v = (readable(tensor) for tensor in (q, k, v))
    if k.shape[2] == 0:  # no key to attend to
        return q.new_zeros((*q.shape[:3], v.shape[3])) + 0 * q.sum() + 0 * k.sum() + 0 * v.sum()
    return functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=sm_scale, enable_gqa=k.shape[1] != q.shape[1]
    )
