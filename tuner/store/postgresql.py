"""How a PostgreSQL database is opened: the shared store of many hosts."""

from __future__ import annotations

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from tuner.store.errors import StoreError

_LOCK = 0x61747475  # any number that no other program's migrations use


def engine(url: URL, *, read_only: bool) -> Engine:
    """An engine for `url`, through psycopg 3 unless it names another driver.

    Raises:
        StoreError: the driver is not installed.
    """
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    options = {"options": "-c default_transaction_read_only=on"} if read_only else {}
    try:
        # No pool: searches write about once a second, and a connection cannot cross a fork.
        return create_engine(
            url,
            poolclass=NullPool,
            connect_args={"connect_timeout": 3 if read_only else 10, **options},
        )
    except (ImportError, SQLAlchemyError) as error:
        raise StoreError(
            f"{url.render_as_string()} needs a driver that is not installed ({error}); "
            "pip install 'attention-tuner[postgresql]'"
        ) from None


def lock(connection: Connection) -> None:
    """Keep others from creating or migrating tables until the transaction ends."""
    connection.execute(text("select pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
