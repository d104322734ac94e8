"""Which tensors a kernel can read and write in place, and copies of those it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ALIGNMENT = 16
"""Bytes. Wide loads and TMA descriptors both want bases and strides that are multiples of it."""


def aligned(tensor: Tensor) -> bool:
    """Whether the last stride is 1 and base and other strides are multiples of 16 bytes."""
    step = ALIGNMENT // tensor.element_size()
    strides = tensor.stride()
    return (
        strides[-1] == 1
        and all(stride % step == 0 for stride in strides[:-1])
        and tensor.data_ptr() % ALIGNMENT == 0
    )


def readable(tensor: Tensor) -> Tensor:
    """`tensor` itself if `aligned`, else a contiguous copy, which is."""
    if aligned(tensor):
        return tensor
    import torch

    # contiguous() would hand back a tensor that is contiguous but starts at an odd address.
    return tensor.clone(memory_format=torch.contiguous_format)
