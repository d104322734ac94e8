"""One line out of what compilers say."""

from __future__ import annotations

import pytest

from tuner.evaluate.failure import LIMIT, describe, one_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "no message"),
        ("simply this", "simply this"),
        ("k.ttgir:3:4: error: 'tt.dot' op bad\n k.ttgir:3:4: note: see", "'tt.dot' op bad"),
        ("ptxas fatal   : Unresolved extern function 'x'", "Unresolved extern function 'x'"),
        ("\x1b[31merror: red\x1b[0m", "red"),
        ("Traceback (most recent call last):\n  File \"a\"\nValueError: b", "ValueError: b"),
        ("PassManager::run failed", "PassManager::run failed"),
        ("CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA",
         "device-side assert triggered"),
    ],
)  # fmt: skip
def test_one_line(text: str, line: str) -> None:
    assert one_line(text) == line


def test_a_reason_has_an_end() -> None:
    assert len(one_line("x" * 5000)) == LIMIT


def test_what_was_printed_explains_an_exception_that_does_not() -> None:
    error = RuntimeError("PassManager::run failed")
    assert describe(error, "a.ttgir:1:1: error: bad layout\n") == "RuntimeError: bad layout"
    assert describe(ValueError("block is 3"), "error: something else") == "ValueError: block is 3"
    assert describe(KeyError()) == "KeyError"
