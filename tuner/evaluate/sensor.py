"""Clock and power of a GPU while it works, and what holds its clocks down, where NVML answers."""

from __future__ import annotations

import statistics
from typing import Any

# Bits of NVML's clocks event reasons (nvml.h) that mean that figures are not those of a healthy
# card. The power cap is none: attention runs into it on every card.
_THROTTLES = {0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}


class Sensor:
    """Collects readings; the medians of what was collected describe a measurement."""

    def __init__(self, uuid: str | None) -> None:
        """
        Args:
            uuid: the GPU's, as NVML spells it ("GPU-…"); None reads nothing.
        """
        self._clocks: list[int] = []
        self._powers: list[float] = []
        self._throttles: set[str] = set()
        self._handle: Any = None
        if uuid is None:
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception:  # no library, no permission, a MIG slice: measure without
            self._handle = None

    def read(self) -> None:
        """Take a reading now; costs the host about a millisecond."""
        if self._handle is None:
            return
        import pynvml

        try:
            clock = pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM)
            power = pynvml.nvmlDeviceGetPowerUsage(self._handle)
        except pynvml.NVMLError:
            self._handle = None
            return
        self._clocks.append(clock)
        self._powers.append(power / 1000)
        try:
            bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        except (pynvml.NVMLError, AttributeError):
            return
        self._throttles |= {name for bit, name in _THROTTLES.items() if bits & bit}

    @property
    def readings(self) -> int:
        """How many there were since the last `take`."""
        return len(self._clocks)

    def clock_since(self, reading: int) -> float | None:
        """Median SM clock in MHz from that reading on; None where unknown."""
        clocks = self._clocks[reading:]
        return statistics.median(clocks) if clocks else None

    def take_throttles(self) -> tuple[str, ...]:
        """What held the clocks down since the last call, besides the power cap."""
        throttles, self._throttles = self._throttles, set()
        return tuple(sorted(throttles))

    def take(self) -> tuple[int | None, int | None]:
        """Median SM clock in MHz and power in W since the last call; None where unknown."""
        clocks, powers = self._clocks, self._powers
        self._clocks, self._powers = [], []
        if not clocks:
            return None, None
        return round(statistics.median(clocks)), round(statistics.median(powers))
