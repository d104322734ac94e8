"""Time launches by CUDA events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from tuner.evaluate.sensor import Sensor

Launch = Callable[[], object]

# Before the first event the GPU is kept busy for as long as the host may need to enqueue the
# launches, so that it then runs them back to back. The queue holds about a thousand.
_ENQUEUE_US = 20.0
_MOST_ENQUEUE_US = 2000.0
_CYCLES_PER_US = 1800

_L2_BYTES = 256 << 20  # several times the L2 of any GPU we serve


class Stopwatch(Protocol):
    sensor: Sensor

    def __call__(self, launch: Launch, launches: int) -> float:
        """Run `launch` so often, wait, and return the ms that one took."""


class CudaStopwatch:
    """Mean of back-to-back launches on the current stream."""

    def __init__(self, sensor: Sensor, cold_l2: bool = False) -> None:
        """
        Args:
            sensor: read once per call, while the launches run.
            cold_l2: empty the L2 cache before every launch.
        """
        self.sensor = sensor
        self._flush = torch.empty(_L2_BYTES, dtype=torch.uint8, device="cuda") if cold_l2 else None

    def __call__(self, launch: Launch, launches: int) -> float:
        if self._flush is not None:
            return self._cold(launch, launches, self._flush)
        start, end = _event(), _event()
        _occupy(launches)
        start.record()
        for _ in range(launches):
            launch()
        end.record()
        self.sensor.read()
        end.synchronize()
        return float(start.elapsed_time(end)) / launches

    def _cold(self, launch: Launch, launches: int, flush: torch.Tensor) -> float:
        pairs = [(_event(), _event()) for _ in range(launches)]
        _occupy(launches)
        for start, end in pairs:
            flush.zero_()
            start.record()
            launch()
            end.record()
        self.sensor.read()
        pairs[-1][1].synchronize()
        return sum(float(start.elapsed_time(end)) for start, end in pairs) / launches


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _occupy(launches: int) -> None:
    wait_us = min(launches * _ENQUEUE_US, _MOST_ENQUEUE_US)
    torch.cuda._sleep(int(wait_us * _CYCLES_PER_US))  # type: ignore[no-untyped-call]
