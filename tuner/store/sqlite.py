"""How an SQLite file is opened: for writing by many at once, or for reading without touching it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
import weakref
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat, starmap
from pathlib import Path

from sqlalchemy import Connection, Engine, Integer, NullPool, bindparam, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError

from tuner.files import replacing
from tuner.store.errors import StoreError, explain

_MAGIC = b"SQLite format 3\0"
_LOGS = ("-wal", "-journal")
_MOST_NAME = 255 - len("-journal")  # bytes, with which SQLite's own file beside it has a name
_STEPS = 1_000
_LEAST_CPU_S = 2.0
_LEAST_BYTES_PER_CPU_S = 5e6  # SQLite reads over 100 MB/s
_LEAST_BYTES = 1 << 20
_INDEX_BYTES = 64 << 10  # more than the shared index of a log without anything in it
_TURN_S = 0.05  # for so long SQLite asks for a lock every 1 to 15 ms, and then every 100
_IMMEDIATE = "BEGIN IMMEDIATE"
_BEGIN = "tuner_begin"
IMMEDIATE = {_BEGIN: _IMMEDIATE}
"""The execution option of a transaction that writes."""
_PATIENCE = text("PRAGMA busy_timeout = :ms").bindparams(
    bindparam("ms", type_=Integer, literal_execute=True)  # SQLite takes no parameter there
)


def check_file(path: Path) -> None:
    """Make sure, without touching it, that `path` is an SQLite file, an empty one, or absent.

    Raises:
        StoreError: it is anything else, or may not be read.
    """
    try:
        if path.is_dir():
            raise StoreError(f"{path} is a directory, but must be a file")
        if not path.exists():
            return
        if not path.is_file():  # opening a pipe would wait for ever
            raise StoreError(f"{path} is a device or a pipe, but must be a file")
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as error:
        raise StoreError(f"{path} may not be read: {error.strerror}") from None
    if start and start != _MAGIC:
        raise StoreError(f"{path} is not an SQLite database")


def looks_like_database(path: Path) -> bool:
    """Whether `path` begins as an SQLite file does; false also where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def log_beside(path: Path) -> Path | None:
    """What lies beside `path` and would be taken for the log of a database that is put there."""
    logs = (_beside(path, ending) for ending in _LOGS)
    return next((log for log in logs if _stat(log) is not None), None)


def database_of_log(path: Path) -> Path | None:
    """The database whose log, or the like, `path` is."""
    for ending in (*_LOGS, "-shm"):
        owner = Path(os.path.realpath(path).removesuffix(ending))
        if str(path).endswith(ending) and looks_like_database(owner):
            return owner
    return None


