"""The README's picture and table, of records that do not cover the grid."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.attention.problem import Problem
from scripts.draw_results import draw, main, table
from tests.tuner.store.samples import TARGET, record
from tuner.record import Record, Rival
from tuner.store.database import Store


def of(headdim: int, seqlen: int, *peers: str) -> Record:
    rivals = tuple(Rival(name, 1.4, 0.02) for name in peers)
    return record(problem=Problem.on_grid(headdim, seqlen, True), peers=rivals)


def test_the_mean_says_who_took_no_part() -> None:
    text = table([of(64, 4096, "cudnn", "fa4"), of(64, 8192, "cudnn"), of(128, 8192)])
    assert "Over 2 problems of the grid" in text
    assert "In 1 of them FlashAttention-4 took no part." in text
    assert "cuDNN took no part" not in text


def test_a_panel_without_records_says_so() -> None:
    pytest.importorskip("matplotlib", reason="draws by it")
    assert draw([of(256, 4096, "cudnn", "fa4")], "svg").count(b"no records") == 5


def test_dollar_signs_in_a_name_are_no_formula() -> None:
    pytest.importorskip("matplotlib", reason="draws by it")
    odd = replace(TARGET, gpu_name=r"a $\frac$ card")
    assert draw([record(target=odd)], "svg").startswith(b"<?xml")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "two.db") as store:
        for name, watts in (("NVIDIA H200", 700), ("NVIDIA H200 NVL", 600)):
            hardware = replace(TARGET.hardware, power_limit_w=watts)
            store.add_record(record(target=replace(TARGET, gpu_name=name, hardware=hardware)))
    return tmp_path / "two.db"


@pytest.mark.parametrize("gpu", ["", "NVIDIA", "H200"])
def test_two_cards_are_not_taken_for_one(
    database: Path, capsys: pytest.CaptureFixture[str], gpu: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(database), "--gpu", gpu])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    expected = f"--gpu is {gpu!r}, but must name one card: 'NVIDIA H200' or 'NVIDIA H200 NVL'\n"
    assert said.err.endswith(expected)


def test_a_card_whose_name_is_part_of_anothers_can_be_named(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(database), "--gpu", "NVIDIA H200"])
    assert "NVL" not in capsys.readouterr().out


def test_a_picture_that_cannot_be_written_leaves_the_old_one(
    database: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("matplotlib", reason="draws by it")
    picture = tmp_path / "docs" / "old.svg"
    picture.parent.mkdir()
    picture.write_text("old")
    whole = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        whole(path, data[:99])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(SystemExit) as ended:
        main([str(database), "--gpu", "NVL", "--output", str(picture)])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("old.svg cannot be written: No space left on device")
    assert picture.read_text() == "old"
    assert list(picture.parent.iterdir()) == [picture]
