"""How many proposals are under way."""

from __future__ import annotations

import math
from concurrent.futures import Future

import pytest

from tuner.search import exploration
from tuner.search.driver import search
from tuner.search.options import Options
from tuner.search.proposals import Proposals
from tuner.search.supply import Supply
from tuner.store.database import Store
from tuner.trial import Candidate

from .conftest import ToyTemplate, problem
from .test_under_a_budget import SlowExecutor
from .virtual_time import VirtualTime, Workers


def room(supply: Supply, compiling: int, told: int = 40, seeded: bool = False) -> int:
    """How many may be ready beside so many that are being compiled."""
    return next(
        ready for ready in range(999) if not supply.has_room(compiling, ready, told, seeded)
    )


def taking(supply: Supply, time: VirtualTime, compile_s: float, *evaluate_s: float) -> None:
    for watch, seconds in (
        (supply.compiling, compile_s),
        *((supply.evaluating, s) for s in evaluate_s),
    ):
        future = Workers(time, 1).submit(seconds, lambda: None)
        watch(future)
        future.result()


def test_compilers_are_busy_and_as_many_again_are_ready(virtual_time: VirtualTime) -> None:
    supply = Supply(compilers=15, gpus=1, patience=16)
    assert (room(supply, 0), room(supply, 14), room(supply, 15)) == (30, 16, 0)
    taking(supply, virtual_time, 8.0, 3.0, 0.25, 0.25)
    assert room(supply, 14) == 16


def test_the_sampler_is_told_of_as_many_as_its_patience_asks(virtual_time: VirtualTime) -> None:
    surrogate, tpe, random = (Supply(64, 1, patience) for patience in (16, 1, math.inf))
    assert (room(surrogate, 0, told=0), room(surrogate, 0, told=40)) == (32, 57)
    assert (room(tpe, 0, told=0), room(tpe, 0, told=9)) == (2, 11)
    assert room(tpe, 0, told=0, seeded=True) == 65
    assert room(random, 0, told=0) == 128
    taking(random, virtual_time, 0.1, 0.5)
    assert room(random, 0, told=0) == 128


@pytest.mark.parametrize("gpus", [1, 2])
def test_where_binaries_are_in_a_cache_few_are_ready(virtual_time: VirtualTime, gpus: int) -> None:
    supply = Supply(15, gpus, 16)
    taking(supply, virtual_time, 0.05)
    assert room(supply, 0) == gpus + 1
    taking(supply, virtual_time, 0.05, 4.0, 0.2)  # the first evaluation says little
    assert room(supply, 0) == gpus + 1
    assert room(supply, 0, seeded=True) == 30
    slow: Future[None] = Future()
    supply.compiling(slow)
    virtual_time.now += 10.0  # one that is in none
    assert room(supply, 0) == 30
    slow.cancel()
    assert room(supply, 0) == gpus + 1


def test_what_was_compiled_ahead_or_is_no_more_says_nothing(virtual_time: VirtualTime) -> None:
    supply = Supply(15, 1, 16)
    ahead: Future[None] = Future()
    ahead.set_result(None)
    supply.compiling(ahead)
    gone: Future[None] = Future()
    supply.compiling(gone)
    gone.cancel()
    assert room(supply, 0) == 30


@pytest.mark.parametrize(("compile_s", "most"), [(0.01, 3), (1.0, 13), (8.0, 31)])
def test_a_search_asks_its_sampler_no_sooner_than_it_must(
    toy: ToyTemplate,
    store: Store,
    virtual_time: VirtualTime,
    monkeypatch: pytest.MonkeyPatch,
    compile_s: float,
    most: int,
) -> None:
    untold: list[int] = []

    class Counting(Proposals):
        def next(self) -> Candidate | None:
            seeded, found = self.seeded, super().next()
            if not seeded:
                untold.append(len(self._asked))
            return found

    class Manifold(SlowExecutor):
        compile_slots = 15

    monkeypatch.setattr(exploration, "Proposals", Counting)
    executor = Manifold(virtual_time, compile_s, evaluate_s=0.2)
    search([problem()], executor, store, (), Options(trials=60))
    later = untold[20:]  # when the seeds are tried
    assert most // 2 < max(later) <= most
