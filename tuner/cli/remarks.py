"""What modules log and warn of, as remarks of the command line: under its name, and each once,
though a command may read a database twice."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tuner.cli.failure import warn


class _Once(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.say(record.getMessage())

    def say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            warn(text)


@contextmanager
def said_as_remarks() -> Iterator[None]:
    """Within the block, what we log and warn of goes to stderr, a line each."""
    shown_before = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        # The place is a line of ours, or of Typer's: nothing that a command was given.
        if category.__module__.partition(".")[0] == "tuner":
            handler.say(str(message))
        else:
            shown_before(message, category, filename, lineno, file, line)

    handler, logger = _Once(), logging.getLogger("tuner")
    logger.addHandler(handler)
    # It reports, with a traceback, each connection that Ctrl-C kept it from closing.
    pool = logging.getLogger("sqlalchemy.pool")
    level = pool.level
    pool.setLevel(logging.CRITICAL)
    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = shown_before
        logger.removeHandler(handler)
        pool.setLevel(level)
