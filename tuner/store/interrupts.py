"""Ctrl-C where it would be lost.

SQLAlchemy and Alembic clean up in callbacks of weak references. An exception that is raised in one,
and so a KeyboardInterrupt that happens to arrive there, is printed and forgotten. Extension modules
that are interrupted while they load turn it into an ImportError.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


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


_noting: Callable[[], bool] | None = None  # what the outermost block hands over


@contextmanager
def noting_interrupts() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C take effect as usual, and hand over what tells whether one has arrived within the
    block, or the outermost such block around it: then what went wrong since, or went on, may be
    due to it. One that is swallowed is swallowed without a traceback."""
    global _noting
    usual = signal.getsignal(signal.SIGINT)
    if _noting is not None:
        yield _noting
        return
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield lambda: False
        return
    arrived = False
    report = sys.unraisablehook

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal arrived
        arrived = True
        usual(number, frame)

    def unraisable(swallowed: Any) -> None:
        if swallowed.exc_type is not KeyboardInterrupt:
            report(swallowed)

    signal.signal(signal.SIGINT, note)
    sys.unraisablehook = unraisable
    _noting = lambda: arrived  # noqa: E731
    try:
        yield _noting
    finally:
        _noting = None
        sys.unraisablehook = report
        signal.signal(signal.SIGINT, usual)
