"""Which tensors a kernel can read and write in place, and copies of those it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ALIGNMENT = 16
"""Bytes. Wide loads and TMA descriptors both want bases and strides that are multiples of it."""

MAX_ROW_STRIDE = 2**24
"""Elements. Kernels that read by pointers count in 32 bits within a tile of up to 128 rows."""


def aligned(tensor: Tensor) -> bool:
    """Whether the kernels take `tensor` (batch, heads, seqlen, headdim) as it lies: rows are dense,
    and they start at multiples of 16 bytes. Strides are otherwise free, those of dimensions of
    size 1 entirely."""
    step = ALIGNMENT // tensor.element_size()
    strides, shape = tensor.stride(), tensor.shape
    return (
        strides[3] == 1
        and (strides[2] % step == 0 or shape[2] == 1)
        and (strides[1] % step == 0 or shape[1] == 1)
        and (strides[0] % step == 0 or shape[0] == 1)
        and strides[2] < MAX_ROW_STRIDE
        and tensor.data_ptr() % ALIGNMENT == 0
    )


def readable(tensor: Tensor) -> Tensor:
    """`tensor` itself if `aligned`, else a contiguous copy, which is."""
    if aligned(tensor):
        return tensor
    import torch

    # contiguous() would hand back a tensor that is contiguous but starts at an odd address.
    return tensor.clone(memory_format=torch.contiguous_format)
