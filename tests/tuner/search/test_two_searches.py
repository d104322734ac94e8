"""Two searches of one problem by the default sampler agree, on the recorded spaces that we ship."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from kernels.attention.problem import Problem
from tuner.evaluate.replay import ReplayExecutor, shipped_spaces
from tuner.record import Record
from tuner.search.driver import search
from tuner.search.options import Options
from tuner.store.database import Store

EXECUTOR = ReplayExecutor(shipped_spaces())


@pytest.mark.parametrize("problem", EXECUTOR.problems, ids=str)
def test_other_seeds_crown_the_same_config_or_one_that_is_as_good(
    problem: Problem, tmp_path: Path
) -> None:
    found: list[Record] = []
    for seed in range(3):
        with Store.open(tmp_path / f"{seed}.db") as store:
            (one,) = search([problem], EXECUTOR, store, [], Options(seed=seed), lambda event: None)
        assert one is not None
        found.append(one)
    for one, other in combinations(found, 2):
        if one.candidate == other.candidate:
            continue
        if str(one.candidate) in other.tied or str(other.candidate) in one.tied:
            continue
        # A search tries 60 of up to 900 configs: by another seed it may miss the best. But not one
        # that matters: of 14 seeds on these spaces the worst was 2.2 % off.
        times = sorted(record.measurement.median_ms for record in (one, other))
        assert times[1] < 1.03 * times[0]


def test_the_same_seed_crowns_the_same_from_scratch(tmp_path: Path) -> None:
    problem = EXECUTOR.problems[0]
    found = []
    for name in ("a", "b"):
        with Store.open(tmp_path / f"{name}.db") as store:
            (one,) = search([problem], EXECUTOR, store, [], Options(), lambda event: None)
            tried = [trial.candidate for trial in store.trials()]
        assert one is not None
        found.append((one.candidate, one.tied, one.measurement, set(tried)))
    assert found[0] == found[1]
