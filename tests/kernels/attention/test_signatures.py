"""What templates say of their kernels' signatures is what those are; needs no Triton."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kernels.attention import hopper, portable


@pytest.mark.parametrize("template", [hopper, portable])
def test_the_constexprs_are_counted_and_last(template):
    assert template.__file__
    kernel = Path(template.__file__.removesuffix(".py") + "_kernel.py")
    (entry,) = (
        node
        for node in ast.parse(kernel.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "attention_forward"
    )
    constant = [
        argument.annotation is not None and ast.unparse(argument.annotation).endswith(".constexpr")
        for argument in entry.args.args
    ]
    count = template._CONSTEXPRS
    assert constant == [False] * (len(constant) - count) + [True] * count
