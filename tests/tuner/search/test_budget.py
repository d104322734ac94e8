from __future__ import annotations

import math

import pytest

from tuner.search.budget import Budget


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_share_is_an_equal_part_of_what_is_left_less_the_finals() -> None:
    clock = Clock()
    budget = Budget(100.0, 10, clock)
    assert budget.share(10) == pytest.approx(100 + 10 - 3)
    assert budget.share(2) == pytest.approx(100 + 50 - 15)


def test_what_one_leaves_goes_to_those_after_it() -> None:
    clock = Clock()
    budget = Budget(100.0, 10, clock)
    clock.now += 1.0  # the first of ten took 1 s instead of 10
    assert budget.share(9) - clock.now == pytest.approx(0.7 * 11)


def test_the_last_call_leaves_time_for_the_finals() -> None:
    clock = Clock()
    budget = Budget(100.0, 10, clock)
    clock.now += 99.0
    assert budget.last_call == pytest.approx(200 - 3)
    assert budget.spent
    assert budget.left == 1.0
    clock.now += 2.0
    assert budget.left == 0


def test_without_a_budget_nothing_ends() -> None:
    budget = Budget()
    assert math.isinf(budget.left)
    assert math.isinf(budget.share(3))
    assert math.isinf(budget.last_call)
    assert not budget.spent
