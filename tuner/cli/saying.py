"""What a command says beside tables, such as where a file went."""

from __future__ import annotations

import sys
from typing import TextIO

from kernels.attention.printable import printable

_MOST = 8000  # a path has up to 4096 characters, and scripts read it


def say(sentence: str, to: TextIO | None = None) -> None:
    """Print one line of which no character steers the terminal, as names of files may; to stdout if
    nothing else is given."""
    print(printable(sentence, _MOST), file=to or sys.stdout, flush=True)
