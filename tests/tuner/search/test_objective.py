from __future__ import annotations

from pathlib import Path

import pytest

from tuner.search.driver import search
from tuner.search.objective import MARK, conflict
from tuner.search.options import Options
from tuner.store.database import Store

from .conftest import ToyExecutor, problem


@pytest.mark.parametrize("cold", [False, True])
def test_a_database_is_of_one_objective(executor: ToyExecutor, tmp_path: Path, cold: bool) -> None:
    mine, other = ("latency", "throughput") if cold else ("throughput", "latency")
    executor.cold = cold
    with Store.open(tmp_path / "one.db") as store:
        assert conflict(store, mine) is None
        assert conflict(store, other) is None
        executor.stop_after = 3
        with pytest.raises(KeyboardInterrupt):
            search([problem()], executor, store, [], Options(trials=10))
        assert conflict(store, mine) is None
        assert f"holds measurements for {mine}" in str(conflict(store, other))
        executor.stop_after = None
        (record,) = search([problem()], executor, store, [], Options(trials=10))
        assert record is not None
        assert (MARK in record.note) == cold
        assert conflict(store, mine) is None
        assert conflict(store, other) is not None
