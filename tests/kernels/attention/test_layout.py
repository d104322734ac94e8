"""Which tensors are taken as they lie, and what becomes of the others."""

from __future__ import annotations

import pytest
import torch

from kernels.attention.layout import MAX_ROW_STRIDE, aligned, readable


def strided(shape, strides, offset=0, device="cpu"):
    size = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides))
    return torch.arange(size, dtype=torch.float16, device=device).as_strided(shape, strides, offset)


def test_views_that_start_rows_at_16_bytes_are_taken_as_they_lie():
    packed = torch.zeros(2, 50, 3, 4, 64, dtype=torch.float16)
    for part in range(3):
        view = packed[:, :, part].transpose(1, 2)
        assert aligned(view)
        assert readable(view) is view
    expanded = torch.zeros(1, 1, 50, 64, dtype=torch.float16).expand(2, 4, 50, 64)
    assert readable(expanded) is expanded


def test_strides_of_dimensions_of_size_1_are_free():
    assert aligned(strided((1, 1, 1, 64), (7, 5, 3, 1)))
    assert not aligned(strided((1, 2, 1, 64), (7, 5, 3, 1)))


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((2, 2, 8, 64), (1024, 512, 1, 8), 0),  # last stride not 1
        ((2, 2, 8, 64), (1040, 520, 65, 1), 0),  # rows at odd multiples of 2 bytes
        ((2, 2, 8, 64), (1024, 516, 64, 1), 0),
        ((2, 2, 8, 64), (1028, 512, 64, 1), 0),
        ((2, 2, 8, 64), (1024, 512, 64, 1), 1),  # an odd start
    ],
)
def test_others_are_copied(shape, strides, offset):
    tensor = strided(shape, strides, offset)
    assert not aligned(tensor)
    copy = readable(tensor)
    assert aligned(copy)
    assert copy.is_contiguous()
    assert torch.equal(copy, tensor)


def test_rows_too_far_apart_for_32_bit_pointers_are_not_taken():
    def rows(stride):
        shape, strides = (1, 1, 2, 64), (0, 0, stride, 1)
        return torch.empty_strided(shape, strides, dtype=torch.float16, device="meta")

    assert not aligned(rows(MAX_ROW_STRIDE))
