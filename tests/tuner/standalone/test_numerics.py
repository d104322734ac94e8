"""A standalone file's numbers, as interpreted_file.py checks them on Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interpreter import interpret

pytestmark = pytest.mark.timeout(900)  # minutes, where others have the cores, too
CASES = Path(__file__).with_name("interpreted_file.py")


def test_a_standalone_file_equals_the_reference_on_the_interpreter() -> None:
    interpret(CASES)
