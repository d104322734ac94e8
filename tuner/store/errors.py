"""What the store raises: always one sentence for the user, naming the file."""

from __future__ import annotations


class StoreError(Exception):
    """A database or file cannot serve; the message is one sentence that names it and says why."""


class DocumentError(StoreError):
    """A document is refused; the message names the place in it, the value and what is accepted."""


# What a driver says, and what that means to a user. Matched by text since sqlite3 has error codes
# only from Python 3.11 on.
_MEANINGS = (
    ("is locked", "is locked by another process; try again when that is done"),
    ("lock timeout", "is locked by another session; try again when that is done"),
    ("statement timeout", "cannot be used: the server was too slow to answer"),
    ("closed the connection", "cannot be used: the connection ended, or no answer came in time"),
    ("readonly database", "may not be written: check its permissions and its folder's"),
    ("is full", "cannot be written: the disk is full"),
    ("disk i/o error", "cannot be read or written: disk I/O error (disk full, quota or hardware)"),
    ("not a database", "is not an SQLite database"),
    ("codec can't", "is damaged; restore a backup of it"),
    ("interrupted", "is damaged: reading it never ends; restore a backup of it"),
    ("malformed", "is damaged; restore a backup of it"),
    ("unable to open", "cannot be opened: check the path and its permissions"),
    ("no such table", "is damaged: a table is missing"),
    ("no such column", "is damaged: a column is missing"),
)


def explain(location: str, error: BaseException) -> StoreError:
    """The StoreError for what a database driver raised about `location`."""
    said = str(getattr(error, "orig", None) or error).strip()
    lowered = said.lower()
    for text, meaning in _MEANINGS:
        if text in lowered:
            return StoreError(f"{location} {meaning}")
    line = said.splitlines()[0] if said else type(error).__name__
    return StoreError(f"{location} cannot be used: {line}")
