"""The library kernels that candidates are compared with: SDPA's backends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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


def launches(inputs: Inputs) -> dict[str, Callable[[], Tensor]]:
    """A launch of every peer on `inputs`, by name. One that cannot serve them raises."""
    q, k, v, causal = inputs.q, inputs.k, inputs.v, inputs.causal
    return {name: partial(sdpa, backend, q, k, v, causal) for name, backend in BACKENDS.items()}
