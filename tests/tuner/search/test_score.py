from __future__ import annotations

import numpy as np
import pytest

from tuner.search.score import Landscape, Runs

# Two failures among a hundred values; the optimum is 1.
VALUES = np.array([*np.linspace(1, 2, 98), np.nan, np.nan])
MANY = Landscape(np.exp(0.3 * np.random.default_rng(1).standard_normal(2000)))


@pytest.fixture
def landscape() -> Landscape:
    return Landscape(VALUES)


def random_runs(landscape: Landscape, count: int) -> Runs:
    random = np.random.default_rng(0)
    right = np.flatnonzero(np.isfinite(landscape.values))
    return Runs(landscape, [random.permutation(right) for _ in range(count)])


def test_the_random_curve_is_that_of_random_search(landscape: Landscape) -> None:
    evaluations = [1, 2, 5, 10, 20]
    simulated = random_runs(landscape, 4000).curves.mean(axis=0)[[m - 1 for m in evaluations]]
    assert landscape.random_curve(evaluations) == pytest.approx(simulated, abs=0.02)


def test_random_search_scores_0_and_the_optimum_at_once_1(landscape: Landscape) -> None:
    assert random_runs(MANY, 500).score() == pytest.approx(0.0, abs=0.1)
    assert Runs(landscape, [[0], [0, 5]]).score() == 1.0


def test_worse_than_random_is_negative(landscape: Landscape) -> None:
    worst_first = np.argsort(-VALUES[:98])
    assert Runs(landscape, [worst_first.tolist()]).score() < 0


def test_the_cutoff_is_where_random_search_has_come_95_per_cent_of_the_way() -> None:
    def way(evaluations: int) -> float:
        median = float(np.median(MANY.values))
        return (median - MANY.random_curve([evaluations])[0]) / (median - MANY.optimum)

    last = MANY.window[1]
    assert way(last) == pytest.approx(0.95, abs=0.05)
    assert way(last // 4) < 0.9


def test_evaluations_shares_and_repeats(landscape: Landscape) -> None:
    runs = Runs(landscape, [[97, 98, 10, 0], [50, 0, 50], [99, 97, 96, 95]])
    assert runs.evaluations_to(0.0) == 4
    assert runs.evaluations_to(0.2) == 3
    assert runs.repeats() == 1
    assert runs.share_of_optimum(1) == pytest.approx((0.5 + 1 / VALUES[50] + 0.5) / 3)
    assert Runs(landscape, [[97], [96], [0]]).evaluations_to(0.05) == np.inf
