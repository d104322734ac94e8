"""How a PostgreSQL database is opened: the shared store of many hosts."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from threading import Timer
from typing import Any

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, text
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

from tuner import extras
from tuner.store.errors import StoreError

_LOCK = 0x61747475  # any number that no other program's migrations use

READER_STATEMENT_S = 3.0
"""How long the server may work on one of a reader's statements."""
READER_CONNECTION_S = 10.0
"""How long a reader's connection may last: a server that says nothing stops no statement."""

# What a driver's connect() takes besides what the server knows: objects of Python, which no text
# is. They fail late, in a statement.
_OBJECTS = {
    "async_", "autocommit", "connection_factory", "context", "cursor_factory", "prepare_threshold",
    "row_factory",
}  # fmt: skip


def engine(url: URL, *, read_only: bool, timeout_s: float) -> Engine:
    """An engine for `url`, through psycopg 3 unless it names another driver, that waits up to
    `timeout_s` for the locks of others.

    Raises:
        StoreError: the driver is not installed, or takes no such URL. (Connecting raises it too.)
    """
    if strange := sorted(_OBJECTS & set(url.query)):
        raise _refused(url, f"{strange[0]} is there, but no text can be one")
    driver = "postgresql+psycopg" if url.drivername == "postgresql" else url.drivername
    try:
        # No pool: searches write about once a second, and a connection cannot cross a fork.
        made = create_engine(
            url.set(drivername=driver),
            poolclass=NullPool,
            connect_args=_limits(url, read_only, timeout_s),
        )
    except (ImportError, NoSuchModuleError) as error:
        if "sqlalchemy.plugins" in str(error):  # the URL may name some of these, too
            raise _refused(url, error) from None
        raise StoreError(
            f"{named(url)} needs a driver that is not installed ({error}); "
            f"{extras.command('postgresql')}"
        ) from None
    except (SQLAlchemyError, TypeError, ValueError) as error:
        raise _refused(url, error) from None

    @event.listens_for(made, "do_connect")
    def connect(dialect: Any, record: Any, args: Any, parameters: Any) -> Any:
        try:
            connection = dialect.connect(*args, **parameters)
        except (TypeError, ValueError) as error:  # of the driver's, about what the URL says
            raise _refused(url, error) from None
        if read_only:
            record.info["deadline"] = deadline = Timer(READER_CONNECTION_S, _cut, [connection])
            deadline.daemon = True
            deadline.start()
        return connection

    @event.listens_for(made, "close")
    def close(_: Any, record: Any) -> None:
        if deadline := record.info.pop("deadline", None):
            deadline.cancel()

    return made


def named(url: URL) -> str:
    """What messages call the database: `url` without passwords."""
    secret = {name: "***" for name in ("password", "sslpassword") if name in url.query}
    return url.update_query_dict(secret).render_as_string()


def lock(connection: Connection) -> None:
    """Keep others from creating or migrating tables until the transaction ends."""
    connection.execute(text("select pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def _refused(url: URL, why: object) -> StoreError:
    line = (str(why).splitlines() or [""])[0]
    return StoreError(f"the database's URL, {named(url)}, is refused: {line}")


def _limits(url: URL, read_only: bool, timeout_s: float) -> dict[str, Any]:
    given = url.query.get("options", os.environ.get("PGOPTIONS", ""))
    theirs = given if isinstance(given, str) else " ".join(given)
    # Of two the server takes the latter: a writer may be told to wait longer, a reader may not.
    ours = f"-c lock_timeout={max(1, round(timeout_s * 1000))}"
    if read_only:
        ours += (
            f" -c statement_timeout={round(READER_STATEMENT_S * 1000)}"
            " -c default_transaction_read_only=on"
        )
    return {
        "options": f"{theirs} {ours}" if read_only else f"{ours} {theirs}",
        "connect_timeout": 3 if read_only else 10,  # for each host that the URL names
        # A host that is gone does not answer, and says no goodbye either.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000 if read_only else 30_000,
    }


def _cut(connection: Any) -> None:
    """End a connection that another thread waits on. Whatever fails: it has ended by itself."""
    with suppress(Exception), socket.fromfd(connection.fileno(), 0, socket.SOCK_STREAM) as line:
        line.shutdown(socket.SHUT_RDWR)
