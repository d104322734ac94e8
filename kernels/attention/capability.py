"""What a block may use on each compute capability.

Source: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"
(maximum shared memory per thread block and per multiprocessor, 32-bit registers).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Per-block and per-multiprocessor limits of one compute capability."""

    shared_memory: int  # bytes one block may have, after opting in
    shared_memory_sm: int  # bytes of one multiprocessor; each resident block takes 1024 of its own
    threads_sm: int
    registers: int = 65536  # 32-bit registers of one block, and of one multiprocessor
    registers_thread: int = 255


_KIB = 1024
_LIMITS = {
    80: Limits(163 * _KIB, 164 * _KIB, 2048),
    86: Limits(99 * _KIB, 100 * _KIB, 1536),
    87: Limits(163 * _KIB, 164 * _KIB, 1536),
    89: Limits(99 * _KIB, 100 * _KIB, 1536),
    90: Limits(227 * _KIB, 228 * _KIB, 2048),
    100: Limits(227 * _KIB, 228 * _KIB, 2048),
    103: Limits(227 * _KIB, 228 * _KIB, 2048),
    120: Limits(99 * _KIB, 100 * _KIB, 1536),
    121: Limits(99 * _KIB, 100 * _KIB, 1536),
}


def supported() -> tuple[int, ...]:
    """The compute capabilities that have limits here, ascending (90 for sm_90)."""
    return tuple(_LIMITS)


def limits(capability: int) -> Limits:
    """The limits of `capability`.

    Raises:
        KeyError: unknown capability; the message lists the known ones.
    """
    try:
        return _LIMITS[capability]
    except KeyError:
        known = ", ".join(f"sm_{c}" for c in _LIMITS)
        raise KeyError(f"capability is sm_{capability}, but must be one of {known}") from None
