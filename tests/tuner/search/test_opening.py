"""What is compiled before a search begins is what it then tries first."""

from __future__ import annotations

import pytest

from kernels.attention.config import Config
from tuner.record import Record
from tuner.search import driver
from tuner.search.opening import opening
from tuner.search.options import Options
from tuner.store.database import Store

from .conftest import ToyExecutor, ToyTemplate, problem, record

P = problem()
WINNERS = [Config(BLOCK_M=128, BLOCK_N=64, num_stages=n, flag=True) for n in (2, 3)]


@pytest.mark.parametrize(
    ("sampler", "known", "count"),
    [("surrogate", False, 11), ("random", False, 1), ("surrogate", True, 3), ("random", True, 3)],
)
def test_it_is_what_a_search_begins_with(
    toy: ToyTemplate, store: Store, sampler: str, known: bool, count: int
) -> None:
    records: list[Record] = []
    if known:
        records = [record(problem(seqlen), c) for seqlen, c in zip((2048, 1024), WINNERS)]
    options = Options(trials=40, sampler=sampler)
    first = opening(P, records, ToyExecutor.target, options)
    assert {specialization for _, specialization in first} == {P.specialization}
    assert len(first) == len(set(first)) == count
    executor = ToyExecutor()
    driver.search([P], executor, store, records, options)
    tried = [candidate for candidate, _ in first]
    assert sorted(map(str, executor.evaluated[: len(tried)])) == sorted(map(str, tried))


def test_it_is_of_the_templates_that_are_asked_for(toy: ToyTemplate) -> None:
    assert opening(P, [], ToyExecutor.target, Options(templates=("toy",)))
    with pytest.raises(KeyError):
        opening(P, [], ToyExecutor.target, Options(templates=("none",)))
