"""The arithmetic of timing: samples, spread, and when a candidate is given up."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise, permutations

import pytest

from tuner.evaluate import timing


class Kernel:
    """A launch of `ms`, disturbed by `noise`; counts what it cost."""

    def __init__(self, ms: float, noise: float = 0.0, seed: int = 0) -> None:
        self.ms, self.noise, self.spent = ms, noise, 0.0
        self.random = random.Random(seed)
        self.beside_ms = 0.0  # that each launch takes besides, such as a flush of the L2

    def clock(self) -> float:
        return self.spent / 1e3

    def sample(self, launches: int) -> float:
        self.spent += (self.ms + self.beside_ms) * launches
        return self.ms * (1 + self.random.uniform(0, self.noise))


@pytest.mark.parametrize(
    ("launch_ms", "launches"), [(0.01, 500), (1.0, 5), (1.5, 4), (2.0, 3), (50.0, 3), (0.0, 5000)]
)
def test_launches_per_sample(launch_ms: float, launches: int) -> None:
    assert timing.launches_per_sample(launch_ms) == launches


def test_spread_is_the_interquartile_range_over_the_median() -> None:
    assert timing.spread([1.0]) == 0
    assert timing.spread([2.0, 2.0, 2.0]) == 0
    assert timing.spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("samples", "best", "slower"),
    [
        ([1.4, 1.4], None, False),  # nothing to be slower than
        ([1.4], 1.0, False),  # one sample says nothing
        ([1.4, 1.31], 1.0, True),
        ([1.4, 1.2], 1.0, False),  # one of them may be a disturbance
        ([1.15, 1.16, 1.15, 1.16], 1.0, True),
        ([1.15, 1.16, 1.15], 1.0, False),
        ([1.09, 1.09, 1.09, 1.09], 1.0, False),  # close enough for the finals
        ([1.0, 1.4, 1.0, 1.4], 1.0, False),  # too noisy to tell
        ([0.9] * 7, 1.0, False),
    ],
)
def test_slower(samples: list[float], best: float | None, slower: bool) -> None:
    assert timing.slower(samples, best) is slower


def test_a_typical_timing_takes_less_than_a_tenth_of_a_second() -> None:
    kernel = Kernel(1.5, 0.02)
    result = timing.take_samples(kernel.sample, 1.5, clock=kernel.clock)
    assert not result.pruned
    assert len(result.samples_ms) == timing.SAMPLES
    assert result.median_ms == pytest.approx(1.5, rel=0.02)
    assert kernel.spent < 80


def test_a_card_that_rested_is_under_load_before_it_is_timed() -> None:
    samples_ms = timing.SAMPLES * timing.SAMPLE_MS
    for rested_s, load_ms in ((0.01, 25), (0.5, 200), (3.0, 1200), (math.inf, 1500)):
        for ms in (0.01, 0.08, 1.5):
            kernel = Kernel(ms)
            timing.take_samples(kernel.sample, 1.5, rested_s, kernel.clock)
            assert load_ms - 1 < kernel.spent - samples_ms < load_ms + 15
        hopeless = Kernel(3.1)
        timing.take_samples(hopeless.sample, 1.5, rested_s, hopeless.clock)
        assert hopeless.spent < 7  # which needs no such care


@pytest.mark.parametrize(("ms", "beside_ms"), [(5.6, 0.0), (0.005, 0.1)])
def test_load_takes_no_longer_on_a_crowded_card_or_with_a_cold_l2(
    ms: float, beside_ms: float
) -> None:
    class Slower(Kernel):
        def sample(self, launches: int) -> float:
            if self.spent:  # the first had the card for itself
                self.ms, self.beside_ms = ms, beside_ms
            return super().sample(launches)

    kernel = Slower(min(ms, 0.4))
    timing.take_samples(kernel.sample, None, math.inf, kernel.clock)
    at_once = max(timing.LOAD_MS / 0.4 * ms, timing.LOADS * (ms + beside_ms))
    samples_ms = timing.SAMPLES * max(14 * timing.SAMPLE_MS, 1000 * (ms + beside_ms))
    assert kernel.spent < timing.MOST_LOAD_MS + at_once + samples_ms


@pytest.mark.parametrize(("ms", "budget"), [(1.2, 60), (1.4, 50), (2.5, 6), (80.0, 161)])
def test_the_slow_are_given_up_early(ms: float, budget: float) -> None:
    kernel = Kernel(ms, 0.01)
    result = timing.take_samples(kernel.sample, 1.0, clock=kernel.clock)
    assert result.pruned
    assert kernel.spent < budget


def test_a_first_slow_launch_condemns_nobody() -> None:
    times = iter([9.0])

    def sample(launches: int) -> float:
        return next(times, 1.0)

    assert not timing.take_samples(sample, 1.0).pruned


def test_the_best_is_pruned_by_noise_at_most_once_in_a_hundred() -> None:
    pruned = sum(
        timing.take_samples(Kernel(1.0, 0.05, seed).sample, 1.0).pruned for seed in range(200)
    )
    assert pruned <= 2


@pytest.mark.parametrize("count", range(1, 9))
def test_everyone_goes_first_and_follows_everyone_equally_often(count: int) -> None:
    rounds = [timing.balanced(count, index) for index in range(timing.cycle(count))]
    assert all(sorted(order) == list(range(count)) for order in rounds)
    firsts = Counter(order[0] for order in rounds)
    assert len(firsts) == count
    assert max(firsts.values()) == 1 + count % 2
    follows = Counter(pair for order in rounds for pair in pairwise(order))
    assert set(follows) == set(permutations(range(count), 2))
    assert max(follows.values(), default=1) <= 1 + count % 2


@pytest.mark.parametrize("count", range(4, 10))
def test_across_rounds_nobody_has_one_predecessor_most_of_the_time(count: int) -> None:
    rounds = 22
    ran = [entrant for index in range(rounds) for entrant in timing.balanced(count, index)]
    follows = Counter(pairwise(ran))
    assert all(follows[pair] >= 2 for pair in permutations(range(count), 2))
    assert max(follows.values()) <= rounds / 2
