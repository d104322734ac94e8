"""How many launches, how many samples, when to stop: the arithmetic of timing, without a GPU."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# A sample is the mean of several launches that last about this long together: long enough to bury
# the resolution of CUDA events (0.5 µs) and the first launch's latency.
SAMPLE_MS = 5.0
LEAST_LAUNCHES = 3
WARM_UP_MS = 25.0
SAMPLES = 7
# A card that rested is faster at first than under its power cap: a cold H200 was seen to run at
# 1980 MHz, a seventh above the clock that it kept, for more than 0.4 s. So load goes before the
# first sample, the longer the longer it rested: who waited for so long has the time.
LOAD_PER_REST = 0.4
MOST_LOAD_MS = 1500.0
# At most so much of it before the clock is looked at: where others use the card a launch takes many
# times what the first took, and with a flush of the L2 before each, many times what it says.
LOAD_MS, LOADS = 100.0, 1000

# So many of those that compete in a heat, which is of short rounds, reach the race.
PLACES = 4
HEAT_ROUNDS, HEAT_SAMPLE_MS = 16, 5.0
# What a race may take to tell the fastest apart once they are alone: 200 rounds of two lanes, or 80
# of five. Where a sample differs from the next by 3 %, as times do, 100 rounds tell what differs by
# 1 %. By cycles the rounds with the peers mostly do, and this is not begun.
DECIDE_S = 6.0

# Single launches this many times slower than the best end the timing before it began.
HOPELESS = 2.0
# Two samples this many times slower end it: where no cycles are counted, a power-capped clock
# cannot fall that far below the one that the best was timed at.
CLEARLY_SLOW = 1.3
# From four samples on a one-sided t-test at 1 % decides whether the mean is slower by more than
# this: what is closer may win the finals, where rounds are interleaved.
SLOWER = 1.1
_T_99 = {4: 4.541, 5: 3.747, 6: 3.365, 7: 3.143, 8: 2.998}  # by number of samples


@dataclass(frozen=True)
class Timing:
    """Samples in ms per launch, and whether they were cut short."""

    samples_ms: tuple[float, ...]
    pruned: bool

    @property
    def median_ms(self) -> float:
        return statistics.median(self.samples_ms)


def spread(samples: Sequence[float]) -> float:
    """Interquartile range over the median; 0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / middle


def launches_per_sample(launch_ms: float, sample_ms: float = SAMPLE_MS) -> int:
    """How many launches of `launch_ms` each fill a sample."""
    return max(LEAST_LAUNCHES, math.ceil(sample_ms / max(launch_ms, 1e-3)))


def slower(samples: Sequence[float], best_ms: float | None) -> bool:
    """Whether samples so far say that a candidate is clearly slower than `best_ms`."""
    count = len(samples)
    if best_ms is None or count < 2:
        return False
    if min(samples) > CLEARLY_SLOW * best_ms:
        return True
    if count not in _T_99:
        return False
    error = statistics.stdev(samples) / math.sqrt(count)
    return statistics.fmean(samples) - _T_99[count] * error > SLOWER * best_ms


def take_samples(
    sample: Callable[[int], float],
    best_ms: float | None,
    rested_s: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time a launch that ran before.

    Args:
        sample: runs so many launches and returns the ms that one took.
        best_ms: the fastest candidate so far; timing stops early once this one is clearly slower.
        rested_s: for how long the card has had no such load.
        clock: seconds.
    """
    first = sample(1)
    if best_ms is not None and first > HOPELESS * best_ms:
        second = sample(1)
        if second > HOPELESS * best_ms:
            return Timing((first, second), pruned=True)
        first = second
    left_ms = min(max(WARM_UP_MS, LOAD_PER_REST * 1e3 * rested_s), MOST_LOAD_MS)
    until = clock() + left_ms / 1e3
    while left_ms > 0:
        launches = launches_per_sample(first, min(left_ms, LOAD_MS))
        first = min(first, sample(min(launches, LOADS)))
        left_ms = (until - clock()) * 1e3
    launches = launches_per_sample(first)
    samples: list[float] = []
    while len(samples) < SAMPLES:
        samples.append(sample(launches))
        if len(samples) < SAMPLES and slower(samples, best_ms):
            return Timing(tuple(samples), pruned=True)
    return Timing(tuple(samples), pruned=False)


def balanced(count: int, round_index: int) -> list[int]:
    """The order of `count` entrants in a round: over a `cycle` each goes first and follows every
    other equally often, or all but, if they are odd in number. Who ends a round is followed by ever
    another one.

    For under a power cap, what ran before decides at which clock one runs: after FlashAttention-2,
    at 260 TFLOP/s, a kernel of 700 was seen to be a tenth faster than after one of 700. In parts of
    a cycle the same kernel under two names was seen to differ by 1 to 2 %, in whole ones by 0.3 %.

    Williams, Experimental Designs Balanced for the Estimation of Residual Effects of Treatments
    (1949), with a place left empty where the number is odd.
    """
    places = cycle(count)
    zigzag = [step // 2 if step % 2 == 0 else places - 1 - step // 2 for step in range(places)]
    order = [(entrant + zigzag[round_index % places]) % places for entrant in zigzag]
    return [entrant for entrant in order if entrant < count]


def cycle(count: int) -> int:
    """How many rounds it takes until `balanced` has treated `count` entrants alike."""
    return count + count % 2
