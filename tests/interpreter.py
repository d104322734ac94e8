"""Triton's interpreter, in a process of its own: Triton decides at import whether it interprets,
and the other tests compile."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def interpret(cases: Path) -> None:
    """Run the tests of `cases`, and fail as they do; skip where the interpreter cannot run."""
    triton, numpy = version("triton"), version("numpy")
    if not triton or not numpy or not version("torch"):
        pytest.skip("needs triton, torch and numpy")
    if numpy >= (2, 4) and triton < (3, 7, 1):
        pytest.skip("this Triton's interpreter breaks on this numpy")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", str(cases)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert " passed" in done.stdout


def version(distribution: str) -> tuple[int, ...]:
    """(major, minor, patch), empty if it is not installed."""
    try:
        found = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ()
    return tuple(int(number) for number in re.findall(r"\d+", found)[:3])
