"""What modules log, as remarks of the command line: under its name, and each once, though a command
may read a database twice."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tuner.cli.failure import warn


class _Once(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._said:
            self._said.add(text)
            warn(text)


@contextmanager
def logged_as_remarks() -> Iterator[None]:
    """Within the block, warnings of ours go to stderr, a line each."""
    handler, logger = _Once(), logging.getLogger("tuner")
    logger.addHandler(handler)
    # It reports, with a traceback, each connection that Ctrl-C kept it from closing.
    pool = logging.getLogger("sqlalchemy.pool")
    level = pool.level
    pool.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        pool.setLevel(level)
