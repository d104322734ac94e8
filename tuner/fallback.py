"""PyTorch's scaled_dot_product_attention, for what is valid but in no template of ours."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from kernels.attention.layout import readable
from tuner import caution

_announced: set[str] = set()

# Scores of which log_sum_exp holds this many at once: 2^26 fp32 are 256 MiB.
_SCORES_AT_ONCE = 2**26

_BOTTOM_RIGHT = 2  # of aten's memory-efficient attention
_FLASH_HEADDIM = 8  # aten's FlashAttention-2 takes multiples of it


class FallbackWarning(UserWarning):
    """An attention call was served by PyTorch's SDPA, not by a tuned kernel."""


def announce(reason: str) -> None:
    """Warn that SDPA serves a call, once per reason in a process."""
    if reason not in _announced:
        _announced.add(reason)
        caution.warn(f"served by PyTorch's SDPA: {reason}", FallbackWarning)


def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float, causal_offset: int = 0
) -> Tensor:
    """(batch, heads, seqlen_q, headdim_v) as SDPA computes it; differentiable. Rows that see no key
    are zeros.

    Inputs whose base or rows are not aligned to 16 bytes are copied first: SDPA of torch 2.11 was
    off by whole units on a tensor with a 2-byte offset. fp32 keeps its precision: where the
    process allows TF32, what SDPA's memory-efficient backend does not take (grouped heads, odd
    headdims) is computed in fp64.

    What is hidden from every row is not read at all. A NaN or infinity in a key that is hidden from
    some rows stays out of those on a GPU, except where SDPA is left with its backend that adds a
    mask to the scores ("math": mostly fp32 with grouped heads, headdims that are no multiple of 4
    or two of them), and on the CPU, where causal_offset is above 0. One in a value reaches, as in
    every kernel that multiplies by weights of 0, some rows before those that see it.

    Args:
        causal: row i sees the keys j ≤ i + causal_offset. With an offset above 0 the backend that
            adds a mask, and the CPU, get one of (seqlen_q, seqlen_k); so do all where the last row
            could see more keys than there are.
    """
    q, k, v = (readable(tensor) for tensor in (q, k, v))
    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    if causal and seqlen_q + causal_offset < seqlen_k:  # keys that no row sees
        seqlen_k = max(0, seqlen_q + causal_offset)
        k, v = k[:, :, :seqlen_k], v[:, :, :seqlen_k]
    if seqlen_k == 0:
        return _zeros(q, k, v, seqlen_q)
    causal = causal and causal_offset < seqlen_k - 1  # else all rows see all keys
    blind = max(0, -causal_offset) if causal else 0  # the first rows, without keys
    if sm_scale < 0:  # for which the maximum of FlashAttention-2's softmax is the minimum
        q, sm_scale = -q, -sm_scale
    if sm_scale == 0:  # by which its hidden scores of −∞ would be multiplied
        q, sm_scale = q * 0, 1.0
    # The rows after the blind ones are top-left again.
    seeing = q[:, :, blind:] if blind else q
    given, grouped, mask = (seeing, k, v), k.shape[1] != q.shape[1], None
    if causal and causal_offset > 0:
        if causal_offset == seqlen_k - seqlen_q:
            found = _bottom_right(*given, sm_scale)
            if found is not None:
                return found
        mask = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=q.device)
        mask = mask.tril_(causal_offset)
    top_left = causal and mask is None
    if _by_cublas(*given, mask, top_left, grouped):
        given = seeing.double(), k.double(), v.double()
    out = functional.scaled_dot_product_attention(
        *given, attn_mask=mask, is_causal=top_left, scale=sm_scale, enable_gqa=grouped
    ).to(q.dtype)
    return torch.cat((_zeros(q, k, v, blind), out), dim=2) if blind else out


