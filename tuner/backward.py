"""Gradients of the forward operator: PyTorch's flash-attention backward from our out and lse where
it fits, else SDPA's own, by recomputation. Both are one operator, which torch.compile sees whole.

A gradient of lse is a softmax too: ∂lse/∂q·k = P, so that it asks for scale·P·k and scale·Pᵀ·q.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from kernels.attention.layout import readable
from tuner import fallback

_NAME = "attention_tuner::backward"

# Those with the registers and shared memory for FlashAttention-2's backward beyond headdim 192.
_LARGE = ((8, 0), (9, 0), (10, 0))


def register(library: torch.library.Library) -> None:
    """Define the backward, and make it that of attention_tuner::forward, which `library` has."""
    library.define(
        "backward(Tensor? grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, "
        "Tensor lse, bool causal, SymInt causal_offset, float sm_scale) "
        "-> (Tensor grad_q, Tensor grad_k, Tensor grad_v)"
    )
    library.impl("backward", gradients, "CUDA")
    library.impl("backward", _fake, "Meta")
    library.impl("backward", _once, "Autograd", with_keyset=True)
    torch.library.register_autograd(
        "attention_tuner::forward", _differentiate, setup_context=_keep, lib=library
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ctx.causal, ctx.causal_offset, ctx.sm_scale, _, _ = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)  # lse's is usually missing


def _differentiate(
    ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None
) -> tuple[Tensor | None, ...]:
    nothing = (None,) * 5
    q, k, v, out, lse = ctx.saved_tensors
    if lse.numel() == 0:  # was not wanted
        grad_lse = None
    if grad_out is None and grad_lse is None:
        return None, None, None, *nothing
    found = torch.ops.attention_tuner.backward.default(
        grad_out, grad_lse, q, k, v, out, lse, ctx.causal, ctx.causal_offset, ctx.sm_scale
    )
    needed = ctx.needs_input_grad[:3]
    return (*(grad if need else None for grad, need in zip(found, needed)), *nothing)


def gradients(
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    causal_offset: int,
    sm_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, in their dtypes and layouts.

    Args:
        grad_out, grad_lse: of the outputs; None stands for zeros.
        q, k, v, causal, causal_offset, sm_scale: what the forward got.
        out, lse: what it returned; lse is empty if it was not wanted.
    """
    if q.numel() == 0 or k.numel() == 0:
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    with torch.cuda.device(q.device) if q.is_cuda else nullcontext():
        found = _gradients(grad_out, grad_lse, q, k, v, out, lse, causal, causal_offset, sm_scale)
    grad_q, grad_k, grad_v = (_as(tensor, grad) for tensor, grad in zip((q, k, v), found))
    return grad_q, grad_k, grad_v


def _gradients(
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    causal_offset: int,
    sm_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] | None = None
    if grad_out is not None:
        found = _by_flash(grad_out, q, k, v, out, lse, causal, causal_offset, sm_scale)
        if found is None:
            found = _by_sdpa(grad_out, q, k, v, causal, causal_offset, sm_scale)
    if found is None:
        found = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    if grad_lse is None:
        return found
    # A row without keys has lse = −∞ and a gradient that may be NaN, but no influence.
    weight = sm_scale * grad_lse.where(lse.isfinite(), 0.0)[..., None]
    attended = fallback.attention(q, k, k, causal, sm_scale, causal_offset)
    _, _, pulled = _by_sdpa((weight * q).to(q.dtype), q, k, k, causal, causal_offset, sm_scale)
    grad_q = found[0] + (weight * attended).to(q.dtype)
    return grad_q, found[1] + pulled, found[2]


def _by_sdpa(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    causal_offset: int,
    sm_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    # Whoever calls operators below autograd, as dispatch modes do, has it switched off.
    key = torch._C.DispatchKey.AutogradFunctionality
    with torch._C._SetExcludeDispatchKeyGuard(key, False), torch.enable_grad():
        q, k, v = (tensor.detach().requires_grad_() for tensor in (q, k, v))
        out = fallback.attention(q, k, v, causal, sm_scale, causal_offset)
        grad_q, grad_k, grad_v = torch.autograd.grad(out, (q, k, v), readable(grad_out))
    return grad_q, grad_k, grad_v


def _by_flash(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    causal_offset: int,
    sm_scale: float,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """By aten's FlashAttention-2, whose causal mask is aligned bottom-right; None if it does not
    take this."""
    seqlen_q, all_keys = q.shape[2], k.shape[2]
    seqlen_k = min(all_keys, max(0, seqlen_q + causal_offset)) if causal else all_keys
    if (
        not _flash_takes(q, v, lse, sm_scale)
        or seqlen_k == 0
        or (causal and seqlen_k != seqlen_q + causal_offset)
    ):
        return None
    # Its forward marks rows that see no key by +∞.
    lse = lse.masked_fill(lse == float("-inf"), float("inf"))
    unused = torch.empty(2, dtype=torch.uint64, device=q.device)  # dropout's state
    cut_k, cut_v = (tensor[:, :, :seqlen_k] for tensor in (k, v))
    grad_q, grad_k, grad_v = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        readable(grad_out), readable(q), readable(cut_k), readable(cut_v), readable(out), lse,
        None, None, seqlen_q, seqlen_k, 0.0, causal, unused, unused, scale=sm_scale,
    )  # fmt: skip
    if seqlen_k < all_keys:  # nobody sees the others
        grad_k, grad_v = (
            torch.nn.functional.pad(grad, (0, 0, 0, all_keys - seqlen_k))
            for grad in (grad_k, grad_v)
        )
    return grad_q, grad_k, grad_v


def _flash_takes(q: Tensor, v: Tensor, lse: Tensor, sm_scale: float) -> bool:
    headdim = q.shape[3]
    if not (
        q.is_cuda
        and lse.numel()
        and sm_scale > 0
        and q.dtype in (torch.float16, torch.bfloat16)
        and headdim % 8 == 0
        and headdim <= 256
        and v.shape[3] == headdim
        and torch.backends.cuda.is_flash_attention_available()
    ):
        return False
    capability = torch.cuda.get_device_capability(q.device)
    return capability in _LARGE if headdim > 192 else capability >= (8, 0)


def _as(tensor: Tensor, grad: Tensor) -> Tensor:
    """`grad` as the fake kernel promised it: an `empty_like` of `tensor`."""
    promised = torch.empty_like(tensor)
    if grad.stride() == promised.stride() and grad.dtype == promised.dtype:
        return grad
    return promised.copy_(grad)


def _fake(
    _out: Any, _lse: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


class _Once(torch.autograd.Function):
    """The backward, as something that a second derivative is refused of, not zeros."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *arguments: Any) -> Any:
        del ctx
        return _redispatch(keyset, *arguments)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ARG004
        raise RuntimeError("attention's gradients are there once: it cannot differentiate twice")


def _once(keyset: Any, *arguments: Any) -> Any:
    if torch.is_grad_enabled() and any(
        isinstance(argument, Tensor) and argument.requires_grad for argument in arguments
    ):
        return _Once.apply(keyset, *arguments)  # type: ignore[no-untyped-call]
    return _redispatch(keyset, *arguments)


def _redispatch(keyset: Any, *arguments: Any) -> Any:
    operator = torch.ops.attention_tuner.backward.default
    return operator.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)
