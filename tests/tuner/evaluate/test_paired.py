from __future__ import annotations

import random

import pytest

from tuner.evaluate.paired import beaten, ratio, settled, slower


def test_drift_that_hits_all_alike_does_not_hide_a_difference() -> None:
    drift = [1 + 0.05 * i for i in range(11)]
    slow = tuple(1.02 * d for d in drift)
    assert slower(slow, tuple(drift))
    assert not slower(tuple(drift), slow)


def test_a_single_disturbed_round_decides_nothing() -> None:
    calm = (1.0,) * 11
    disturbed = (1.5,) + (1.0,) * 10
    assert not slower(disturbed, calm)


def test_a_difference_too_small_to_matter_is_a_tie() -> None:
    assert not slower((1.001,) * 11, (1.0,) * 11)
    assert slower((1.01,) * 11, (1.0,) * 11)


def noisy(ms: float, noise: float, rounds: int, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [ms * (1 + draw.gauss(0, noise)) for _ in range(rounds)]


def test_a_race_is_settled_once_all_are_beaten_or_tied_for_good() -> None:
    calm = noisy(1.0, 0.001, 11)
    assert settled([])
    assert settled([calm])
    assert settled([calm, noisy(1.02, 0.001, 11, 1)])  # beaten
    assert settled([calm, noisy(1.001, 0.001, 11, 1)])  # tied
    unsure = noisy(1.002, 0.02, 11, 1)
    assert not settled([calm, unsure])
    assert not settled([calm, noisy(1.02, 0.001, 11, 1), unsure])
    assert settled([calm, noisy(1.5, 0.02, 11, 1)])  # noisy, but far behind


def test_more_rounds_settle_it() -> None:
    lanes = [noisy(1.0, 0.006, 40, seed) for seed in (1, 2)]
    assert not settled([lane[:5] for lane in lanes])
    assert settled(lanes)


def test_beaten_is_who_would_be_slower_in_hardly_any_other_race() -> None:
    calm = noisy(1.0, 0.001, 11)
    close, behind = noisy(1.005, 0.001, 11, 1), noisy(1.02, 0.001, 11, 1)
    assert slower(close, calm)
    assert not beaten(close, calm)
    assert beaten(behind, calm)
    assert not beaten(calm, behind)
    assert not beaten(noisy(1.02, 0.05, 11, 1), calm)
    assert beaten([1.02], [1.0])
    assert not beaten([1.004], [1.0])


def test_a_ratio_is_of_the_rounds_that_both_ran_in() -> None:
    assert ratio([1.1, 2.2, 3.3], [1.0, 2.0, 3.0, 1.0, 1.0]) == pytest.approx(1.1)