def _bottom_right(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor | None:
    """The last row sees all keys: by that backend of SDPA which it would choose, of those that
    leave out what is hidden by themselves; None if there is none for these.

    As torch.nn.attention.bias.CausalBias has it, whose constructor allocates twice the mask, and
    which gives way where somebody put a function of his own in SDPA's place.
    """
    if not q.is_cuda:
        return None
    cuda, aten = torch.backends.cuda, torch.ops.aten
    headdim, grouped = q.shape[3], k.shape[1] != q.shape[1]
    params = cuda.SDPAParams(q, k, v, None, 0.0, False, grouped)
    if cuda.can_use_flash_attention(params):
        missing = -headdim % _FLASH_HEADDIM
        if missing:
            q, k, v = (functional.pad(tensor, (0, missing)) for tensor in (q, k, v))
        out, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, scale=sm_scale)
        return out[..., :headdim]  # type: ignore[no-any-return]
    if grouped or not cuda.can_use_efficient_attention(params):
        return None
    out, *_ = aten._efficient_attention_forward(
        *(tensor.transpose(1, 2) for tensor in (q, k, v)), None, None, None, None, None, 0.0,
        _BOTTOM_RIGHT, q.requires_grad or k.requires_grad or v.requires_grad, scale=sm_scale,
    )  # fmt: skip
    return out.transpose(1, 2)  # type: ignore[no-any-return]


def _by_cublas(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, grouped: bool
) -> bool:
    """Whether SDPA multiplies these by cuBLAS, which takes TF32 for fp32 if the process allows it.
    The memory-efficient backend, the only other one for fp32, never does."""
    if not q.is_cuda or q.dtype != torch.float32 or not _may_round():
        return False
    given = torch.backends.cuda.SDPAParams(q, k, v, mask, 0.0, causal, grouped)
    return not torch.backends.cuda.can_use_efficient_attention(given)


def _may_round() -> bool:
    """Whether the process lets cuBLAS round the factors of an fp32 product to TF32."""
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # it was said by one of the newer switches, of which this one cannot tell
        return True


def log_sum_exp(
    q: Tensor, k: Tensor, causal: bool, sm_scale: float, causal_offset: int = 0
) -> Tensor:
    """(batch, heads, seqlen_q) fp32: the natural logarithm of the softmax's denominator, by its
    definition; −∞ where a row sees no key. Not differentiable.

    In fp32 for 16-bit inputs, whose products TF32 holds exactly too; in fp64 for others, which
    TF32 would round if the process allows it.
    """
    batch, heads, seqlen_q, headdim = q.shape
    heads_kv, seqlen_k = k.shape[1], k.shape[2]
    lse = torch.full((batch, heads, seqlen_q), -math.inf, dtype=torch.float32, device=q.device)
    if lse.numel() == 0 or seqlen_k == 0:
        return lse
    grouped = lse.view(batch, heads_kv, heads // heads_kv, seqlen_q)
    wide = torch.float32 if q.element_size() == 2 else torch.float64
    keys = k.detach().to(wide).mT.unsqueeze(2)  # (batch, heads_kv, 1, headdim, seqlen_k)
    key = torch.arange(seqlen_k, device=q.device)
    rows = max(1, _SCORES_AT_ONCE // (batch * heads * seqlen_k))
    for start in range(0, seqlen_q, rows):
        stop = min(start + rows, seqlen_q)
        queries = q[:, :, start:stop].detach().to(wide)
        queries = queries.reshape(batch, heads_kv, -1, stop - start, headdim)
        scores = (queries @ keys) * sm_scale
        if causal:
            row = torch.arange(start, stop, device=q.device)[:, None]
            scores = scores.masked_fill(key > row + causal_offset, -math.inf)
        grouped[:, :, :, start:stop] = torch.logsumexp(scores, dim=-1)
    return lse


def _zeros(q: Tensor, k: Tensor, v: Tensor, rows: int) -> Tensor:
    # Hangs on the inputs, so that gradients are zeros rather than missing.
    zeros = q.new_zeros((*q.shape[:2], rows, v.shape[3]))
    if q.requires_grad or k.requires_grad or v.requires_grad:
        zeros = zeros + 0 * (q[..., :0].sum() + k[..., :0].sum() + v[..., :0].sum())
    return zeros
