"""Occupancy against the CUDA occupancy calculator."""

from __future__ import annotations

import pytest

from kernels.attention.template import Resources
from tuner.occupancy import blocks_per_sm


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "capability", "blocks"),
    [
        (32, 0, 4, 90, 16),  # threads: 2048 / 128
        (32, 0, 1, 90, 32),  # the most blocks there may be
        (168, 0, 4, 90, 3),  # registers: 65536 / (5376·4)
        (255, 0, 8, 90, 1),
        (64, 113 * 1024, 8, 90, 2),  # shared memory: 228 KiB / (113 + 1) KiB
        (64, 114 * 1024, 8, 90, 1),
        (64, 48 * 1024, 4, 89, 2),
        (255, 0, 16, 90, 0),  # does not fit at all
    ],
)
def test_blocks(registers: int, shared: int, warps: int, capability: int, blocks: int) -> None:
    assert blocks_per_sm(Resources(registers, 0, shared), warps, capability) == blocks
