from __future__ import annotations

import math

import pytest

from tuner.search.budget import Budget, Share


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_share_is_an_equal_part_of_what_is_left_less_the_finals() -> None:
    clock = Clock()
    budget = Budget(100.0, 10, clock)
    assert budget.share(10) == pytest.approx(100 + 10 - 3)
    assert budget.share(2) == pytest.approx(100 + 50 - 13)


def test_what_one_leaves_goes_to_those_after_it() -> None:
    clock = Clock()
    budget = Budget(100.0, 10, clock)
    clock.now += 1.0  # the first of ten took 1 s instead of 10
    assert budget.share(9) - clock.now == pytest.approx(0.7 * 11)


def test_the_last_call_leaves_time_for_the_finals() -> None:
    clock = Clock()
    budget = Budget(100.0, 10, clock)
    assert budget.last_call == pytest.approx(200 - 3)
    clock.now += 96.9
    assert not budget.spent
    clock.now += 2.1
    assert budget.spent
    assert budget.left == 1.0
    clock.now += 2.0
    assert budget.left == 0


def test_a_problem_alone_has_nearly_all_of_it() -> None:
    budget = Budget(60.0, 1, Clock())
    assert budget.last_call == budget.share(1) == pytest.approx(100 + 60 - 13)


def test_without_a_budget_nothing_ends() -> None:
    budget = Budget()
    assert math.isinf(budget.left)
    assert math.isinf(budget.share(3))
    assert math.isinf(budget.last_call)
    assert not budget.spent


def test_a_share_begins_once_and_until_then_is_all_the_time() -> None:
    clock = Clock()
    share = Share(Budget(100.0, 10, clock), 2)
    assert share.left == pytest.approx(97.0)  # the last finals' reserve is kept
    share.begin()
    assert share.left == pytest.approx(37.0)  # half, less what its finals take
    clock.now += 10.0
    share.begin()
    assert share.left == pytest.approx(27.0)
    clock.now += 1000.0
    assert share.left == 0.0


@pytest.mark.parametrize("begun", [True, False])
def test_the_time_to_come_is_told_from_the_second_trial_on(begun: bool) -> None:
    clock = Clock()
    share = Share(Budget(100.0, 1, clock))
    if begun:
        share.begin()
    clock.now += 20.0  # of waiting for the first binary
    assert share.eta_s(1, 50) is None
    clock.now += 1.0
    assert share.eta_s(2, 50) == pytest.approx(48.0)
    clock.now += 30.0
    assert share.eta_s(3, 50) == pytest.approx(36.0 if begun else 15.5 * 47)
