"""How many cycles the multiprocessors (SMs) go through between two moments on a stream.

Under its power cap a card changes its clock from one hundredth of a second to the next, by some 3 %
(H200 at 700 W), and with it the time of whatever runs; but hardly the cycles that it takes. So what
differs by 1 % is told apart in a dozen samples by its cycles, in some hundreds by its time. By both
the ratios come out the same: launches that take turns have the same clocks, on average.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
import triton
import triton.language as tl

_MOST_SMS = 1024  # above the largest %smid of any GPU


@triton.jit
def _read_clocks(clocks):  # type: ignore[no-untyped-def]  # a pointer to an int64 per SM
    """Note the clock of the SM that this program runs on: SMs count apart, from moments unknown."""
    clock = tl.inline_asm_elementwise(
        "mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    sm = tl.inline_asm_elementwise(
        "mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )
    tl.store(clocks + sm, clock)


class CycleCounter:
    """Counts on the current stream of a CUDA device."""

    def __init__(self, device: int = 0) -> None:
        """Compile the kernel, or find it compiled, and run it once.

        Raises:
            Exception: whatever Triton raises where it cannot.
        """
        self._programs = torch.cuda.get_device_properties(device).multi_processor_count
        self._clocks = torch.zeros(2, _MOST_SMS, dtype=torch.int64, device=f"cuda:{device}")
        self._first, self._last = self._clocks
        self.start()
        self.stop()
        self.count()

    def start(self) -> None:
        """Enqueue the first moment."""
        self._read(self._first)

    def stop(self) -> None:
        """Enqueue the last moment."""
        self._read(self._last)

    def count(self) -> int:
        """Wait for the last moment; the cycles since the first, by the median of all SMs: one that
        was passed over by either has counted since some earlier call."""
        first, last = self._clocks.tolist()
        return int(median(after - before for before, after in zip(first, last) if before))

    def _read(self, clocks: torch.Tensor) -> None:
        launch: Any = _read_clocks[(self._programs,)]
        launch(clocks, num_warps=1)
