"""What a command says on stdout beside tables, such as where a file went."""

from __future__ import annotations

from kernels.attention.printable import printable

_MOST = 8000  # a path has up to 4096 characters, and scripts read it


def say(sentence: str) -> None:
    """Print one line of which no character steers the terminal, as names of files may."""
    print(printable(sentence, _MOST), flush=True)
