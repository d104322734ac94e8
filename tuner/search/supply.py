"""How many proposals shall be under way: enough that no GPU waits for the compiler, and no more,
since what is proposed before those ahead of it have ended is proposed without their figures.

By rehearsal of three problems of which portable configs were recorded, which compile in 1 to 3 s,
with 15 compilers and empty caches: the winners are 0.0, 0.4 and 0.6 % from the best in the mean.
With as many ready as the sampler is patient with they are 0.4, 0.7 and 1.2 % from it, after as much
time or 1 s less.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import Future
from functools import partial
from statistics import median_low
from typing import Any

# What an evaluation takes before any has ended. The first one also loads what all others use, so
# that of few the lower middling one counts.
_EVALUATION_S = 0.3


class Supply:
    """What compilers and GPUs take in one exploration, and what follows from it.

    Args:
        compilers: how many compilations run at once.
        gpus: how many evaluations run at once.
        patience: of the sampler, as in `samplers.PATIENCE`; infinite for one that is told nothing.
    """

    def __init__(self, compilers: int, gpus: int, patience: float) -> None:
        self._compilers = compilers
        self._gpus = gpus
        self._patience = patience
        self._compiling: dict[Future[Any], float] = {}  # since when
        self._longest_s: float | None = None  # of the compilations that ended
        self._evaluations_s: list[float] = []

    def compiling(self, future: Future[Any]) -> None:
        """Watch how long this compilation takes, if it was not made ahead."""
        if not future.done():
            self._compiling[future] = time.monotonic()
            future.add_done_callback(self._compiled)

    def evaluating(self, future: Future[Any]) -> None:
        """Watch how long this evaluation takes."""
        if not future.done():
            future.add_done_callback(partial(self._evaluated, time.monotonic()))

    def has_room(self, compiling: int, ready: int, told: int, seeded: bool) -> bool:
        """Whether to propose one more.

        Args:
            compiling: candidates that are being compiled.
            ready: that are compiled, and wait for a GPU.
            told: trials that the sampler knows of.
            seeded: the next proposal is none of the sampler's, and needs no figures.
        """
        busy: float = self._compilers
        if not seeded:
            busy = min(busy, max(self._patience, told + self._gpus))
        most = busy + min(busy, self._patience)
        if not seeded and not math.isinf(self._patience):
            most = min(most, self._enough)
        return compiling < busy and compiling + ready < most

    @property
    def _enough(self) -> float:
        """With so many under way the GPUs have something to do until the next is compiled."""
        if self._longest_s is None:
            return math.inf
        # The longest, also of those under way: what is in a cache, or simple, ends first.
        began = min(list(self._compiling.values()), default=math.inf)
        compilation_s = max(self._longest_s, time.monotonic() - began)
        evaluation_s = max(1e-3, median_low([_EVALUATION_S, *self._evaluations_s]))
        return self._gpus + math.ceil(self._gpus * compilation_s / evaluation_s)

    def _compiled(self, future: Future[Any]) -> None:
        took_s = time.monotonic() - self._compiling.pop(future)
        if not future.cancelled():
            self._longest_s = max(took_s, self._longest_s or 0.0)

    def _evaluated(self, began: float, future: Future[Any]) -> None:
        if not future.cancelled():
            self._evaluations_s.append(time.monotonic() - began)
