"""What is compiled already is preferred, and among the last trials waited for nothing else; and how
much is begun ahead of what is known."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from kernels.attention.config import Config
from tuner.evaluate.executor import Compilation, Evaluation
from tuner.search import exploration
from tuner.search.candidates import enumerate_candidates
from tuner.search.exploration import Exploration
from tuner.search.forerun import Forerunner
from tuner.store.database import Store
from tuner.trial import Candidate, Outcome

from .conftest import ToyExecutor, ToyTemplate, problem, record

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


def first(executor: ToyExecutor, store: Store, count: int, **given: Any) -> list[Candidate]:
    """What a search tries first."""
    candidates = enumerate_candidates(P.specialization, 90)
    options: dict[str, Any] = {"records": [], "sampler": "surrogate", "trials": 40, **given}
    searched = Exploration(
        P, candidates, executor, store, options["records"], [], options["sampler"], 0,
        options["trials"],
    )  # fmt: skip
    searched.run(lambda _: None)
    return executor.evaluated[:count]


def test_where_nothing_is_known_what_is_beside_the_default_comes_next(
    toy: ToyTemplate, executor: ToyExecutor, store: Store
) -> None:
    default = toy.default(P, 90)
    began = first(executor, store, 11)
    differences = [sum(c.config[n] != value for n, value in default.items()) for c in began]
    assert differences[0] == 0
    assert differences[1:] == [1] * 10  # one trial in four; there are 11 such


def test_what_its_own_trials_taught_is_used_at_once(
    toy: ToyTemplate, executor: ToyExecutor, store: Store
) -> None:
    first(executor, store, 0, trials=20, sampler="random")
    default = toy.default(P, 90)
    later = first(executor, store, 40, trials=40)[20:]
    assert sum(c.config[n] != value for n, value in default.items() for c in later[:8]) > 12


def test_after_the_defaults_alone_what_is_beside_them_still_comes(
    toy: ToyTemplate, executor: ToyExecutor, store: Store
) -> None:
    assert first(executor, store, 9, trials=1) == [Candidate("toy", toy.default(P, 90))]
    default = toy.default(P, 90)
    later = first(executor, store, 11)[1:]
    assert [sum(c.config[n] != v for n, v in default.items()) for c in later] == [1] * 10


@pytest.mark.parametrize("given", [{"trials": 8}, {"sampler": "random"}, {"records": ["known"]}])
def test_elsewhere_hardly_anything_is(
    toy: ToyTemplate, executor: ToyExecutor, store: Store, given: dict[str, Any]
) -> None:
    if "records" in given:
        given = {
            "records": [
                record(problem(1024), Config(BLOCK_M=16, BLOCK_N=16, num_stages=4, flag=True))
            ]
        }
    default = toy.default(P, 90)
    began = first(executor, store, 8, **given)
    assert sum(c.config[n] != value for n, value in default.items() for c in began[3:]) > 5


@pytest.mark.parametrize(
    ("sampler", "slots", "begun"),
    [("surrogate", 4, 4), ("surrogate", 64, 16), ("tpe", 64, 1), ("random", 64, 64)],
)
def test_as_many_are_begun_as_the_sampler_is_patient_with(
    toy: ToyTemplate, executor: ToyExecutor, store: Store, sampler: str, slots: int, begun: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    executor.compile_slots = slots
    asked: list[Candidate] = []

    def compile_(_: object, candidate: Candidate) -> Future[Compilation]:
        asked.append(candidate)
        return Future()  # that never ends

    monkeypatch.setattr(executor, "compile", compile_)
    candidates = enumerate_candidates(P.specialization, 90)
    Exploration(P, candidates, executor, store, [], [], sampler, 0, 80).prefetch()
    assert len(asked) == len(set(asked)) == begun


@pytest.mark.parametrize(("sampler", "most"), [("surrogate", 8), ("tpe", 5)])
def test_where_the_gpu_is_slow_few_are_compiled_ahead(
    toy: ToyTemplate, executor: ToyExecutor, store: Store, sampler: str, most: int
) -> None:
    ahead: list[int] = []
    evaluate = executor.evaluate

    def counting(*asked: Any) -> Future[Evaluation]:
        ahead.append(len(executor.compiled) - len(executor.evaluated))
        return evaluate(*asked)

    executor.evaluate = counting  # type: ignore[method-assign]
    candidates = enumerate_candidates(P.specialization, 90)
    forerunner = Idle(executor)
    searched = Exploration(
        P, candidates, executor, store, [], [], sampler, 0, 32, forerunner=forerunner
    )
    searched.run(lambda _: None)
    assert max(ahead[16:]) == most
