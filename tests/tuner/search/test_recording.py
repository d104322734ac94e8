"""Whole spaces as files, whatever an earlier search left in the database."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernels.attention import registry
from tuner.evaluate.space_file import read_space
from tuner.recording import record_spaces
from tuner.search import driver
from tuner.search.options import Options
from tuner.store.database import Store
from tuner.trial import Candidate

from .conftest import ToyExecutor, ToyTemplate, problem

P = problem()


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
