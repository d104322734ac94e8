"""How good a sampler is on a space that is known whole, by the method of the autotuning community.

Willemsen, Nugteren, van Werkhoven et al., "A methodology for comparing optimization algorithms for
auto-tuning", Future Generation Computer Systems 159 (2024), as implemented by the package
autotuning_methodology 1.1.0, with evaluations on the horizontal axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CUTOFF_START, CUTOFF = 0.01, 0.95


@dataclass(frozen=True)
class Landscape:
    """The objective of every config of a space, in its order; NaN where it fails."""

    values: Array

    @property
    def optimum(self) -> float:
        return float(np.nanmin(self.values))

    def random_curve(self, evaluations: Sequence[int]) -> Array:
        """The best value that random search without replacement is expected to have after so many
        evaluations: of N values from worst to best, number round(M·(N+1)/(M+1)). What fails does
        not count, which favours random search."""
        descending = self._descending
        count = len(descending)
        ranks = [min(count - 1, round(m * (count + 1) / (m + 1))) for m in evaluations]
        return np.asarray(descending[ranks], dtype=float)

    def cutoff(self, fraction: float) -> int:
        """Evaluations after which random search has come `fraction` of the way from the median to
        the optimum."""
        descending = self._descending
        target = self.optimum + (float(np.median(descending)) - self.optimum) * (1 - fraction)
        rank = int(np.argmax(descending <= target))
        if descending[rank] == self.optimum and rank > 0:  # only the optimum is that good
            rank -= 1
        return ceil(rank / (len(descending) + 1 - rank))

    @property
    def window(self) -> tuple[int, int]:
        """First and last number of evaluations that count."""
        first, last = max(1, self.cutoff(CUTOFF_START)), self.cutoff(CUTOFF)
        return first, max(last, first + 1)

    @property
    def _descending(self) -> Array:
        return np.sort(self.values[np.isfinite(self.values)])[::-1]


@dataclass(frozen=True)
class Runs:
    """Several runs of one sampler on one landscape: the configs of each, in order, by index."""

    landscape: Landscape
    orders: Sequence[Sequence[int]]

    @cached_property
    def curves(self) -> Array:
        """Best value so far, a row per run: the worst there is before the first success, and the
        last one to the end where a run is shorter than the longest."""
        values = self.landscape.values
        worst = float(np.nanmax(values))
        rows = []
        for order in self.orders:
            tried = np.where(np.isfinite(values[list(order)]), values[list(order)], worst)
            best = np.minimum.accumulate(tried)
            rows.append(np.pad(best, (0, max(map(len, self.orders)) - len(best)), mode="edge"))
        return np.array(rows)

    def evaluations_to(self, within: float) -> float:
        """Median evaluations until a run is within this fraction of the optimum; infinite if most
        runs never are."""
        reached = self.curves <= self.landscape.optimum * (1 + within)
        counts = [1 + int(np.argmax(row)) if row.any() else np.inf for row in reached]
        return float(np.median(counts))

    def share_of_optimum(self, evaluations: int) -> float:
        """Mean over runs of optimum over best, after so many evaluations."""
        column = min(evaluations, self.curves.shape[1]) - 1
        return float(np.mean(self.landscape.optimum / self.curves[:, column]))

    def score(self, mean: bool = False, most: int | None = None) -> float:
        """1 where the optimum is found at once, 0 where progress is that of random search: the mean
        over the window of (random − F) / (random − optimum), F being the median over the runs of
        the best so far, or their mean, which forgives no unlucky run. The window ends at `most`
        evaluations, for runs that were cut off there."""
        first, last = self.landscape.window
        last = last if most is None else max(first + 1, min(last, most))
        evaluations = range(first, last + 1)
        baseline = self.landscape.random_curve(evaluations)
        curves = self.curves
        columns = [min(m, curves.shape[1]) - 1 for m in evaluations]
        middle = np.mean(curves, axis=0) if mean else np.median(curves, axis=0)
        gap = baseline - self.landscape.optimum
        counted = gap > 0
        return float(np.mean((baseline - middle[columns])[counted] / gap[counted]))

    def repeats(self) -> int:
        """Evaluations of a config that the run had evaluated before, over all runs."""
        return sum(len(order) - len(set(order)) for order in self.orders)
