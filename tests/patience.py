"""How long tests wait for what takes an instant: far longer than it takes, for a busy machine may
stand still for seconds, and far shorter than what it must not wait for would last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ANSWER_S = 60.0  # for a process that is well to answer, the start of Python included
SILENCE_S = 10.0  # after which one that hangs is given up, in which one that is well answers


@contextmanager
def promptly(seconds: float = 25.0) -> Iterator[None]:
    """What is done within does not wait for what would hold it up."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


def in_one_of(tries: int, holds: Callable[[], bool]) -> bool:
    """Whether `holds` does at least once: for times, to which a busy machine only adds."""
    return any(holds() for _ in range(tries))


def wait_until(condition: Callable[[], bool], seconds: float = ANSWER_S) -> bool:
    """Whether `condition` holds before so many seconds are over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()
