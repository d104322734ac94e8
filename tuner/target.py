"""Where a kernel runs: the hardware, which a record is identified by, and the software."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Hardware:
    """Identity of a GPU for tuning. Its marketing name is a label and no part of it: one chip is
    sold under several names, and one name covers chips of different speed."""

    capability: int  # 90 for sm_90
    sm_count: int  # 0: any card of this capability
    memory_gib: int
    power_limit_w: int  # 0 where NVML does not answer

    @property
    def key(self) -> str:
        return f"sm{self.capability}-{self.sm_count}x-{self.memory_gib}gib-{self.power_limit_w}w"

    def __str__(self) -> str:
        if not self.sm_count:
            return f"sm_{self.capability}"
        power = f"{self.power_limit_w} W" if self.power_limit_w else "power limit unknown"
        return f"sm_{self.capability}, {self.sm_count} SMs, {self.memory_gib} GiB, {power}"


@dataclass(frozen=True, order=True)
class Target:
    """Hardware plus the software that decides speed, and the GPU's name as a label."""

    hardware: Hardware
    gpu_name: str
    triton: str
    torch: str
    driver: str

    def __str__(self) -> str:
        if not self.hardware.sm_count:  # any card of a capability, under whatever software
            return self.gpu_name
        return f"{self.gpu_name} ({self.hardware}), Triton {self.triton}"
