"""The command line: it parses, calls and renders, and holds no logic of its own."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_INTERRUPTED = 130


def main() -> None:
    """Entry point of the `tuner` command."""
    with _leaving_at_once():
        from tuner.cli import app
    try:
        app.main()
    except KeyboardInterrupt:  # before or after what reports it
        sys.exit(_INTERRUPTED)


@contextmanager
def _leaving_at_once() -> Iterator[None]:
    """End the process on Ctrl-C, while modules are loaded and nothing is to be undone: they might
    swallow an exception, or make an ImportError of it."""
    usual = signal.getsignal(signal.SIGINT)
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or usual is not signal.default_int_handler:  # it may be ignored, say
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
