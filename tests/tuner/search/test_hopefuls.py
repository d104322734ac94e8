"""Who competes for the places in the finals, and where there is time for that."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from unittest.mock import patch

import pytest

from kernels.attention.config import Config
from kernels.attention.problem import Problem
from tuner.evaluate.executor import Race
from tuner.evaluate.timing import DECIDE_S, PLACES
from tuner.search import driver
from tuner.search.budget import Budget
from tuner.search.hopefuls import HOPEFULS
from tuner.search.options import Options
from tuner.store.database import Store
from tuner.trial import Candidate

from .conftest import ToyExecutor, ToyTemplate, problem
from .test_budget import Clock

DEFAULT = Candidate("toy", ToyTemplate().default(problem(), 90))


class Noting(ToyExecutor):
    """Keeps what it was asked for."""

    def __init__(self, latency: Callable[[int], float]) -> None:
        super().__init__(noise=1e-6)
        places: dict[Config, int] = {}

        def of(_: Problem, config: Config) -> float:
            return latency(places.setdefault(config, len(places)))

        self.latency = of

    def race(self, problem, entrants, rounds, decide_s=0.0, hopefuls=()) -> Future[Race]:
        self.entrants, self.hopefuls = list(entrants), list(hopefuls)
        self.rounds, self.decide_s = rounds, decide_s
        return super().race(problem, entrants, rounds, decide_s, hopefuls)


def searched(store: Store, latency: Callable[[int], float], **options: float) -> Noting:
    """By a clock that stands still: all of a budget is left for the finals, on a busy host, too."""
    executor = Noting(latency)
    with patch.object(driver, "Budget", partial(Budget, clock=Clock())):
        wanted = Options(trials=60, force=True, **options)  # type: ignore[arg-type]
        driver.search([problem()], executor, store, (), wanted)
    return executor


def alike(place: int) -> float:
    """The default comes first, and is the slowest of all, who are within 3 % of each other."""
    return 1.03 if place == 0 else 1.0 + place / 3000


def test_the_sixteen_fastest_compete_and_the_default_need_not(
    toy: ToyTemplate, store: Store
) -> None:
    executor = searched(store, alike)
    assert executor.entrants == [DEFAULT]
    assert len(executor.hopefuls) == len(set(executor.hopefuls)) == HOPEFULS
    assert DEFAULT not in executor.hopefuls
    times = [executor.latency(problem(), candidate.config) for candidate in executor.hopefuls]
    assert times == sorted(times)
    assert max(times) < 1.0 + (HOPEFULS + 1) / 3000
    assert len(set(executor.raced)) == 1 + PLACES


def test_those_who_are_too_slow_do_not_compete(toy: ToyTemplate, store: Store) -> None:
    executor = searched(store, lambda place: 1.0 + place / 1000 if place < 8 else 1.12)
    assert len(executor.hopefuls) == 7  # the eighth is the default


def test_one_figure_that_is_far_too_good_leaves_the_others_in(
    toy: ToyTemplate, store: Store
) -> None:
    executor = searched(store, lambda place: 0.5 if place == 5 else 1.0 + place / 1000)
    assert len(executor.hopefuls) >= PLACES - 1


@pytest.mark.parametrize(
    ("budget_s", "scale", "heat", "decides"),
    [
        (60.0, 1.0, True, DECIDE_S),
        (11.0, 1.0, True, 2.0),
        (9.0, 1.0, False, 3.5),  # 16 rounds come before a heat
        (15.0, 30.0, False, DECIDE_S),  # in which launches of 30 ms take too long
    ],
)
def test_a_heat_is_held_where_all_rounds_fit_in_after_it(
    toy: ToyTemplate, store: Store, budget_s: float, scale: float, heat: bool, decides: float
) -> None:
    executor = searched(store, lambda place: scale * alike(place), budget_s=budget_s)
    assert len(executor.hopefuls) == (HOPEFULS if heat else PLACES)
    assert executor.rounds == Options().rounds
    assert 0 < executor.decide_s <= decides
    assert (executor.decide_s == DECIDE_S) == (decides == DECIDE_S)
