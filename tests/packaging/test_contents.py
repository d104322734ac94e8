"""What reaches a user: the files inside the wheel and the source distribution."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

Build = Callable[[str], Path]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def in_wheel(build: Build) -> set[str]:
    with zipfile.ZipFile(build("wheel")) as wheel:
        return set(wheel.namelist())


@pytest.fixture(scope="module")
def in_sdist(build: Build) -> set[str]:
    with tarfile.open(build("sdist")) as sdist:
        return {name.split("/", 1)[1] for name in sdist.getnames()}


@pytest.mark.parametrize(
    "name", ["tuner/configs.db", "tuner/py.typed", "kernels/attention/py.typed"]
)
def test_the_wheel_ships(in_wheel: set[str], name: str) -> None:
    assert name in in_wheel


def test_the_wheel_ships_every_file_of_the_packages(in_wheel: set[str]) -> None:
    # Data too: migrations, schemas, recorded spaces.
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in ("tuner", "kernels/attention")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert any(name.endswith(".schema.json") for name in expected)
    assert any(name.startswith("tuner/store/migrations/") for name in expected)
    assert expected <= in_wheel


def test_the_wheel_takes_no_name_but_ours(in_wheel: set[str]) -> None:
    ours = {name for name in in_wheel if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in ours} == {"tuner", "kernels"}
    assert {name.split("/")[1] for name in ours if name.startswith("kernels/")} == {"attention"}


def test_the_shipped_database_needs_no_write_beside_it(build: Build) -> None:
    with zipfile.ZipFile(build("wheel")) as wheel:
        head = wheel.read("tuner/configs.db")[:20]
    assert head.startswith(b"SQLite format 3\0")
    assert head[18:20] == b"\x01\x01", "in WAL mode, which a read-only folder cannot open"


@pytest.mark.parametrize("name", ["configs.db", "pyproject.toml", "README.md", "tuner/version.py"])
def test_the_sdist_ships(in_sdist: set[str], name: str) -> None:
    assert name in in_sdist
