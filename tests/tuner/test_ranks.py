"""Distributed ranks: processes of one job that read one database and must run the same kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the runtime is torch's")

from tests.tuner.test_plans import PROBLEM, other_config, record, write
from tuner.snapshot import Snapshot
from tuner.trial import Candidate

ROOT = Path(__file__).parents[2]
CONFIGS = [other_config(number=number) for number in (7, 20, 40)]


class Rank:
    """One of them; each under a hash seed of its own."""

    def __init__(self, number: int, database: Path, refresh: bool) -> None:
        environment = {**os.environ, "TUNER_DB": str(database), "PYTHONHASHSEED": str(number)}
        environment.pop("TUNER_REFRESH", None)
        if not refresh:
            environment["TUNER_REFRESH"] = "0"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.tuner.rank"],
            cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __call__(self, line: object) -> tuple[str, str]:
        """(hash, candidate) after a line."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        digest, _, served = self.process.stdout.readline().strip().partition(" ")
        return digest, served


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Rank]]:
    ranks: list[Rank] = []

    def one(refresh: bool) -> Rank:
        ranks.append(Rank(len(ranks), tmp_path / "team.db", refresh))
        return ranks[-1]

    yield one
    for rank in ranks:
        rank.process.kill()
        rank.process.communicate()


def test_ranks_agree_also_while_the_database_changes_if_told_not_to_refresh(
    start: Callable[..., Rank], tmp_path: Path
) -> None:
    path = tmp_path / "team.db"
    # Two neighbours, equally near and equally fast: only a fixed order tells which of them serves.
    twins = [replace(PROBLEM, batch=batch, heads=4 // batch) for batch in (2, 4)]
    write(path, *map(record, twins, CONFIGS))
    before = Snapshot.load(path).digest
    *ranks, keeping_up = [start(refresh=refresh) for refresh in (False, False, True)]
    served = [[rank(seqlen) for seqlen in (96, 97, 700)] for rank in (*ranks, keeping_up)]
    assert served[0] == served[1] == served[2]
    assert {digest for digest, _ in served[0]} == {before}
    names = [str(Candidate("portable", config)) for config in CONFIGS]
    near, nearby, default = (candidate for _, candidate in served[0])
    assert near == nearby
    assert near in names[:2]
    assert default not in names

    assert ranks[0](95) == (before, near)
    write(path, record(PROBLEM, CONFIGS[2]))
    after = Snapshot.load(path).digest
    assert after != before
    assert ranks[1](95) == (before, near)  # as the rank that met this shape before the change
    assert [rank(94) for rank in ranks] == [(before, near)] * 2
    # Others notice, each at a moment of its own; the hash says who is where.
    assert keeping_up(94) == (after, names[2])
    assert start(refresh=False)(94) == (after, names[2])
    # And all do when they are asked to.
    assert [rank("refresh")[0] for rank in ranks] == [after] * 2
    assert [rank(94) for rank in ranks] == [(after, names[2])] * 2
