"""Time launches by CUDA events."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
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
        """Run `launch` so often, wait, and return the ms that one took on average."""

    def each(self, launch: Launch, launches: int) -> list[float]:
        """The same, but the ms of every launch, timed one by one."""


class CudaStopwatch:
    """Times on the current stream; reads the sensor once per call, while the launches run."""

    def __init__(self, sensor: Sensor, cold_l2: bool = False) -> None:
        """
        Args:
            cold_l2: empty the L2 cache before every launch.
        """
        self.sensor = sensor
        self._flush: torch.Tensor | None = None
        if cold_l2:
            self._flush = torch.empty(_L2_BYTES, dtype=torch.uint8, device="cuda")

    def __call__(self, launch: Launch, launches: int) -> float:
        if self._flush is not None:
            return fmean(self.each(launch, launches))
        start, end = _event(), _event()
        _occupy(launches)
        start.record()
        for _ in range(launches):
            launch()
        end.record()
        self.sensor.read()
        end.synchronize()
        return float(start.elapsed_time(end)) / launches

    def each(self, launch: Launch, launches: int) -> list[float]:
        pairs = [(_event(), _event()) for _ in range(launches)]
        _occupy(launches)
        for start, end in pairs:
            if self._flush is not None:
                self._flush.zero_()
            start.record()
            launch()
            end.record()
        self.sensor.read()
        pairs[-1][1].synchronize()
        return [float(start.elapsed_time(end)) for start, end in pairs]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _occupy(launches: int) -> None:
    wait_us = min(launches * _ENQUEUE_US, _MOST_ENQUEUE_US)
    torch.cuda._sleep(int(wait_us * _CYCLES_PER_US))