def prepare_for_writing(path: Path) -> None:
    """Create `path` (empty, which SQLite takes for a new database) and its folder where they are
    not there, and make sure that both may be written.

    Raises:
        StoreError: they may not.
    """
    if len(os.fsencode(path.name)) > _MOST_NAME:
        raise StoreError(
            f"{path} cannot be written: its name is longer than {_MOST_NAME} bytes, and SQLite has "
            "a file beside it whose name is that and -journal"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            # Even a writable file would not do: SQLite keeps its journal beside it.
            raise StoreError(f"{path} may not be written: its folder is read-only")
        if not path.exists():
            path.touch()
        elif not os.access(path, os.W_OK):
            raise StoreError(f"{path} may not be written: it is read-only")
    except OSError as error:
        raise StoreError(f"{path} cannot be created: {error.strerror}") from None


def writing_engine(path: Path, timeout_s: float) -> Engine:
    """An engine for an existing file that waits for other writers, for up to `timeout_s` in which
    none of them writes anything."""

    def connect() -> sqlite3.Connection:
        connection = _connect(path, "mode=rw", timeout_s)
        _limit(connection, path)
        try:
            # Some builds of SQLite default to less in WAL mode: power loss would undo commits.
            connection.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error:  # this reads the schema
            connection.close()
            raise
        connection.set_progress_handler(None, 0)  # there may be any number of rows to write
        return connection

    return _engine(connect, partial(_begin_in_turn, path=path, timeout_s=timeout_s))


def reading_engine(path: Path, timeout_s: float) -> Engine:
    """An engine that never changes the database. (In WAL mode SQLite may leave an empty log and its
    index beside it.) What never ends in a file that somebody has made is interrupted."""

    def connect() -> sqlite3.Connection:
        connection = _connect(path, _reading_mode(path), timeout_s)
        _limit(connection, path)
        return connection

    return _engine(connect)


def use_write_ahead_log(engine: Engine, path: Path, timeout_s: float) -> None:
    """Switch a new file to WAL, in which readers and a writer do not wait for each other.

    Raises:
        StoreError: others held the file for longer than `timeout_s`.
    """
    _patiently(engine, "PRAGMA journal_mode=WAL", path, timeout_s)


def leave_write_ahead_log(engine: Engine, path: Path, timeout_s: float) -> None:
    """Fold the log of a file that has one into it, and go on without; else nothing changes.

    Raises:
        StoreError: others held the file for longer than `timeout_s`, or it may not be changed.
    """
    _patiently(engine, "PRAGMA journal_mode=DELETE", path, timeout_s)


def _patiently(engine: Engine, statement: str, path: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            execute(engine, statement, patience_s=min(_TURN_S, timeout_s))
            return
        except SQLAlchemyError as error:
            # When several switch at once, SQLite refuses some of them without waiting.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise explain(str(path), error) from None
        time.sleep(0.01)


def execute(engine: Engine, statement: str, *values: str, patience_s: float | None = None) -> None:
    """Run `statement` with `values` for its question marks, in no transaction, and wait for the
    locks of others for `patience_s`, or else for as long as the engine does.

    Raises:
        SQLAlchemyError: SQLite refuses it.
    """
    with engine.execution_options(**{_BEGIN: ""}).connect() as connection:
        if patience_s is not None:
            _set_patience(connection, patience_s)
        connection.exec_driver_sql(statement, values)


def back_up(path: Path, revision: str) -> Path:
    """Copy the database beside itself, for whom it is for, and return where the copy lies.

    Raises:
        StoreError: the copy cannot be written.
    """
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    copy = path.with_name(f"{path.name}.bak-{revision}-{moment}")
    try:
        with replacing(copy) as part:
            execute(reading_engine(path, 5), "VACUUM INTO ?", str(part))
            part.chmod(stat.S_IMODE(path.stat().st_mode))
    except (OSError, SQLAlchemyError) as error:
        said = getattr(error, "orig", None) or error
        raise StoreError(f"{path} cannot be backed up to {copy}: {said}") from None
    return copy


def change_token(path: Path) -> tuple[object, ...]:
    """Differs whenever the file's content may; costs a few stats. A commit lands in either file."""
    # A reader may leave an empty log, which says as much as none.
    return _stat(path), _stat(_log(path))


def _engine(
    connect: Callable[[], sqlite3.Connection],
    begin_writing: Callable[[Connection], None] | None = None,
) -> Engine:
    # No pool: opening costs 0.2 ms, and a connection that crosses a fork loses its locks.
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that reads before it writes must hold the write lock from its start: else
        # SQLite refuses it at once, without waiting, when another wrote in between.
        statement = connection.get_execution_options().get(_BEGIN, "BEGIN")
        if statement == _IMMEDIATE and begin_writing is not None:
            begin_writing(connection)
        elif statement:
            connection.exec_driver_sql(statement)

    return engine


def _begin_in_turn(connection: Connection, path: Path, timeout_s: float) -> None:
    # SQLite keeps no queue: it asks for the lock every 100 ms, and while many write, each for as
    # long as a slow disk takes, somebody else may always have been there just before. So it is
    # asked for more often, and given up only where it is held without anything being written.
    file = _identity(path)
    written, deadline = change_token(path), time.monotonic() + timeout_s
    _set_patience(connection, min(_TURN_S, timeout_s))
    while True:
        try:
            connection.exec_driver_sql(_IMMEDIATE)
            break
        except SQLAlchemyError as error:
            if "locked" not in str(error):
                raise
            before, written = written, change_token(path)
            if written != before:
                deadline = time.monotonic() + timeout_s
            elif time.monotonic() > deadline:
                raise
    if _identity(path) != file:  # what is written to one that has no name any more is lost
        raise StoreError(f"{path} was moved, removed or replaced meanwhile; nothing was written")
    _set_patience(connection, timeout_s)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _set_patience(connection: Connection, seconds: float) -> None:
    connection.execute(_PATIENCE, {"ms": round(1000 * seconds)})


def _connect(path: Path, query: str, timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{query}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,  # transactions are begun by the event above, not by sqlite3
        check_same_thread=False,
    )
    # One damaged text must not make every row unreadable.
    connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
    connection.row_factory = _Scales(path)
    return connection


def _limit(connection: sqlite3.Connection, path: Path) -> None:
    """Interrupt what takes longer than to read all of the file."""
    # A row takes more bytes than SQLite takes steps to read it. But steps can be long: pages may
    # lead to the same long row again and again. Nothing of this is Python's code, since sqlite3
    # would take a Ctrl-C within it for a wish to interrupt.
    size = _size(path)
    end = time.thread_time() + _LEAST_CPU_S + size / _LEAST_BYTES_PER_CPU_S
    clock = starmap(time.thread_time, repeat((), 1000 + size // _STEPS))
    connection.set_progress_handler(chain(map(end.__lt__, clock), repeat(True)).__next__, _STEPS)


class _Scales:
    """Weighs the rows that a statement returns. A file whose pages lead to the same rows again and
    again, or with a long default in place of each cell, would fill the memory.

    Raises:
        sqlite3.DatabaseError: they are far more than the file can hold, so it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._most = self._bearable()
        self._read = 0
        self._statement: Callable[[], sqlite3.Cursor | None] = lambda: None

    def __call__(self, cursor: sqlite3.Cursor, row: tuple[object, ...]) -> tuple[object, ...]:
        if self._statement() is not cursor:
            self._statement, self._read = weakref.ref(cursor), 0
        # In a file a character takes a byte at least, and so does whatever else is in a cell.
        self._read += sum(len(cell) if isinstance(cell, (str, bytes)) else 1 for cell in row)
        if self._read > self._most:
            self._most = max(self._most, self._bearable())  # it may have grown since
            if self._read > self._most:
                raise sqlite3.DatabaseError("malformed: its pages say more than they can hold")
        return row

    def _bearable(self) -> int:
        return 2 * _size(self._path) + _LEAST_BYTES


def _reading_mode(path: Path) -> str:
    # To read a WAL file SQLite needs its shared index beside it. Where none can be created, and no
    # log is left to read, nobody writes, and the file can be read as it is.
    log = _log(path)
    if _stat(log) is not None:
        return "mode=ro"
    barred = not os.access(log.parent, os.W_OK) or (
        _stat(_index(log)) is None and not _has_room(log.parent)
    )
    return "mode=ro&immutable=1" if barred else "mode=ro"


def _has_room(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free >= _INDEX_BYTES
    except OSError:
        return True  # it will be seen


def _index(log: Path) -> Path:
    return Path(f"{str(log).removesuffix('-wal')}-shm")


def _log(path: Path) -> Path:
    return _beside(path, "-wal")


def _beside(path: Path, ending: str) -> Path:
    # Beside the file itself, where `path` is a link to it. with_name() refuses the root folder.
    return Path(f"{os.path.realpath(path)}{ending}")


def _size(path: Path) -> int:
    """The bytes of all that can be read of the database, however much of it is in its log."""
    return sum(found[1] for found in (_stat(path), _stat(_log(path))) if found)


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found.st_size else None
