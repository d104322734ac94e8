"""scripts/measure_host_time.py, where there is no GPU: Python's share of a call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the runtime is torch's")

SCRIPT = Path(__file__).parents[2] / "scripts" / "measure_host_time.py"


def test_pythons_share_is_measured_with_seen_and_new_addresses() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--hdim", "64", "--json"],
        capture_output=True,
        text=True,
        timeout=250,
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    names = {figure["name"] for figure in figures}
    assert {"custom_attention_forward", "attention", "flash_attn_func"} <= names
    assert {(figure["name"], figure["addresses"]) for figure in figures} >= {
        (name, addresses) for name in names for addresses in ("seen", "new")
    }
    assert all(0 < figure["least_us"] <= figure["median_us"] for figure in figures)
