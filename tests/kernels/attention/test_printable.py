"""Text that is not ours, as it stands in sentences."""

from __future__ import annotations

import pytest

from kernels.attention.printable import MOST_LINE, printable, printable_sentence, shown


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("NVIDIA H100 – 80 GB ×2", "NVIDIA H100 – 80 GB ×2"),
        ("a\x1b[2Jb\nc\x7f\x9b", r"a\x1b[2Jb\nc\x7f\x9b"),
        ("\u202a\u202e\u2066\u2069", r"\u202a\u202e\u2066\u2069"),
        ("\u2028\ud800", r"\u2028\ud800"),
    ],
)
def test_nothing_steers_a_terminal(text: str, spelled: str) -> None:
    assert printable(text) == spelled


def test_what_is_long_is_cut() -> None:
    assert printable("x" * 300) == "x" * 300
    assert printable("x" * 10**6) == "x" * 297 + "..."
    assert len(printable("\x1b" * 10**6)) == 300


def test_a_long_sentence_keeps_its_end() -> None:
    assert printable_sentence("short\n") == r"short\n"
    cut = printable_sentence(f"{'x' * 10**6} is no name")
    assert cut.startswith("xxx")
    assert cut.endswith("xxx is no name")
    assert len(cut) < MOST_LINE
    spelled = printable_sentence(f"{chr(27) * 300} is no name")
    assert spelled.endswith(r"\x1b\x1b is no name")
    assert len(spelled) < MOST_LINE


class _Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        (7, "7"),
        ("a\nb\u202e", r"'a\nb\u202e'"),
        (-(10**100), "a number of 333 bits"),
        ([10**200, "x" * 99], "[1" + "0" * 55 + "..."),
        (_Mute(), "of type _Mute"),
    ],
)
def test_values(value: object, spelled: str) -> None:
    assert shown(value) == spelled
