"""`tuner search --from-misses`: what production ran untuned is what is tuned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernels.attention.problem import Problem
from tests.tuner.cli.conftest import H100, RECORDED
from tuner import misses

Run = Callable[..., Any]
CAUSAL, FULL = RECORDED


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Notes problems in a folder."""
    monkeypatch.setenv(misses.VARIABLE, str(tmp_path / "misses"))
    monkeypatch.setattr(misses, "_at_exit", True)

    def note(*problems: Problem, target=H100) -> Path:
        monkeypatch.setattr(misses, "_found", {})
        monkeypatch.setattr(misses, "_written", set())
        for problem in problems:
            misses.note(problem, target, "nearest")
        misses.flush()
        return tmp_path / "misses"

    return note


@pytest.fixture
def search(tuner: Run, spaces: Path, tmp_path: Path) -> Run:
    words = ("--spaces", spaces, "--db", tmp_path / "mine.db", "--trials", "5")
    return lambda *more: tuner("search", "--from-misses", *words, *more)


def kept(folder: Path) -> list[Problem]:
    return [miss.problem for miss in misses.read(folder).misses]


def test_what_was_missed_is_tuned_and_forgotten(search: Run, noted) -> None:
    near = replace(CAUSAL, seqlen=500)  # no recorded space has it, but a neighbour
    unrecorded = replace(CAUSAL, headdim=64)
    folder = noted(CAUSAL, near, unrecorded)
    said = search()
    assert said.status == 0, said.err
    assert "3 misses on NVIDIA H100 80GB HBM3, of which 1 are to be tuned" in said.err
    assert str(CAUSAL) in said.out
    assert str(FULL) not in said.out
    assert kept(folder) == [unrecorded]


def test_what_is_tuned_meanwhile_is_not_tuned_again(search: Run, noted) -> None:
    noted(CAUSAL)
    search()
    folder = noted(CAUSAL, replace(CAUSAL, seqlen=500))
    said = search()
    assert said.status == 0, said.err
    assert "of which 0 are to be tuned" in said.err
    assert kept(folder) == []


def test_shape_options_narrow_them(search: Run, noted) -> None:
    folder = noted(CAUSAL, FULL)
    assert search("--no-causal").status == 0
    assert kept(folder) == [CAUSAL]


def test_those_of_another_gpu_stay(search: Run, noted) -> None:
    other = replace(H100, hardware=replace(H100.hardware, sm_count=114))
    folder = noted(CAUSAL, target=other)
    said = search()
    assert said.status == 2
    assert "1 misses, 0 of them on this hardware (sm90-132x-80gib-700w)" in said.err
    assert kept(folder) == [CAUSAL]


def test_without_any_it_says_how_to_get_them(search: Run, noted) -> None:
    said = search()
    assert said.status == 2
    assert "run with TUNER_RECORD_MISSES=1 first" in said.err
