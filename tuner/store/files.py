"""Files of the store, whole or not at all, with what goes wrong as its errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernels.attention.printable import shown
from tuner import files
from tuner.store.errors import StoreError

_STANDARD = {"/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTOR = re.compile(r"/dev/stdout|/dev/stderr|/(?:dev|proc/self)/fd/([0-9]{1,9})")


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write `content`, a text as UTF-8, to `path`; whoever reads it meanwhile sees the old content
    or the new. What is no file, such as /dev/stdout, is written to, not replaced.

    Raises:
        StoreError: it cannot be written, or is a database or its log, whose content nothing must
            replace because of a slip of the hand; an old file is as it was.
    """
    path = Path(path)
    try:
        data = content if isinstance(content, bytes) else content.encode()
    except UnicodeEncodeError as error:
        odd = shown(error.object[error.start])
        raise StoreError(
            f"{path} cannot be written: its text has {odd}, which is no character"
        ) from None
    try:
        if opened := _DESCRIPTOR.fullmatch(str(path)):
            # It may lead to a file that others write to, too, such as a log.
            number = _STANDARD.get(opened[0]) or int(opened[1])
            with open(os.dup(number), "wb") as file:  # noqa: PTH123
                file.write(data)
            return
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(data)
            return
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None
    if path.is_file():
        from tuner.store.sqlite import database_of_log, looks_like_database

        if looks_like_database(path):
            raise StoreError(f"{path} is a database, which is not replaced: name another file")
        if owner := database_of_log(path):
            raise StoreError(f"{path} belongs to the database {owner}: name another file")
    with replacing(path) as part:
        part.write_bytes(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """As `tuner.files.replacing`.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        with files.replacing(path) as part:
            yield part
    except OSError as error:
        place = os.path.realpath(path)
        raise StoreError(f"{place} cannot be written: {error.strerror or error}") from None
