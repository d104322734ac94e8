"""Ctrl-C where it would be lost.

SQLAlchemy and Alembic clean up in callbacks of weak references. An exception that is raised in one,
and so a KeyboardInterrupt that happens to arrive there, is printed and forgotten.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Let Ctrl-C take effect at the end of the block; a second one at once, if that is far."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield  # it arrives in the main thread only, and not where it is ignored or ends the process
        return
    arrived = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal arrived
        if arrived:
            usual(number, frame)
        arrived = True

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if arrived:
            signal.raise_signal(signal.SIGINT)
