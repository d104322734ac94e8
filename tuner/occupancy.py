"""How many blocks of a binary fit on one multiprocessor at once, by arithmetic alone.

The rules are those of the CUDA occupancy calculator: a warp gets registers in units of 256, a block
shared memory in units of 128 bytes and 1 KiB on top for the system.
"""

from __future__ import annotations

from kernels.attention.capability import limits
from kernels.attention.template import Resources

_BLOCKS_SM = {80: 32, 86: 16, 87: 16, 89: 24, 90: 32, 100: 32, 103: 32, 120: 24, 121: 24}


def blocks_per_sm(resources: Resources, warps: int, capability: int) -> int:
    """Resident blocks of `warps` warps each; 0 if not even one fits.

    Raises:
        KeyError: unknown capability; the message lists the known ones.
    """
    sm = limits(capability)
    registers_warp = _round_up(32 * resources.registers, 256)
    shared = _round_up(resources.shared_memory, 128) + 1024
    return min(
        _BLOCKS_SM.get(capability, 16),
        sm.threads_sm // (32 * warps),
        sm.registers // (registers_warp * warps) if registers_warp else sm.threads_sm,
        sm.shared_memory_sm // shared,
    )


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
