"""The compiles are shared by no more processes than there is work and cores for."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("triton")

from scripts import check_compiles


@pytest.mark.parametrize(("asked", "tasks", "cores"), [(9, 2, 8), (9, 8, 2), (2, 8, 9)])
def test_no_process_is_idle(
    monkeypatch: pytest.MonkeyPatch, asked: int, tasks: int, cores: int
) -> None:
    made: list[int] = []

    def pool(workers: int) -> ThreadPoolExecutor:
        made.append(workers)
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(check_compiles, "ProcessPoolExecutor", pool)
    monkeypatch.setattr(check_compiles, "jobs", lambda capabilities: [None] * tasks)
    monkeypatch.setattr(check_compiles, "check", lambda job: None)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert check_compiles.main(["--jobs", str(asked)]) == 0
    assert made == [2]
