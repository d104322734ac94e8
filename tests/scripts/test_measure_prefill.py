"""scripts/measure_prefill.py where there is no GPU: all goes to SDPA."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

SCRIPT = Path(__file__).parents[2] / "scripts" / "measure_prefill.py"
SMALL = ("--layers", "1", "--hidden", "128", "--heads", "2", "--tokens", "128", "--rounds", "2")


@pytest.mark.parametrize("padded", [False, True])
def test_measures_and_says_where(padded: bool) -> None:
    words = (*SMALL, "--seqlen", "32,64", "--json", *(["--padded"] if padded else []))
    done = subprocess.run(
        [sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "transformers 5" in found["on"]
    figures = found["figures"]
    assert [(f["implementation"], f["seqlen"], f["batch"]) for f in figures] == [
        ("tuner", 32, 4), ("sdpa", 32, 4), ("tuner", 64, 2), ("sdpa", 64, 2)
    ]  # fmt: skip
    assert all(f["tokens_per_s"] > 0 and f["max_diff"] < 1e-6 for f in figures)


def test_what_memory_does_not_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from scripts import measure_prefill

    said = ["an illegal memory access", "you tried to allocate 9", "Tried to allocate 9 GiB"]

    def fails(*_: object) -> object:
        raise RuntimeError(said.pop())

    monkeypatch.setattr(measure_prefill, "llama", fails)
    for _ in ("CUDA", "CPU"):
        with pytest.raises(SystemExit) as ended:
            measure_prefill.main([*SMALL, "--seqlen", "32"])
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "--tokens is 128 and --seqlen is '32', but must all be of sizes that memory" in line
    with pytest.raises(RuntimeError, match="illegal"):
        measure_prefill.main([*SMALL, "--seqlen", "32"])
