"""Attention forward by its definition, in fp32: what every kernel is measured against."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# Scores held at once: 2^26 fp32 are 256 MiB.
_SCORES_AT_ONCE = 2**26


def attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sm_scale: float,
    causal: bool = False,
    causal_offset: int = 0,
) -> tuple[Tensor, Tensor]:
    """out = softmax(sm_scale·q·kᵀ + mask)·v, and the logarithm of the softmax's denominator.

    Computed in fp32 from inputs of any floating dtype, on their device, never in TF32. A key that
    the mask hides has no influence, whatever it holds. Rows that see no key are zeros.

    Args:
        q: (batch, heads, seqlen_q, headdim).
        k, v: (batch, heads_kv, seqlen_k, headdim); heads_kv divides heads, and heads/heads_kv
            neighbouring query heads share one of them.
        sm_scale: factor on the scores.
        causal: whether row i sees only the keys j ≤ i + causal_offset.

    Returns:
        out (batch, heads, seqlen_q, headdim) and lse (batch, heads, seqlen_q), both fp32; lse is a
        natural logarithm, −inf where a row sees no key.

    Raises:
        ValueError: heads_kv does not divide heads.
    """
    import torch

    batch, heads, seqlen_q, headdim = q.shape
    heads_kv, seqlen_k = k.shape[1], k.shape[2]
    group = heads // heads_kv if heads_kv else 0
    if heads != group * heads_kv:
        raise ValueError(f"heads is {heads}, but must be a multiple of heads_kv, {heads_kv}")
    out = torch.zeros((batch, heads, seqlen_q, headdim), dtype=torch.float32, device=q.device)
    lse = torch.full((batch, heads, seqlen_q), -math.inf, dtype=torch.float32, device=q.device)
    rows = max(1, min(seqlen_q, _SCORES_AT_ONCE // max(1, seqlen_k)))
    with _full_precision():
        for b in range(batch):
            for h in range(heads):
                keys, values = k[b, h // group].float(), v[b, h // group].float()
                for start in range(0, seqlen_q, rows):
                    stop = min(start + rows, seqlen_q)
                    # Keys that no row of the chunk sees are cut off, not multiplied by zero.
                    seen = min(seqlen_k, max(0, stop + causal_offset)) if causal else seqlen_k
                    if seen == 0:
                        continue
                    out[b, h, start:stop], lse[b, h, start:stop] = _rows(
                        q[b, h, start:stop].float(), keys[:seen], values[:seen], sm_scale,
                        start + causal_offset if causal else None,
                    )  # fmt: skip
    return out, lse


def _rows(
    q: Tensor, k: Tensor, v: Tensor, sm_scale: float, diagonal: int | None
) -> tuple[Tensor, Tensor]:
    """The definition, for some rows of one head: row i sees the keys j ≤ i + diagonal."""
    import torch

    scores = sm_scale * (q @ k.mT)
    hidden = torch.zeros_like(scores, dtype=torch.bool)
    if diagonal is not None:
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(diagonal + 1)
    scores = scores.masked_fill(hidden, -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    lse = lse.masked_fill(hidden.all(dim=-1), -math.inf)
    # Not exp(scores − lse): beside giant scores the logarithm of their number is lost in lse.
    weights = torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0)
    finite = v.isfinite()
    out = weights @ v.where(finite, 0.0)
    if not finite.all():
        # 0·NaN is NaN: let only the rows that see a value that is not finite have it.
        for j in (~finite).any(dim=-1).nonzero()[:, 0].tolist():
            term = weights[:, j, None] * v[j].where(~finite[j], 0.0)
            out += term.where(~hidden[:, j, None], 0.0)
    return out, lse


@contextmanager
def _full_precision() -> Iterator[None]:
    """fp32 products in fp32: no TF32, whatever the process has set."""
    import torch

    matmul: Any = torch.backends.cuda.matmul
    switch: str = "allow_tf32"
    value: bool | str = False
    try:
        before = matmul.allow_tf32
    except RuntimeError:  # what a process has said by the switch of torch 2.9, it must go on with
        switch, value = "fp32_precision", "ieee"
        before = matmul.fp32_precision
    setattr(matmul, switch, value)
    try:
        yield
    finally:
        setattr(matmul, switch, before)
