"""Runs interpreted_file.py in a process of its own: Triton decides at import whether it
interprets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.attention.test_portable_numerics import version

ROOT = Path(__file__).parents[3]
CASES = Path(__file__).with_name("interpreted_file.py")


def test_a_standalone_file_equals_the_reference_on_the_interpreter() -> None:
    triton, numpy = version("triton"), version("numpy")
    if not triton or not numpy or not version("torch"):
        pytest.skip("needs triton, torch and numpy")
    if numpy >= (2, 4) and triton < (3, 7, 1):
        pytest.skip("this Triton's interpreter breaks on this numpy")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", str(CASES)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert " passed" in done.stdout
