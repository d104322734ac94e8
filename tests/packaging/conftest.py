"""Our built distributions, and environments with and without Hugging Face's `kernels`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.environment import Environment, create

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds `wheel`, `editable` or `sdist` at its first use, and says where it is."""
    folder = tmp_path_factory.mktemp("dist")
    built: dict[str, Path] = {}

    def one(form: str) -> Path:
        if form not in built:
            code = f"import hatchling.build as b; print(b.build_{form}({str(folder / form)!r}))"
            done = subprocess.run(
                [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            built[form] = folder / form / done.stdout.strip().splitlines()[-1]
        return built[form]

    return one


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment without Hugging Face's `kernels`."""
    return create(tmp_path_factory.mktemp("environments") / "alone")


@pytest.fixture(scope="session")
def beside_theirs(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with Hugging Face's `kernels` from the package index."""
    environment = create(tmp_path_factory.mktemp("environments") / "beside")
    environment.install("kernels")
    return environment
