"""What is said on stderr beside the output, and where that cannot be written."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tuner.cli.remarks import said_as_remarks

Run = Callable[..., Any]


def test_a_full_disk_behind_stdout_is_one_sentence(tuner: Run, searched: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tuner", "show", "--db", searched],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "tuner: No space left on device\n")


def test_a_warning_is_said_once_under_our_name(tuner: Run, searched: Path) -> None:
    with closing(sqlite3.connect(searched)) as database, database:
        database.execute("UPDATE records SET gpu_name = char(27)")
    said = tuner("show", "--db", searched)
    assert said.status == 0
    assert said.err.count("rows are skipped") == 1
    assert said.err.startswith(f"tuner: {searched}: ")


@pytest.mark.parametrize("how", ["2>&-", "2>/dev/full"])
def test_a_remark_that_cannot_be_printed_is_none(tmp_path: Path, how: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    words = f"{sys.executable} -m tuner export --format python --target sm_90 -o {tmp_path}/a.py"
    done = subprocess.run(f"{words} {how}", shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "a.py").exists()


def test_a_warning_of_the_runtime_is_a_remark_without_its_place(
    capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    pytest.importorskip("torch", reason="the runtime is torch's")
    from tuner.plans import UntunedWarning

    warnings.simplefilter("always")
    with said_as_remarks():
        for _ in range(2):
            warnings.warn("D64 is not tuned", UntunedWarning, stacklevel=1)
        warnings.warn("theirs", DeprecationWarning, stacklevel=1)
    assert capsys.readouterr().err == "tuner: D64 is not tuned\n"
    assert [str(each.message) for each in recwarn] == ["theirs"]
