"""Whole spaces as files, whatever an earlier search left in the database."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import Problem
from tuner.evaluate.executor import Evaluation
from tuner.evaluate.space_file import read_space
from tuner.recording import record_spaces
from tuner.search import driver
from tuner.search.candidates import enumerate_candidates
from tuner.search.options import Options
from tuner.store.database import Store
from tuner.trial import Candidate

from .conftest import ToyExecutor, ToyTemplate, latency, problem

P = problem()
BEST = Candidate("toy", Config(BLOCK_M=128, BLOCK_N=64, num_stages=3, flag=True))


def test_every_config_of_the_templates_asked_for_and_of_no_other(
    executor: ToyExecutor, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.search([P], executor, store, [], Options(trials=20), lambda event: None)
    portable = registry.get("portable")
    stranger = replace(
        store.trials()[0],
        candidate=Candidate("portable", portable.default(P, 90)),
        template_version=portable.version,
    )
    store.add_trial(stranger)
    monkeypatch.setattr(registry, "names", lambda: ("portable", "toy"))
    (path,) = record_spaces([P], executor, store, tmp_path, ("toy",), lambda event: None)
    space = read_space(path)
    assert set(space.trials) == set(ToyTemplate().feasible(P.specialization, 90))
    before = len(executor.evaluated)
    assert record_spaces([P], executor, store, tmp_path, ("toy",), lambda event: None) == [path]
    assert len(executor.evaluated) == before


@pytest.mark.parametrize("apart", [True, False])
def test_each_template_is_recorded_against_its_own_best(
    apart: bool,
    executor: ToyExecutor,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(ToyTemplate):
        name = "slow"

    toys = {"toy": ToyTemplate(), "slow": Slow()}
    monkeypatch.setattr(registry, "names", lambda: tuple(toys))
    monkeypatch.setattr(registry, "get", toys.__getitem__)
    enumerate_candidates.cache_clear()
    to_beat: dict[str, list[float]] = {"toy": [], "slow": []}
    timed = executor.evaluate

    def evaluate(of: Problem, candidate: Candidate, best_ms: float | None) -> Future[Evaluation]:
        if best_ms is not None:
            to_beat[candidate.template].append(best_ms)
        monkeypatch.setattr(
            executor,
            "latency",
            lambda *at: latency(*at) * (9 if candidate.template == "slow" else 1),
        )
        return timed(of, candidate, best_ms)

    monkeypatch.setattr(executor, "evaluate", evaluate)
    if apart:
        assert len(record_spaces([P], executor, store, tmp_path, None, lambda event: None)) == 2
    else:
        options = Options(sampler="exhaustive")
        driver.search([P], executor, store, [], options, lambda event: None)
    fastest = latency(P, BEST.config)
    assert min(to_beat["toy"]) < 1.1 * fastest
    assert (min(to_beat["slow"]) > 8 * fastest) is apart
