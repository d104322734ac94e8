"""The README's picture and table, of records that do not cover the grid."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.attention.problem import Problem
from scripts.draw_results import draw, table
from tests.tuner.store.samples import record
from tuner.record import Record, Rival


def of(headdim: int, seqlen: int, *peers: str) -> Record:
    rivals = tuple(Rival(name, 1.4, 0.02) for name in peers)
    return record(problem=Problem.on_grid(headdim, seqlen, True), peers=rivals)


def test_the_mean_says_who_took_no_part() -> None:
    text = table([of(64, 4096, "cudnn", "fa4"), of(64, 8192, "cudnn"), of(128, 8192)])
    assert "Over 2 problems of the grid" in text
    assert "In 1 of them FlashAttention-4 took no part." in text
    assert "cuDNN took no part" not in text


def test_a_panel_without_records_says_so(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="draws by it")
    picture = tmp_path / "picture.svg"
    draw([of(256, 4096, "cudnn", "fa4")], picture)
    assert picture.read_text().count("no records") == 5
