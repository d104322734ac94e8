"""The short way of a forward: a call like an earlier one needs no validation and no planning.

Calls are alike if tensors agree in shape, strides, dtype and device, and the other arguments in
value: then the earlier call's checks and its prepared launch hold for this one too. What depends on
the moment is checked each time: addresses, gradients, the current device, and whether anything
intercepts operators (dispatch modes, function transforms, torch.jit.trace), which must see the
operator instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.layout import ALIGNMENT
from kernels.attention.template import Launch

# Distinct calls remembered; a model whose seqlen grows token by token meets a new one each time.
_KEPT = 8192
_MISALIGNED = ALIGNMENT - 1

_Key = tuple[object, ...]
_launches: dict[_Key, tuple[int, Launch]] = {}


def repeat(q: Tensor, k: Tensor, v: Tensor, causal: object, sm_scale: object) -> Tensor | None:
    """The output if this call is like one that was remembered, else None: then nothing was done."""
    if not (
        type(q) is Tensor
        and type(k) is Tensor
        and type(v) is Tensor
        and (causal is True or causal is False)  # 1 is equal, but not accepted
        and (sm_scale is None or type(sm_scale) is float)
    ):
        return None
    known = _launches.get(_key(q, k, v, causal, sm_scale))
    if known is None:
        return None
    index, launch = known
    if (
        index != torch._C._cuda_getDevice()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._is_tracing()
        or ((q.requires_grad or k.requires_grad or v.requires_grad) and torch.is_grad_enabled())
    ):
        return None
    q_address, k_address, v_address = q.data_ptr(), k.data_ptr(), v.data_ptr()
    if (q_address | k_address | v_address) & _MISALIGNED:
        return None
    out = torch.empty_like(q)
    launch(
        q_address,
        k_address,
        v_address,
        out.data_ptr(),
        None,
        torch._C._cuda_getCurrentRawStream(index),
    )
    return out


def remember(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float | None, launch: Launch
) -> None:
    """Serve calls like this one by `launch`. It was prepared for q's device."""
    if len(_launches) >= _KEPT:
        _launches.clear()
    _launches[_key(q, k, v, causal, sm_scale)] = q.get_device(), launch


def forget() -> None:
    """Let every call take the long way again."""
    _launches.clear()


def _key(q: Tensor, k: Tensor, v: Tensor, causal: object, sm_scale: object) -> _Key:
    return (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(),
        q.dtype, k.dtype, v.dtype, q.get_device(), k.get_device(), v.get_device(),
        causal, sm_scale,
    )  # fmt: skip
