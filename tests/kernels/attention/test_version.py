"""The version hash: blind to how a kernel is written down, not to what it does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernels.attention.portable import PortableTemplate
from kernels.attention.version import version_hash

ROOT = Path(__file__).parents[3]

KERNEL = '''
"""Docstring."""
from kernels.attention.other import helper
LIMIT = 3
UNUSED = 4
def inner(x, y=None):
    """Docstring."""
    return helper(x) + LIMIT
def entry(a: int):
    return inner(a, 'b')
def stranger():
    return 1
'''
OTHER = """
def helper(x):
    return x * 2
def unused():
    return 0
"""


def hash_of(folder: Path, kernel: str = KERNEL, other: str = OTHER) -> str:
    (folder / "kernel.py").write_text(kernel)
    (folder / "other.py").write_text(other)
    return version_hash(folder / "kernel.py", ["entry"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Docstring."""', '"""Another, of\n    two lines."""'),
        ('    """Docstring."""\n', ""),
        ("    return inner(a, 'b')", '    # A comment.\n\n    return inner( a , "b" )'),
        ("UNUSED = 4", "UNUSED = 5"),
        ("    return 1\n", "    return 2\n"),
    ],
)
def test_what_does_nothing_changes_nothing(tmp_path, old, new):
    assert old in KERNEL
    assert hash_of(tmp_path, KERNEL.replace(old, new)) == hash_of(tmp_path)


def test_what_is_not_called_in_another_file_changes_nothing(tmp_path):
    assert hash_of(tmp_path, other=OTHER.replace("return 0", "return 9")) == hash_of(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("y=None", "y=1"),
        ("helper(x) + LIMIT", "helper(x) - LIMIT"),
        ("inner(a, 'b')", "inner(a, 'c')"),
        ("a: int", "a: float"),
    ],
)
def test_what_does_something_changes_the_version(tmp_path, old, new):
    assert old in KERNEL
    assert hash_of(tmp_path, KERNEL.replace(old, new)) != hash_of(tmp_path)


def test_a_called_function_of_a_sibling_counts(tmp_path):
    assert hash_of(tmp_path, other=OTHER.replace("x * 2", "x * 3")) != hash_of(tmp_path)


def test_an_unknown_entry_is_refused(tmp_path):
    hash_of(tmp_path)
    with pytest.raises(KeyError, match="nothing is not defined in"):
        version_hash(tmp_path / "kernel.py", ["nothing"])


def test_it_is_twelve_hex_digits():
    version = PortableTemplate().version
    assert len(version) == 12
    assert int(version, 16) >= 0


@pytest.mark.parametrize("minor", [10, 11, 12, 13, 14])
def test_every_python_gives_the_same(minor):
    pythons = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
    if not pythons:
        pytest.skip(f"there is no Python 3.{minor} in ~/.pyenv")
    code = "from kernels.attention.portable import PortableTemplate as T; print(T().version)"
    done = subprocess.run(
        [pythons[-1], "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == PortableTemplate().version
