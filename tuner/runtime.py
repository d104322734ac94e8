"""The entry points that people call: they check arguments and hand them to the operator.

Nothing is tuned here and no tuning library is loaded. The first call of a shape resolves its config
and loads the kernel; one like an earlier call costs a dictionary lookup and a launch, as repetition
says.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, empty_like

from tuner.forward import attention_forward, needs_gradients, prepared_launch
from tuner.repetition import remember, repeat
from tuner.validation import FLASH, SDPA, refuse_tangents, validate, validate_flag

# Entry points that tell apart what they remember; custom_attention_forward has None.
_SDPA, _SDPA_GQA, _FLASH, _FLASH_LSE = "sdpa", "sdpa gqa", "flash", "flash lse"


def custom_attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = True,
    sm_scale: float | None = None,
    *,
    strict: bool = False,
) -> Tensor:
    """softmax(sm_scale·q·kᵀ + mask)·v by the fastest kernel known for this shape and device.

    Args:
        q: (batch, nheads, seqlen, headdim), fp16 or bf16, on a CUDA device.
        k, v: the same, or with fewer heads (a divisor) and another seqlen.
        causal: query i sees keys j ≤ i (top-left alignment, as SDPA).
        sm_scale: factor on q·kᵀ; None is 1/√headdim.
        strict: raise where no template serves the call, instead of SDPA with one warning.

    Returns:
        (batch, nheads, seqlen, headdim) in q's dtype and layout. Inputs that a kernel cannot read
        in place (last stride not 1, rows not aligned to 16 bytes) are copied. Gradients are those
        of SDPA, also within torch.compile; there are none of second order, and none in forward
        mode. Under autocast the inputs are cast, as SDPA's are. The same call gives the same bits;
        so does the same sequence in another batch, unless another config serves that (see
        `lookup`).

    Raises:
        TypeError, ValueError: an argument is wrong; one sentence names it.
        NotImplementedError: strict, and no template serves the call; or a tensor has a tangent of
            forward-mode differentiation.
    """
    compiling = torch.compiler.is_compiling()
    if not compiling and (strict is False or strict is True):
        known = repeat(q, k, v, causal, sm_scale)
        if known is not None:
            return known  # type: ignore[return-value]
    validate_flag("strict", strict)
    q, k, v = _autocast(q, k, v)
    scale = validate(q, k, v, causal, sm_scale)
    refuse_tangents(q, k, v)
    out, _ = attention_forward(q, k, v, causal, 0, scale, strict=strict)
    if not (compiling or needs_gradients(q, k, v)):
        prepare = partial(prepared_launch, q, k, v, out, causal, 0, scale, False)
        remember(q, k, v, causal, sm_scale, prepare)
    return out


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    strict: bool = False,
) -> Tensor:
    """As torch.nn.functional.scaled_dot_product_attention, without a mask and without dropout.

    Args:
        query: (batch, nheads, seqlen_q, headdim), fp16 or bf16, on a CUDA device.
        key, value: (batch, nheads, seqlen_k, headdim).
        is_causal: query i sees keys j ≤ i: top-left alignment, also where the seqlens differ.
        scale: factor on query·keyᵀ; None is 1/√headdim.
        enable_gqa: allow key and value fewer heads, whose number divides query's. Nothing is
            expanded.
        strict: raise where no template serves the call, instead of SDPA with one warning.

    Returns:
        (batch, nheads, seqlen_q, headdim), as custom_attention_forward does.

    Raises:
        TypeError, ValueError: an argument is wrong; one sentence names it.
        NotImplementedError: strict, and no template serves the call; or a tensor has a tangent of
            forward-mode differentiation.
    """
    compiling = torch.compiler.is_compiling()
    entry = _SDPA_GQA if enable_gqa is True else _SDPA if enable_gqa is False else None
    if not compiling and entry is not None and (strict is False or strict is True):
        known = repeat(query, key, value, is_causal, scale, entry)
        if known is not None:
            return known  # type: ignore[return-value]
    validate_flag("enable_gqa", enable_gqa)
    validate_flag("strict", strict)
    q, k, v = _autocast(query, key, value)
    factor = validate(q, k, v, is_causal, scale, SDPA)
    refuse_tangents(q, k, v, SDPA)
    if not enable_gqa and k.shape[1] != q.shape[1]:
        raise ValueError(
            f"key has {k.shape[1]} heads, but must have query's {q.shape[1]} unless enable_gqa=True"
        )
    out, _ = attention_forward(q, k, v, is_causal, 0, factor, strict=strict)
    if not (compiling or needs_gradients(q, k, v)):
        prepare = partial(prepared_launch, q, k, v, out, is_causal, 0, factor, False)
        remember(q, k, v, is_causal, scale, prepare, entry)
    return out


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_lse: bool = False,
    *,
    strict: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """As flash_attn.flash_attn_func, without dropout, windows, softcap and slopes.

    Args:
        q: (batch, seqlen_q, nheads, headdim), fp16 or bf16, on a CUDA device.
        k, v: (batch, seqlen_k, nheads_kv, headdim); nheads_kv divides nheads.
        softmax_scale: factor on q·kᵀ; None is 1/√headdim.
        causal: query i sees keys j ≤ i + seqlen_k − seqlen_q: bottom-right alignment. A row that
            sees no key is zeros.
        return_lse: also return the logarithm of the softmax's denominator.
        strict: raise where no template serves the call, instead of SDPA with one warning.

    Returns:
        out (batch, seqlen_q, nheads, headdim) in q's dtype and layout; with return_lse, out and
        lse: (batch, nheads, seqlen_q), fp32, natural logarithm, −∞ for a row that sees no key.
        Both are differentiable.

    Raises:
        TypeError, ValueError: an argument is wrong; one sentence names it.
        NotImplementedError: strict, and no template serves the call; or a tensor has a tangent of
            forward-mode differentiation.
    """
    compiling = torch.compiler.is_compiling()
    entry = _FLASH_LSE if return_lse is True else _FLASH if return_lse is False else None
    if not compiling and entry is not None and (strict is False or strict is True):
        known = repeat(q, k, v, causal, softmax_scale, entry)
        if known is not None:
            return known
    validate_flag("return_lse", return_lse)
    validate_flag("strict", strict)
    q, k, v = _autocast(q, k, v)
    scale = validate(q, k, v, causal, softmax_scale, FLASH)
    refuse_tangents(q, k, v)
    offset = k.shape[1] - q.shape[1]
    bhsd = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    out, lse = attention_forward(*bhsd, causal, offset, scale, return_lse, strict)
    result = out.transpose(1, 2)
    if not (compiling or needs_gradients(q, k, v)) and result.stride() == _strides_like(q):
        prepare = partial(prepared_launch, *bhsd, out, causal, offset, scale, return_lse)
        lse_shape = tuple(lse.shape) if lse is not None else None
        remember(q, k, v, causal, softmax_scale, prepare, entry, lse_shape)
    return result if lse is None else (result, lse)


def _strides_like(q: Tensor) -> tuple[int, ...]:
    """Of an output that `repeat` makes; others where the order of q's strides is ambiguous."""
    return empty_like(q, device="meta").stride()  # which takes no memory


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """`tensors` as autocast casts SDPA's: those on a GPU, floating point but not fp64."""
    if not torch.is_autocast_enabled("cuda"):
        return tensors
    dtype = torch.get_autocast_dtype("cuda")
    return tuple(
        tensor.to(dtype)
        if isinstance(tensor, Tensor)
        and tensor.is_cuda
        and tensor.is_floating_point()
        and tensor.dtype != torch.float64
        else tensor
        for tensor in tensors
    )
