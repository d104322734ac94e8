"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MOST_STEM = 100  # bytes, so that with what is added no name is too long that was not before


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file to write, which takes the place of `path` on leaving, or is removed on an error.
    It keeps the permissions of the one that it replaces. Several may be under way for one path: the
    last to leave stays.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(os.path.realpath(path))  # a link stays, and its target is replaced
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    stem = os.fsencode(path.name)[:_MOST_STEM].decode(errors="ignore")
    part = path.with_name(f".{stem}.{secrets.token_hex(4)}")
    try:
        yield part
        with suppress(FileNotFoundError):
            part.chmod(stat.S_IMODE(path.stat().st_mode))
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
