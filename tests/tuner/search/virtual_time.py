"""Time that passes only while somebody waits, and as far as he waits for.

A search in it goes the same way on every machine, however busy, and takes none of the real time.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any

import pytest

from tuner.search import driver, exploration, supply, verdict
from tuner.search.budget import Budget


class VirtualTime:
    """A clock, and what will happen at which of its moments."""

    def __init__(self) -> None:
        self.now = 100.0
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), happen))

    def pass_until(self, over: Callable[[], bool], timeout: float | None = None) -> None:
        end = math.inf if timeout is None else self.now + timeout
        while not over():
            if not self._due or self._due[0][0] > end:
                assert not math.isinf(end), "a wait for what never happens"
                self.now = end
                return
            self.now, _, happen = heapq.heappop(self._due)
            happen()

    def wait(
        self, futures: Iterable[Future[Any]], timeout: float | None = None, **_: object
    ) -> tuple[set[Future[Any]], set[Future[Any]]]:
        """As concurrent.futures.wait, for the first that is done."""
        of = set(futures)
        self.pass_until(lambda: not of or any(future.done() for future in of), timeout)
        done = {future for future in of if future.done()}
        return done, of - done

    def rule(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Be the time of all searches."""
        monkeypatch.setattr(exploration, "wait", self.wait)
        for module in (driver, supply, verdict):
            monkeypatch.setattr(module, "time", self)
        monkeypatch.setattr(driver, "Budget", partial(Budget, clock=self.monotonic))


class _Result(Future[Any]):
    def __init__(self, time: VirtualTime) -> None:
        super().__init__()
        self._time = time

    def result(self, timeout: float | None = None) -> Any:
        self._time.pass_until(self.done, timeout)
        return super().result(timeout)


class Workers:
    """So many, each of whom takes the oldest piece of work when it has done its last."""

    def __init__(self, time: VirtualTime, number: int) -> None:
        self._time = time
        self._free = number
        self._waiting: deque[tuple[_Result, float, Callable[[], Any]]] = deque()

    def submit(self, seconds: float, work: Callable[[], Any]) -> Future[Any]:
        """What `work` returns, from when a worker is free and `seconds` are over."""
        result = _Result(self._time)
        self._waiting.append((result, seconds, work))
        self._begin()
        return result

    def _begin(self) -> None:
        while self._free and self._waiting:
            result, seconds, work = self._waiting.popleft()
            if result.set_running_or_notify_cancel():
                self._free -= 1
                self._time.after(seconds, partial(self._end, result, work))

    def _end(self, result: _Result, work: Callable[[], Any]) -> None:
        self._free += 1
        result.set_result(work())
        self._begin()
