"""Clock and power of a GPU while it works, where NVML answers."""

from __future__ import annotations

import statistics
from typing import Any


class Sensor:
    """Collects readings; the medians of what was collected describe a measurement."""

    def __init__(self, uuid: str | None) -> None:
        """
        Args:
            uuid: the GPU's, as NVML spells it ("GPU-…"); None reads nothing.
        """
        self._clocks: list[int] = []
        self._powers: list[float] = []
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

    def take(self) -> tuple[int | None, int | None]:
        """Median SM clock in MHz and power in W since the last call; None where unknown."""
        clocks, powers = self._clocks, self._powers
        self._clocks, self._powers = [], []
        if not clocks:
            return None, None
        return round(statistics.median(clocks)), round(statistics.median(powers))
