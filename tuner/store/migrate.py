"""Bring a database to the schema of this version, or refuse it untouched.

Alembic is imported only when there is something to do: reading the revision is one select.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, inspect, select, text

from tuner import caution
from tuner.store.errors import StoreError
from tuner.store.schema import HEAD, REVISIONS, records, trials, version

# Alembic keeps the migration in progress in global variables.
_alembic = threading.Lock()

MIGRATIONS = Path(__file__).with_name("migrations")


def revision(connection: Connection, location: str) -> str | None:
    """The revision of our schema in the database; None if it is empty.

    Raises:
        StoreError: the tables are another program's, or a newer version of this one wrote them, or
            reading them would run what somebody else has written.
    """
    tables = set(inspect(connection).get_table_names())
    if not tables:
        return None
    if version.name not in tables:
        raise StoreError(
            f"{location} holds the tables of another program ({', '.join(sorted(tables)[:3])}, …); "
            "give the tuner a database of its own"
        )
    _check_plain(connection, location, version.name)
    found = connection.scalar(select(version.c.version_num))
    if found is None:
        raise StoreError(
            f"{location} is damaged: it does not say which schema it has; restore a backup of it"
        )
    if found not in REVISIONS:
        raise StoreError(
            f"{location} was written by a newer version (its schema is {found}, this version knows "
            f"up to {HEAD}); upgrade attention-tuner"
        )
    for name in (records.name, trials.name):
        if name not in tables:  # a view is no table
            raise StoreError(f"{location} is damaged: a table is missing ({name})")
        _check_plain(connection, location, name)
    return str(found)


def _check_plain(connection: Connection, location: str, table: str) -> None:
    """Refuse a file whose table is computed when it is read, which may take for ever, or does other
    things when it is written than those asked for."""
    if connection.dialect.name != "sqlite":
        return
    # Virtual tables have no page of their own; of columns, the generated ones are hidden.
    if connection.scalar(
        text(
            "select exists (select 1 from sqlite_master"
            " where type = 'table' and name = :name and coalesce(rootpage, 0) = 0)"
            " or exists (select 1 from pragma_table_xinfo(:name) where hidden != 0)"
        ),
        {"name": table},
    ):
        raise StoreError(
            f"{location} is damaged: {table} is no plain table; restore a backup of it"
        )
    # SQLite holds a trigger's row to its statement, but takes bytes for text, which end at a NUL.
    if connection.scalar(
        text(
            "select exists (select 1 from sqlite_master"
            " where lower(type) not in ('table', 'index', 'view')"
            " and instr(lower(tbl_name), :name) = 1)"
        ),
        {"name": table},
    ):
        raise StoreError(
            f"{location} is damaged: {table} has a trigger, which may undo what is written; "
            "restore a backup of it"
        )


def upgrade(connection: Connection, location: str, back_up: Callable[[str], object]) -> None:
    """Create or migrate the tables within the connection's transaction, which must exclude others.

    Args:
        back_up: called with the old revision before an existing schema is changed.

    Raises:
        StoreError: as `revision`.
    """
    old = revision(connection, location)  # again: another process may just have done it
    if old == HEAD:
        return
    if old is not None:
        caution.log(f"{location}: schema {old} is migrated to {HEAD}")
        back_up(old)

    from alembic import command
    from alembic.config import Config as AlembicConfig

    config = AlembicConfig()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _alembic:
        command.upgrade(config, HEAD)
