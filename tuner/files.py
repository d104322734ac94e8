"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file to write, which takes the place of `path` on leaving, or is removed on an error.
    Several may be under way for one path: the last to leave stays.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(os.path.realpath(path))  # a link stays, and its target is replaced
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
