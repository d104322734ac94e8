"""Two searches of one problem by the default sampler agree, on the recorded spaces that we ship."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from kernels.attention.problem import Problem
from tuner.evaluate.replay import ReplayExecutor, shipped_spaces
from tuner.record import Record
from tuner.search.driver import search
from tuner.search.options import Options
from tuner.store.database import Store
from tuner.trial import Candidate

EXECUTOR = ReplayExecutor(shipped_spaces())


@pytest.mark.parametrize("problem", EXECUTOR.problems, ids=str)
def test_other_seeds_crown_the_same_config_or_both_name_the_tie(
    problem: Problem, tmp_path: Path
) -> None:
    found: list[tuple[Record, set[Candidate]]] = []
    for seed in range(2):
        with Store.open(tmp_path / f"{seed}.db") as store:
            (one,) = search([problem], EXECUTOR, store, [], Options(seed=seed), lambda event: None)
            tried = {trial.candidate for trial in store.trials()}
        assert one is not None
        found.append((one, tried))
    for (one, tried), (other, _) in permutations(found, 2):
        if other.candidate in tried:
            assert one.candidate == other.candidate or str(other.candidate) in one.tied
        else:
            # A search tries 60 of up to 900 configs: by another seed it may miss the best. But not
            # one that matters: of 14 seeds on these spaces the worst was 2.2 % off.
            assert one.measurement.median_ms < 1.03 * other.measurement.median_ms


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
