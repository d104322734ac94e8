"""Ours as wheel, editable install and checkout, each with and without Hugging Face's `kernels`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.packaging.environment import Environment

Build = Callable[[str], Path]
ROOT = Path(__file__).resolve().parents[2]

OURS = """
import tuner
import kernels.attention
from kernels.attention import registry
assert registry.names()
import kernels
print(kernels.attention.__file__)
"""
THEIRS = """
import kernels
assert callable(kernels.get_kernel)
from kernels import kernelize
print(kernels.__file__)
"""


@pytest.fixture(params=["alone", "beside theirs"])
def environment(request: pytest.FixtureRequest) -> Environment:
    fixture = request.param.replace(" ", "_")
    found: Environment = request.getfixturevalue(fixture)
    return found


@pytest.fixture
def install(environment: Environment, build: Build) -> Iterator[Callable[[str], None]]:
    """Installs ours in a form; takes it away after the test."""
    yield lambda form: environment.install("--no-deps", "--force-reinstall", build(form))
    environment.pip("uninstall", "-y", "attention-tuner")


@pytest.mark.parametrize("form", ["wheel", "editable"])
def test_installed(
    environment: Environment, install: Callable[[str], None], form: str, tmp_path: Path
) -> None:
    install(form)
    found = Path(environment.run(OURS, tmp_path))
    assert found.is_relative_to(ROOT if form == "editable" else environment.site)
    _theirs_works(environment, tmp_path)


def test_checkout(environment: Environment, tmp_path: Path) -> None:
    assert Path(environment.run(OURS, ROOT)).is_relative_to(ROOT)
    _theirs_works(environment, ROOT)


def test_theirs_may_be_imported_first(beside_theirs: Environment) -> None:
    beside_theirs.run("import kernels; kernels.get_kernel" + OURS, ROOT)


@pytest.mark.parametrize("form", ["wheel", "editable"])
def test_uninstalling_ours_leaves_theirs(
    beside_theirs: Environment, build: Build, form: str, tmp_path: Path
) -> None:
    beside_theirs.install("--no-deps", "--force-reinstall", build(form))
    before = beside_theirs.run(THEIRS, tmp_path)
    assert beside_theirs.pip("uninstall", "-y", "attention-tuner").returncode == 0
    assert beside_theirs.run(THEIRS, tmp_path) == before
    assert not (beside_theirs.site / "kernels" / "attention").exists()


def test_a_broken_one_of_theirs_is_named(alone: Environment, tmp_path: Path) -> None:
    broken = tmp_path / "kernels"
    broken.mkdir()
    (broken / "__init__.py").write_text("import no_such_module_of_theirs")
    said = alone.run(
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n"
        "try: import tuner\nexcept ImportError as error: print(error)",
        tmp_path,
    )
    assert "no_such_module_of_theirs" in said
    assert "uninstall" in said


def _theirs_works(environment: Environment, cwd: Path) -> None:
    if (environment.site / "kernels" / "__init__.py").exists():
        assert Path(environment.run(THEIRS, cwd)).is_relative_to(environment.site)
