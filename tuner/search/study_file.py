"""Studies in a file of Optuna's, for its dashboard: all of them, or no file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.files import replacing
from tuner.search.study import study_of
from tuner.trial import Trial

if TYPE_CHECKING:
    import optuna


def write(
    studies: Mapping[str, Sequence[Trial]],
    file: Path,
    look_again: Callable[[], None] = lambda: None,
) -> None:
    """Write the trials of each of `studies`, by its name, in place of what `file` holds, unless
    `look_again`, which is called just before, raises.

    Raises:
        ValueError: SQLite cannot write it; the message says why.
        OSError: its folder cannot be written.
    """
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    # Under its own name, so that what SQLite makes of that shows, and with SQLite's journals.
    with tempfile.TemporaryDirectory(prefix=".", dir=file.parent) as beside:
        part = Path(beside) / file.name
        try:
            storage = storage_of(part)
            try:
                for name, trials in studies.items():
                    study_of(trials, name, storage)
            finally:
                storage.remove_session()
                storage.engine.dispose()
        except (SQLAlchemyError, UnicodeError, optuna.exceptions.StorageInternalError) as error:
            why = str(getattr(error, "orig", None) or error).partition("\n")[0]
            raise ValueError(why) from None
        look_again()
        with replacing(file) as new:
            part.replace(new)


def storage_of(file: Path) -> optuna.storages.RDBStorage:
    """Optuna's view of `file`, which is made if it is not there."""
    import optuna
    from sqlalchemy import URL

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Not pasted together: a question mark in the name would lead to another file.
    url = URL.create("sqlite", database=str(file.absolute())).render_as_string()
    return optuna.storages.RDBStorage(url)


def can_be_made_anew(file: Path, names: Set[str]) -> bool:
    """Whether `file` holds studies, none but such as are called one of `names`, and no note or the
    like that somebody made in the dashboard: what was written before, a copy of trials. Nothing of
    it is changed."""
    from sqlalchemy import (
        URL,
        Select,
        String,
        column,
        create_engine,
        literal,
        select,
        table,
    )
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    try:
        if file.is_symlink() or not file.is_file():
            return False
        read_only = {"mode": "ro", "uri": "true"}
        location = URL.create("sqlite", database=file.absolute().as_uri(), query=read_only)
        with create_engine(location, poolclass=NullPool).connect() as connection:
            studies: Select[tuple[str]] = select(column("study_name")).select_from(table("studies"))
            held = set(connection.scalars(studies))
            made = any(
                connection.scalar(
                    select(literal(1))
                    .select_from(table(attributes))
                    .where(column("key", String).startswith("dashboard:", autoescape=True))
                    .limit(1)
                )
                for attributes in ("study_system_attributes", "trial_system_attributes")
            )
    except (SQLAlchemyError, OSError, ValueError):  # no database, or its writer was killed
        return False
    return bool(held) and held <= names and not made
