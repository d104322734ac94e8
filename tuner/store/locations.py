"""Where databases lie: the one that is shipped, and the user's own."""

from __future__ import annotations

import os
from pathlib import Path

import tuner
from kernels.attention.printable import shown

_PACKAGE = Path(tuner.__file__).parent
_NAME = "configs.db"


def shipped_database() -> Path | None:
    """The records that come with this version; None in an installation that lost them.

    A wheel has them inside the package; a checkout, also an editable install, at its root.
    """
    in_checkout = (_PACKAGE.parent / "pyproject.toml").is_file()
    path = (_PACKAGE.parent if in_checkout else _PACKAGE) / _NAME
    return path if path.is_file() else None


def user_database(location: str | Path | None = None) -> str | Path:
    """The database to write to and to read first: `location` if given, else what the environment's
    TUNER_DB names (a path or a URL), else a file in the user's data directory.

    Raises:
        TypeError, ValueError: `location` can name no database.
    """
    if location is not None:
        return check_type(location)
    if chosen := os.environ.get("TUNER_DB"):
        return chosen
    return data_folder() / _NAME


def data_folder() -> Path:
    """Where what is the user's own is kept."""
    from platformdirs import user_data_path

    return Path(user_data_path("attention-tuner", appauthor=False))


def check_type(location: str | Path) -> str | Path:
    """`location`, if it can name a database.

    Raises:
        TypeError: it is neither a str nor a Path.
        ValueError: it has a NUL character, which no system takes, or one that has no bytes.
    """
    if not isinstance(location, (str, Path)):
        raise TypeError(f"the database is {shown(location)}, but must be a path or a URL")
    if "\0" in str(location):
        raise ValueError(f"the database is {shown(str(location))}, but must have no NUL character")
    try:
        os.fsencode(location)
    except UnicodeEncodeError:
        raise ValueError(
            f"the database is {shown(str(location))}, but must have no lone surrogates"
        ) from None
    return location
