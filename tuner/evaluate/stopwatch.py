"""Time launches by CUDA events, and count their cycles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

import torch

from tuner.evaluate.sensor import Sensor
from tuner.trial import steady_ms

if TYPE_CHECKING:
    from tuner.evaluate.cycles import CycleCounter

Launch = Callable[[], object]

# Before the first event the GPU is kept busy for as long as the host may need to enqueue the
# launches, so that it then runs them back to back. The queue holds about a thousand.
_ENQUEUE_US = 20.0
_MOST_ENQUEUE_US = 2000.0
_CYCLES_PER_US = 1800

_LEAST_MHZ, _MOST_MHZ = 100, 5000  # of any SM's clock
_LEAST_COUNTED_MS = 1.0  # beside less the counting would count: it takes some 5 µs

_L2_BYTES = 256 << 20  # several times the L2 of any GPU we serve


@dataclass(frozen=True)
class Sample:
    """What a launch took, on average of several in a row."""

    ms: float
    cycles: float | None = None  # of the multiprocessors, where they are counted

    @property
    def clock_mhz(self) -> float | None:
        """What the multiprocessors ran at meanwhile, where cycles are counted."""
        return None if self.cycles is None else self.cycles / self.ms / 1e3

    @property
    def steady_ms(self) -> float:
        """Its ms at one clock for all, where cycles are counted."""
        return steady_ms(self.ms, self.cycles)


class Stopwatch(Protocol):
    sensor: Sensor

    def __call__(self, launch: Launch, launches: int) -> float:
        """Run `launch` so often, wait, and return the ms that one took on average."""

    def sample(self, launch: Launch, launches: int) -> Sample:
        """The same, with its cycles where they are counted."""
        return Sample(self(launch, launches))

    def each(self, launch: Launch, launches: int) -> list[float]:
        """The same, but the ms of every launch, timed one by one."""


class CudaStopwatch(Stopwatch):
    """Times on the current stream; reads the sensor once per call, while the launches run."""

    def __init__(self, sensor: Sensor, cold_l2: bool = False) -> None:
        """
        Args:
            cold_l2: empty the L2 cache before every launch. Then no cycles are counted: beside a
                single launch the counting would count.
        """
        self.sensor = sensor
        self._flush: torch.Tensor | None = None
        self._counter: CycleCounter | None = None
        if cold_l2:
            self._flush = torch.empty(_L2_BYTES, dtype=torch.uint8, device="cuda")
            return
        with suppress(Exception):  # then times are all there is
            from tuner.evaluate.cycles import CycleCounter

            self._counter = CycleCounter(torch.cuda.current_device())

    def __call__(self, launch: Launch, launches: int) -> float:
        return self.sample(launch, launches).ms

    def sample(self, launch: Launch, launches: int) -> Sample:
        if self._flush is not None:
            return Sample(fmean(self.each(launch, launches)))
        start, end = _event(), _event()
        _occupy(launches + 2)
        if self._counter:
            self._counter.start()
        start.record()
        for _ in range(launches):
            launch()
        end.record()
        if self._counter:
            self._counter.stop()
        self.sensor.read()
        end.synchronize()
        ms = float(start.elapsed_time(end)) / launches
        cycles = self._counter.count() / launches if self._counter else 0.0
        counted = launches * ms >= _LEAST_COUNTED_MS and _plausible(cycles, ms)
        return Sample(ms, cycles if counted else None)

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


def _plausible(cycles: float, ms: float) -> bool:
    """Whether a clock may have made so many: not if it was set back meanwhile."""
    return _LEAST_MHZ < cycles / max(ms, 1e-6) / 1e3 < _MOST_MHZ


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _occupy(launches: int) -> None:
    wait_us = min(launches * _ENQUEUE_US, _MOST_ENQUEUE_US)
    torch.cuda._sleep(int(wait_us * _CYCLES_PER_US))
