"""The operator that all entry points use: attention forward on views of any strides, with lse.

It is a torch operator, so that torch.compile, torch.export, CUDA graphs and autograd see one node;
backward.py says how it is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kernels.attention.layout import aligned, readable
from kernels.attention.problem import HEADDIMS
from kernels.attention.template import Launch
from tuner import backward, fallback, plans
from tuner.plans import Plan
from tuner.validation import refuse_tangents


def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    causal_offset: int,
    sm_scale: float,
    wants_lse: bool = False,
    strict: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """out = softmax(sm_scale·q·kᵀ + mask)·v, and the logarithm of the softmax's denominator.

    The arguments must be valid (`validation.validate`), and without tangents. Differentiable in
    reverse, also within torch.compile.

    Args:
        q: (batch, heads, seqlen_q, headdim), any strides, on a CUDA device.
        k, v: (batch, heads_kv, seqlen_k, headdim or another for v); heads_kv divides heads.
        causal: row i sees the keys j ≤ i + causal_offset.
        causal_offset: 0 is SDPA's top-left alignment, seqlen_k − seqlen_q the bottom-right one.
        strict: raise where no template serves the call, instead of SDPA with one warning.

    Returns:
        out (batch, heads, seqlen_q, headdim_v), in q's dtype and order of strides, zeros in rows
        that see no key; lse (batch, heads, seqlen_q), fp32, natural logarithm, −∞ in such rows, or
        None if it is not wanted.

    Raises:
        NotImplementedError: strict, and no template serves the call.
    """
    # The backward wants it too, but not where it would be computed for that alone.
    keeps_lse = wants_lse or (needs_gradients(q, k, v) and _in_templates(q, v))
    out, lse = operator(
        q, k, v, causal, causal_offset if causal else 0, sm_scale, keeps_lse, strict
    )
    return out, lse if wants_lse else None


def needs_gradients(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a call with these tensors is recorded for a backward."""
    return torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)


def prepared_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    causal: bool,
    causal_offset: int,
    sm_scale: float,
    wants_lse: bool,
) -> Launch | None:
    """What launches calls like this one, which has just been served with `out`, straight on
    addresses; None where such calls need more than a launch."""
    if type(q) is not Tensor or sm_scale < 0 or q.numel() == 0:
        return None
    if torch._C._functorch.peek_interpreter_stack() is not None:  # whose tensors lie nowhere
        return None
    plan = plans.known(q, k, v, causal, wants_lse)
    if plan is None or plan.template is None or plan.binary is None:
        return None
    if not all(aligned(tensor) for tensor in (q, k, v, out)):
        return None
    with torch.cuda.device(q.device):
        return plan.template.prepare(
            plan.binary, q, k, v, out, sm_scale, causal_offset if causal else 0
        )


def _in_templates(q: Tensor, v: Tensor) -> bool:
    return q.dtype in plans.DTYPES and q.shape[3] in HEADDIMS and v.shape[3] == q.shape[3]


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    causal_offset: int,
    sm_scale: float,
    wants_lse: bool,
    strict: bool,
) -> tuple[Tensor, Tensor]:
    if forward_ad._current_level >= 0:  # compiled graphs call nothing but the operator
        _refuse_tangents(q, k, v)
    plan = plans.plan_for(q, k, v, causal, wants_lse)
    if plan.template is None:
        if strict:
            raise NotImplementedError(plan.refusal)
        return _by_sdpa(plan, q, k, v, causal, causal_offset, sm_scale, wants_lse)
    out, lse = _outputs(q, v, wants_lse)
    if out.numel() == 0:
        return out, lse
    if k.shape[2] == 0:
        return out.zero_(), lse.fill_(float("-inf"))
    index = q.device.index
    if index == torch.cuda.current_device():
        _launch(plan, q, k, v, out, lse if wants_lse else None, causal_offset, sm_scale)
    else:
        with torch.cuda.device(index):
            _launch(plan, q, k, v, out, lse if wants_lse else None, causal_offset, sm_scale)
    return out, lse


def _refuse_tangents(q: Tensor, k: Tensor, v: Tensor) -> None:
    # Only autograd sees them, which is switched off in here.
    guard, keys = torch._C._SetExcludeDispatchKeyGuard, torch._C.DispatchKey
    with guard(keys.AutogradFunctionality, False), guard(keys.ADInplaceOrView, False):
        refuse_tangents(q, k, v)


def _launch(
    plan: Plan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None,
    causal_offset: int,
    sm_scale: float,
) -> None:
    assert plan.template is not None
    assert plan.binary is not None
    q, k, v = (readable(tensor) for tensor in (q, k, v))
    target = readable(out)
    plan.template.launch(plan.binary, q, k, v, target, lse, sm_scale, causal_offset)
    if target is not out:
        out.copy_(target)


def _by_sdpa(
    plan: Plan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    causal_offset: int,
    sm_scale: float,
    wants_lse: bool,
) -> tuple[Tensor, Tensor]:
    out, lse = _outputs(q, v, wants_lse)
    if out.numel() == 0:
        return out, lse
    fallback.announce(plan.refusal)
    result = fallback.attention(q, k, v, causal, sm_scale, causal_offset)
    # SDPA's backends return layouts of their own; what the fake kernel promised must hold.
    out = result if result.stride() == out.stride() else out.copy_(result)
    if wants_lse:
        lse = fallback.log_sum_exp(q, k, causal, sm_scale, causal_offset)
    return out, lse


def _outputs(q: Tensor, v: Tensor, wants_lse: bool) -> tuple[Tensor, Tensor]:
    """Uninitialised: q's layout with v's headdim, and lse, which is empty if it is not wanted."""
    batch, heads, seqlen, headdim = q.shape
    if v.shape[3] == headdim:
        out = torch.empty_like(q)
    elif q.stride(1) < q.stride(2):  # rows before heads
        out = q.new_empty((batch, seqlen, heads, v.shape[3])).transpose(1, 2)
    else:
        out = q.new_empty((batch, heads, seqlen, v.shape[3]))
    return out, q.new_empty(q.shape[:3] if wants_lse else (0,), dtype=torch.float32)


def _fake(
    q: Tensor, _k: Tensor, v: Tensor, _causal: Any, _offset: Any, _scale: Any, lse: bool, _: Any
) -> tuple[Tensor, Tensor]:
    return _outputs(q, v, lse)


# Library, not the custom_op decorator: dispatch costs 2–3 µs a call instead of 11–15.
library = torch.library.Library("attention_tuner", "DEF")
library.define(
    "forward(Tensor q, Tensor k, Tensor v, bool causal, SymInt causal_offset, float sm_scale, "
    "bool wants_lse, bool strict) -> (Tensor out, Tensor lse)"
)
library.impl("forward", _forward, "CUDA")
# What torch.compile and torch.export see: shapes, dtypes and strides.
library.impl("forward", _fake, "Meta")
backward.register(library)
operator: Callable[..., tuple[Tensor, Tensor]] = torch.ops.attention_tuner.forward.default
