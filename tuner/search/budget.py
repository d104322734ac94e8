"""The time of a search: one hard deadline, and a problem's share of what is left until then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

# Of a problem's share, what is kept for its finals: this fraction, at most so many seconds. Most
# take half of that; those that would take more decide for less long.
_FINALS_SHARE, _FINALS_SECONDS = 0.3, 13.0


class Budget:
    """Wall clock for all problems of a search together.

    A share is handed out only once a problem has what it must wait for, and is an equal part of
    what is left then: nobody pays alone for the first compilations of a specialization, and what a
    problem does not use goes to those after it.
    """

    def __init__(
        self,
        seconds: float | None = None,
        problems: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            seconds: from now; None for no limit.
            problems: in all.
        """
        self.clock = clock
        self._end = clock() + (math.inf if seconds is None else seconds)
        self._last_call = self._end - _reserve(self.left / max(1, problems))

    @property
    def left(self) -> float:
        """Seconds until the hard deadline; 0 after it."""
        return max(0.0, self._end - self.clock())

    @property
    def spent(self) -> bool:
        """Whether the last call is over, so that no problem need be begun."""
        return self.clock() >= self._last_call

    @property
    def last_call(self) -> float:
        """When, on the clock, a problem must go to its finals whatever it lacks: in time for them
        before the hard deadline."""
        return self._last_call

    def part(self, problems: int) -> float:
        """Seconds of the first of `problems` still to be searched: its equal part of what is
        left."""
        return self.left / max(1, problems)

    def share(self, problems: int) -> float:
        """When, on the clock, the first of `problems` still to be searched should go to its finals:
        its equal share of what is left, less what these take."""
        part = self.part(problems)
        return self.clock() + part - _reserve(part)


class Share:
    """What one problem has of a budget. Until it begins, that is all the time until the last call:
    waiting for what must be tried is nobody's share."""

    def __init__(self, budget: Budget, problems: int = 1) -> None:
        """
        Args:
            problems: still to be searched with `budget`, this one included.
        """
        self.clock = budget.clock
        self._budget = budget
        self._problems = problems
        self._until: float | None = None
        self._first_ended: float | None = None

    def begin(self) -> None:
        """From now on, if it did not before."""
        if self._until is None:
            self._until = min(self._budget.share(self._problems), self._budget.last_call)

    @property
    def left(self) -> float:
        """Seconds until the problem should go to its finals; 0 after that."""
        end = self._budget.last_call if self._until is None else self._until
        return max(0.0, end - self.clock())

    def eta_s(self, done: int, trials: int) -> float | None:
        """Seconds until all of `trials` will have ended, or the time is up, told as each of the
        `done` ends. None after the first, which may have waited for processes and compilers, as no
        other does."""
        if self._first_ended is None or done < 2:
            self._first_ended = self.clock()
            return None
        each_s = (self.clock() - self._first_ended) / (done - 1)
        return min(each_s * (trials - done), math.inf if self._until is None else self.left)


def _reserve(seconds: float) -> float:
    return 0.0 if math.isinf(seconds) else min(_FINALS_SHARE * seconds, _FINALS_SECONDS)
