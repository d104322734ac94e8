"""Commands that measure: `tuner bench`, `tuner record`."""

from __future__ import annotations


def bench() -> None:
    """Compare with SDPA."""


def record() -> None:
    """Measure whole spaces."""
