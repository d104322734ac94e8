"""The target by the CUDA driver equals the one by torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tuner import cuda_driver, device


@pytest.mark.gpu
def test_it_is_what_torch_says() -> None:
    assert cuda_driver.target() == device.detect(0)


@pytest.mark.gpu
def test_it_needs_no_torch_and_makes_no_context() -> None:
    code = (
        "import sys; from tuner import cuda_driver; print(cuda_driver.target().hardware)\n"
        "assert 'torch' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_without_a_gpu_there_is_none() -> None:
    if device.has_gpu():
        pytest.skip("there is a GPU here")
    assert cuda_driver.target() is None
