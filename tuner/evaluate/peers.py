"""The library kernels that candidates are compared with: SDPA's backends, and FlashAttention-3 and
-4 where they are installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tuner.evaluate.inputs import Inputs

Attention = Callable[[Tensor, Tensor, Tensor, bool], Tensor]
"""q, k, v and causal to the output."""

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "fa2": SDPBackend.FLASH_ATTENTION,
}


def sdpa(backend: SDPBackend | None, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """SDPA by one backend, or by the one it chooses itself."""
    if backend is None:
        return scaled_dot_product_attention(q, k, v, is_causal=causal)
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)


# Modules with a flash_attn_func(q, k, v, causal=…) on (batch, seqlen, heads, headdim), by name.
LIBRARIES = {
    "fa3": ("flash_attn_interface", "fa3_fwd_interface"),
    "fa4": ("flash_attn.cute",),
}


@cache
def library(name: str) -> Callable[..., object] | None:
    """The attention function of one of LIBRARIES; None where it is not installed, or broken."""
    for module in LIBRARIES[name]:
        try:
            function: Callable[..., object] = import_module(module).flash_attn_func
        except Exception:
            continue
        return function
    return None


def launches(inputs: Inputs) -> dict[str, Callable[[], object]]:
    """A launch of every peer on `inputs`, by name. One that cannot serve them raises."""
    q, k, v, causal = inputs.q, inputs.k, inputs.v, inputs.causal

    @cache
    def rows() -> tuple[Tensor, ...]:
        # Copies, made by the first launch that wants them: where there is no room for them, it is
        # those peers that fail.
        return tuple(tensor.transpose(1, 2).contiguous() for tensor in (q, k, v))

    def of_rows(function: Callable[..., object]) -> object:
        return function(*rows(), causal=causal)

    found: dict[str, Callable[[], object]] = {
        name: partial(sdpa, backend, q, k, v, causal) for name, backend in BACKENDS.items()
    }
    for name in LIBRARIES:
        if function := library(name):
            found[name] = partial(of_rows, function)
    return found
