"""One file from several modules."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.standalone.inline import Changes, inline


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
    found = inline(
        [("tuner_like.host", "entry")],
        Changes(values={"TABLE": '{"a": 1}'}, decorators={"_toil": "@cache  # 2"}),
    )
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


def test_two_meanings_of_one_name_are_told_apart_and_two_like_ones_are_one(modules: Path) -> None:
    (modules / "a.py").write_text(
        "LIMIT = 1\nSAME = 7  # here\n\n\ndef f():\n    return LIMIT + SAME\n"
    )
    (modules / "b.py").write_text(
        "from tuner_like.a import f\n\nLIMIT = 2\nSAME = 7  # there\n\n\n"
        "def h():\n    return LIMIT\n\n\ndef g():\n    return f() + h() + LIMIT + SAME\n"
    )
    (modules / "c.py").write_text("def h():\n    return 5\n")
    (modules / "host.py").write_text(
        "from tuner_like.b import g\nfrom tuner_like.c import h\n\n\n"
        "def entry():\n    return g(), h()\n"
    )
    found = inline([("tuner_like.host", "entry")])
    assert "LIMIT = 1\n" in found.body
    assert "B_LIMIT = 2\n" in found.body
    assert found.body.count("SAME = 7") == 1
    assert "def c_h():" in found.body
    space: dict[str, Any] = {}
    exec(found.body, space)
    assert space["entry"]() == (8 + 2 + 2 + 7, 5)


def test_a_parameter_is_not_taken_for_what_is_renamed(modules: Path) -> None:
    (modules / "a.py").write_text("LIMIT = 1\n\n\ndef f():\n    return LIMIT\n")
    (modules / "b.py").write_text(
        "LIMIT = 2\n\n\ndef h():\n    return LIMIT\n\n\ndef g(LIMIT):\n    return LIMIT + h()\n"
    )
    (modules / "host.py").write_text(
        "from tuner_like.a import f\nfrom tuner_like.b import g\n\n\n"
        "def entry():\n    return f() + g(1)\n"
    )
    with pytest.raises(ValueError, match="parameter LIMIT, which is to be B_LIMIT"):
        inline([("tuner_like.host", "entry")])


def test_annotations_and_other_names(modules: Path) -> None:
    (modules / "work.py").write_text(
        "class Kept:\n    pass\n\n\ndef work(a: int, c, *, d=1) -> Kept:\n    return a, c\n"
    )
    (modules / "host.py").write_text(
        "from tuner_like.work import work as toil\n\n\ndef entry():\n    return toil(1, 3)\n"
    )
    changes = Changes(annotations={"labour": {"c": "int"}}, names={"toil": "labour", "Kept": "Own"})
    found = inline([("tuner_like.host", "entry")], changes)
    assert found.imports == ""
    assert "class Own:" in found.body
    assert "def labour(a: int, c: int, *, d=1) -> Own:" in found.body
    space: dict[str, Any] = {}
    exec(found.body, space)
    assert space["entry"]() == (1, 3)


def test_what_is_called_like_an_import_gets_its_modules_name(modules: Path) -> None:
    (modules / "a.py").write_text("import copy\n\n\ndef f():\n    return copy.copy([1])\n")
    (modules / "host.py").write_text(
        "from tuner_like.a import f\n\n\ndef copy():\n    return 2\n\n\n"
        "def entry():\n    return f(), copy()\n"
    )
    found = inline([("tuner_like.host", "entry")])
    space: dict[str, Any] = {}
    exec(f"{found.imports}\n{found.body}", space)
    assert space["entry"]() == ([1], 2)
    assert space["host_copy"]() == 2


def test_two_imports_of_one_name_are_refused(modules: Path) -> None:
    (modules / "a.py").write_text("from math import pow\n\n\ndef f():\n    return pow\n")
    (modules / "host.py").write_text(
        "from operator import pow\nfrom tuner_like.a import f\n\n\n"
        "def entry():\n    return f(), pow\n"
    )
    with pytest.raises(ValueError, match="math and operator are both asked for pow"):
        inline([("tuner_like.host", "entry")])


def test_a_whole_module_of_ours_is_refused(modules: Path) -> None:
    (modules / "a.py").write_text("X = 1\n")
    (modules / "host.py").write_text(
        "import tuner_like.a\n\n\ndef entry():\n    return tuner_like\n"
    )
    with pytest.raises(ValueError, match="as a whole"):
        inline([("tuner_like.host", "entry")])


def test_the_modules_of_the_hopper_kernel_can_be_taken_over() -> None:
    found = inline([("kernels.attention.hopper_kernel", "attention_forward")])
    tree = ast.parse(f"{found.imports}\n{found.body}")
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {"attention_forward"} < names
    assert "kernels" not in found.imports
