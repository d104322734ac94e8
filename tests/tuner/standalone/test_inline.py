"""One file from several modules."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.standalone.inline import inline


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package whose modules count as ours."""
    folder = tmp_path / "tuner_like"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("tuner.standalone.inline._OURS", ("tuner_like.",))
    yield folder
    sys.modules.pop("tuner_like", None)


ORIGIN = '''\
import os
import math as m
from functools import cache

# Twice as much
# as one.
TWO = 2
"""Explains."""
UNUSED = 3


@cache
def work(x):
    """Some work."""
    # Recursive, and ★ before it: work(x).
    star = "★"; return work(x - TWO) + m.pi + len(star) if x else 0  # fmt: skip


def unused():
    return os.getcwd()
'''


def test_takes_what_is_used_with_its_remarks_and_renames_by_alias(modules: Path) -> None:
    (modules / "origin.py").write_text(ORIGIN)
    (modules / "host.py").write_text(
        "from __future__ import annotations\n"
        "from tuner_like.origin import work as _toil\n\n\n"
        "# Filled in.\nTABLE: dict[str, int] = {}\n\n\n"
        "def entry():\n    return _toil(4), TABLE\n"
    )
    found = inline("tuner_like.host", ["entry"], {"TABLE": '{"a": 1}'}, {"_toil": "@cache  # 2"})
    assert found.imports == "import math as m\nfrom functools import cache"
    assert found.body == (
        '# Twice as much\n# as one.\nTWO = 2\n"""Explains."""\n\n\n'
        '@cache  # 2\ndef _toil(x):\n    """Some work."""\n'
        "    # Recursive, and ★ before it: work(x).\n"
        '    star = "★"; return _toil(x - TWO) + m.pi + len(star) if x else 0  # fmt: skip\n\n\n'
        '# Filled in.\nTABLE: dict[str, int] = {"a": 1}\n\n\n'
        "def entry():\n    return _toil(4), TABLE"
    )
    space: dict[str, object] = {}
    exec(f"{found.imports}\n{found.body}", space)
    assert "tuner_like.origin" not in sys.modules


def test_two_meanings_of_one_name_are_refused(modules: Path) -> None:
    (modules / "a.py").write_text("LIMIT = 1\n\n\ndef f():\n    return LIMIT\n")
    (modules / "b.py").write_text("LIMIT = 2\n\n\ndef g():\n    return LIMIT\n")
    (modules / "host.py").write_text(
        "from tuner_like.a import f\nfrom tuner_like.b import g\n\n\n"
        "def entry():\n    return f() + g()\n"
    )
    with pytest.raises(ValueError, match=r"tuner_like\.a and tuner_like\.b both define LIMIT"):
        inline("tuner_like.host", ["entry"], {}, {})


def test_a_whole_module_of_ours_is_refused(modules: Path) -> None:
    (modules / "a.py").write_text("X = 1\n")
    (modules / "host.py").write_text(
        "import tuner_like.a\n\n\ndef entry():\n    return tuner_like\n"
    )
    with pytest.raises(ValueError, match="as a whole"):
        inline("tuner_like.host", ["entry"], {}, {})


def test_the_modules_of_the_hopper_kernel_can_be_taken_over() -> None:
    found = inline("kernels.attention.hopper_kernel", ["attention_forward"], {}, {})
    tree = ast.parse(f"{found.imports}\n{found.body}")
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {"attention_forward"} < names
    assert "kernels" not in found.imports
