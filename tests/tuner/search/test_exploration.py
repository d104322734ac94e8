"""What is compiled already is preferred, and among the last trials waited for nothing else."""

from __future__ import annotations

import pytest

from tuner.evaluate.executor import Compilation
from tuner.search import exploration
from tuner.search.candidates import enumerate_candidates
from tuner.search.exploration import Exploration
from tuner.search.forerun import Forerunner
from tuner.store.database import Store
from tuner.trial import Outcome

from .conftest import ToyExecutor, ToyTemplate, problem

P = problem()


class Idle(Forerunner):
    """Compiles nothing of its own accord."""

    def fill(self, *_: object) -> None:
        pass


def test_the_last_trials_are_of_what_is_compiled(
    toy: ToyTemplate, executor: ToyExecutor, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor.latency = lambda *_: 1.0  # so that the model finds nothing much better
    monkeypatch.setattr(exploration, "_FAVOUR", 1.0)  # before
    candidates = enumerate_candidates(P.specialization, 90)
    compiled, failed = set(candidates.feasible[::2]), set(candidates.feasible[1::4])
    forerunner = Idle(executor)
    for candidate in candidates.feasible:
        if candidate in compiled:
            forerunner.note(Compilation(candidate, Outcome.OK), P.specialization)
        elif candidate in failed:
            forerunner.note(Compilation(candidate, Outcome.SPILLS), P.specialization)
    searched = Exploration(
        P, candidates, executor, store, [], [], "surrogate", 0, 24,
        forerunner=forerunner,
    )  # fmt: skip
    searched.run(lambda _: None)
    assert len(executor.evaluated) == 24
    assert not set(executor.evaluated[:12]) <= compiled
    assert set(executor.evaluated[12:]) <= compiled
