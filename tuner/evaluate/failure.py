"""One meaningful line out of what compilers and drivers say when they fail."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT = 300  # characters; a reason is a sentence in a table, not a log

_CODES = re.compile(r"\x1b\[[0-9;]*m")
# MLIR and ptxas: "file.ttgir:12:3: error: ...", "ptxas fatal   : ...", "error: ..."
_DIAGNOSTIC = re.compile(r"(?<!\w)(?:error|fatal)\s*:\s*(.+)", re.IGNORECASE)
# Lines that name a pass manager or a traceback, but no cause.
_EMPTY = re.compile(r"PassManager::run failed|^Traceback|^\s*File \"|failed with error code")


def one_line(text: str) -> str:
    """The first diagnostic in `text`, else its last line that says something."""
    lines = [line.strip() for line in _CODES.sub("", text).splitlines() if line.strip()]
    telling = [line for line in lines if not _EMPTY.search(line)]
    for line in telling:
        if found := _DIAGNOSTIC.search(line):
            return _shorten(found[1])
    return _shorten((telling or lines or ["no message"])[-1])


def describe(error: BaseException, printed: str = "") -> str:
    """One line for an exception; what was printed meanwhile is asked where it does not say why."""
    own = str(error)
    if printed and (not own.strip() or _EMPTY.search(own)):
        diagnostic = one_line(printed)
        return f"{type(error).__name__}: {diagnostic}"
    return f"{type(error).__name__}: {one_line(own)}" if own.strip() else type(error).__name__


@contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """Collect what native code writes to descriptor 2, such as MLIR's diagnostics.

    The list has one element once the block ends. For a process with one thread only.
    """
    result: list[str] = []
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield result
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            result.append(file.read(1 << 20).decode(errors="replace"))


def _shorten(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= LIMIT else line[: LIMIT - 1] + "…"
