"""What NVML says of a card at work, by a library that stands in for it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.evaluate.sensor import Sensor


class NVMLError(Exception):
    """The library's own."""


class Library(SimpleNamespace):
    """Of a card whose readings are set by the test."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    clock, milliwatts, reasons = 1500, 690_000, 0x04
    lost = False

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        if self.lost:
            raise NVMLError
        return self.clock

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return self.milliwatts

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:  # noqa: N802
        return self.reasons


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    library = Library()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


def test_readings_are_told_by_their_medians_once(nvml: Any) -> None:
    sensor = Sensor("GPU-1")
    for nvml.clock, nvml.milliwatts in ((1400, 600_000), (1500, 690_000), (1980, 695_000)):
        sensor.read()
    assert sensor.clock_since(1) == 1740
    assert sensor.take() == (1500, 690)
    assert sensor.take() == (None, None)


def test_what_holds_clocks_down_is_told_but_for_the_power_cap(nvml: Any) -> None:
    sensor = Sensor("GPU-1")
    for nvml.reasons in (0x04, 0x20, 0x40, 0x88):
        sensor.read()
    assert sensor.take_throttles() == ("hardware slowdown", "heat", "power brake")
    assert sensor.take_throttles() == ()


def test_a_card_that_is_lost_is_measured_without(nvml: Any) -> None:
    sensor = Sensor("GPU-1")
    sensor.read()
    nvml.lost = True
    sensor.read()
    sensor.read()
    assert sensor.readings == 1
