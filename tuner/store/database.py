"""The database: a set of records and the latest trial of each candidate, in SQLite or PostgreSQL.

Records are only ever added, or put back in place of a row of theirs that was damaged, so that no
writer can undo another; which of them stands is not stored but computed (`tuner.standing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    Engine,
    Select,
    and_,
    bindparam,
    delete,
    or_,
    select,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from kernels.attention.printable import shown
from kernels.attention.problem import Problem
from tuner import caution
from tuner.moments import tomorrow
from tuner.record import Record
from tuner.store import postgresql, rows, sqlite
from tuner.store.errors import StoreError, explain
from tuner.store.interrupts import deferring_interrupts
from tuner.store.locations import check_type
from tuner.store.migrate import revision, upgrade
from tuner.store.mounts import network_file_system
from tuner.store.schema import HEAD, records, trials
from tuner.store.statements import columns, matching, upsert
from tuner.store.wire import WireError
from tuner.target import Hardware
from tuner.trial import Origin, Trial

T = TypeVar("T")

WRITER_TIMEOUT_S = 30.0
"""How long a writer waits for others that write nothing meanwhile: each holds the lock for
milliseconds, or for seconds where the disk is slow."""
READER_TIMEOUT_S = 0.2
"""How long a read-only store waits: it serves calls that must not stall."""

# UnicodeError: what SQLite says of a damaged schema may quote it.
_TROUBLE = (SQLAlchemyError, UnicodeError)

_CHUNK = 500  # SQLite once allowed 999 variables a statement


class Store:
    """An open database. Safe to share between threads, and to use after a fork.

    Every method raises StoreError, one sentence that names the database, when it is locked for too
    long, damaged, full, or may not be read or written.
    """

    def __init__(
        self,
        location: str,
        reader: Engine,
        writer: Engine | None,
    ) -> None:
        self.location = location
        """What the user calls it: a path, or a URL without its password."""
        self._reader = reader
        self._writer = writer

    @classmethod
    @deferring_interrupts()
    def open(
        cls,
        location: str | Path,
        *,
        create: bool = True,
        timeout_s: float = WRITER_TIMEOUT_S,
        write_ahead_log: bool = True,
    ) -> Store:
        """Open for reading and writing. An old schema is migrated, an SQLite file after a backup.

        Args:
            location: a path, or a URL: `sqlite:///…` or `postgresql+psycopg://…`.
            create: make the file, its folder and the tables where there are none.
            timeout_s: how long to wait for the locks of others.
            write_ahead_log: for a new SQLite file. Without it readers wait for writers, but the
                file can be read where nothing can be written beside it. On a network file system
                none has one: a file that had is switched.

        Raises:
            StoreError: it is not there, not ours, of a newer version, damaged, or may not be
                written; it is left untouched.
        """
        place = parse_location(location)
        if isinstance(place, URL):
            engine = postgresql.engine(place, read_only=False, timeout_s=timeout_s)
            store = cls(postgresql.named(place), engine, engine)
            with store._reading() as connection:
                found = revision(connection, store.location)
            if found != HEAD:
                if found is None and not create:
                    raise StoreError(f"{store.location} holds no tables yet")
                with store._writing() as connection:
                    postgresql.lock(connection)
                    upgrade(connection, store.location, lambda _: None)
            return store

        sqlite.check_file(place)
        if not create and not place.exists():
            raise StoreError(f"{place} does not exist")
        sqlite.prepare_for_writing(place)
        network = network_file_system(place.parent)
        if network is not None:
            caution.log(
                f"{place} lies on a network file system ({network}), where SQLite cannot keep "
                "writers of several hosts apart: write from one host, or give them a "
                "postgresql:// URL"
            )
        engine = sqlite.writing_engine(place, timeout_s)
        store = cls(str(place), engine, engine)
        with store._reading() as connection:
            found = revision(connection, store.location)
        if network is not None:
            # Also what was made before it came to lie there: its users would share no memory.
            sqlite.leave_write_ahead_log(engine, place, timeout_s)
        elif found is None and write_ahead_log:
            sqlite.use_write_ahead_log(engine, place, timeout_s)
        if found != HEAD:
            with store._writing() as connection:
                upgrade(connection, store.location, lambda old: sqlite.back_up(place, old))
        return store

    @classmethod
    def read_only(cls, location: str | Path, *, timeout_s: float = READER_TIMEOUT_S) -> Store:
        """Open for reading. Creates, changes and migrates nothing, and waits at most `timeout_s`
        for the locks of others.

        Raises:
            StoreError: it is not there, not ours, not of this version's schema, locked or damaged.
        """
        place = parse_location(location)
        if isinstance(place, URL):
            engine = postgresql.engine(place, read_only=True, timeout_s=timeout_s)
            store = cls(postgresql.named(place), engine, None)
        else:
            sqlite.check_file(place)
            if not place.exists():
                raise StoreError(f"{place} does not exist")
            store = cls(str(place), sqlite.reading_engine(place, timeout_s), None)
        with store._reading() as connection:
            found = revision(connection, store.location)
        if found is None:
            raise StoreError(f"{store.location} holds no tables yet")
        if found != HEAD:
            raise StoreError(
                f"{store.location} has the schema of an older version ({found}, now {HEAD}); "
                "any command that writes to it migrates it"
            )
        return store

    def add_record(self, record: Record) -> bool:
        """Add `record`; true if it was not there, or not whole.

        Raises:
            WireError: it holds what could not be read back, such as a figure that is not finite.
        """
        return bool(self.add_records([record]))

    def add_records(self, new: Iterable[Record]) -> list[Record]:
        """Add records in one transaction, and return those that were not there. A row that was
        damaged counts as not there, and its record takes its place.

        Raises:
            WireError: one holds what could not be read back; then none is added.
        """
        return self.add_all(new, ())

    def records(self) -> list[Record]:
        """Every record, in a fixed order. Rows that are none are skipped with a warning."""
        found = self._read(select(*columns(records)), rows.record_of)
        return sorted(found, key=lambda record: record.uid)

    def add_trial(self, trial: Trial) -> None:
        """Add `trial`, in place of an earlier one of the same candidate, problem and target, of one
        that a wrong clock dated into the future, or of a row that was damaged, whatever its date.

        Raises:
            WireError: it holds what could not be read back, such as a figure that is not finite.
        """
        self.add_trials([trial])

    def add_trials(self, new: Iterable[Trial]) -> None:
        """Add trials in one transaction, each as `add_trial` does.

        Raises:
            WireError: one holds what could not be read back; then none is added.
        """
        self.add_all((), new)

    def add_all(self, new_records: Iterable[Record], new_trials: Iterable[Trial]) -> list[Record]:
        """`add_records` and `add_trials` in one transaction: all of it is added, or nothing.

        Raises:
            WireError: one holds what could not be read back.
        """
        by_uid = {record.uid: record for record in new_records}
        values = [rows.trial_row(trial) for trial in new_trials]
        with self._writing() as connection:
            added = _insert_records(connection, by_uid) if by_uid else []
            if values:
                _insert_trials(connection, values)
        return added

    def trials(
        self,
        problem: Problem | None = None,
        *,
        hardware: Hardware | None = None,
        triton: str | None = None,
        origin: Origin | None = None,
    ) -> list[Trial]:
        """The trials that have all that is given, oldest first. Bad rows are skipped, as in
        `records`."""
        wanted = matching(problem, hardware, triton, origin)
        found = self._read(select(*columns(trials)).where(wanted), rows.trial_of)
        return sorted(found, key=lambda trial: (trial.measured_at, trial.key))

    def close(self) -> None:
        """Let go of the database. Safe to call twice."""
        self._reader.dispose()
        if self._writer is not None:
            self._writer.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except _TROUBLE as error:
            raise explain(self.location, error) from error
        except MemoryError:
            raise StoreError(
                f"{self.location} is damaged, or too large: it takes more memory than there is"
            ) from None

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._explaining(), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        if self._writer is None:
            raise StoreError(f"{self.location} is open for reading only")
        engine = self._writer.execution_options(**sqlite.IMMEDIATE)
        with self._explaining(), engine.begin() as connection:
            yield connection

    def _read(self, query: Select[Any], parse: Callable[[Any], T]) -> list[T]:
        """What `query` returns, in no order: to sort rows SQLite reads all of them, however many a
        damaged file claims to have, before it returns one."""
        with self._reading() as connection:
            found = connection.execute(query).mappings().all()
        result: list[T] = []
        skipped: list[str] = []
        with self._explaining():
            for row in found:
                try:
                    result.append(parse(row))
                except WireError as error:
                    skipped.append(str(error))
        if skipped:
            caution.log(
                f"{self.location}: {len(skipped)} of {len(found)} rows are skipped, the first "
                f"since {skipped[0]}"
            )
        return result


def _insert_records(connection: Connection, by_uid: dict[str, Record]) -> list[Record]:
    for uids in _chunks(list(by_uid)):
        query = select(*columns(records)).where(records.c.uid.in_(uids))
        for row in connection.execute(query).mappings().all():
            if _whole(row, rows.record_of):
                by_uid.pop(row["uid"], None)
    added = list(by_uid.values())
    for chunk in _chunks(added):
        # What another writer has added meanwhile is the same: the uid tells.
        statement = upsert(connection, records)
        connection.execute(statement, [rows.record_row(record) for record in chunk])
    return added


def _insert_trials(connection: Connection, values: Sequence[dict[str, Any]]) -> None:
    keys = list(trials.primary_key.columns)
    same = and_(*(key == bindparam(f"same_{key.name}", type_=key.type) for key in keys))
    # Locked, where a database has locks of rows: another writer may be about to put it right.
    there = select(*columns(trials)).where(same).with_for_update()
    for value in values:
        key = {f"same_{column.name}": value[column.name] for column in keys}
        row = connection.execute(there, key).mappings().first()
        if row is not None and not _whole(row, rows.trial_of):
            connection.execute(delete(trials).where(same), key)
    for chunk in _chunks(values):
        statement = upsert(
            connection,
            trials,
            lambda new: or_(
                new.measured_at >= trials.c.measured_at,
                trials.c.measured_at > tomorrow(),
            ),
        )
        connection.execute(statement, list(chunk))


def parse_location(location: str | Path) -> Path | URL:
    """An absolute path for SQLite, a URL for PostgreSQL.

    Raises:
        StoreError: it names neither, or only in a working directory that is gone.
    """
    try:
        check_type(location)
    except ValueError as error:
        raise StoreError(str(error)) from None
    if location == "":  # as of a variable that is not set; Path would take it for the folder here
        raise StoreError("the database is '', but must be a path or a URL")
    if isinstance(location, Path) or "://" not in location:
        return _expanded(location)
    try:
        url = make_url(location)
    except (ArgumentError, ValueError):  # ValueError: the port is no number
        raise StoreError("the database's URL cannot be parsed") from None
    if url.get_backend_name() == "postgresql":
        if "%00" in location:  # where the driver would end the name, and connect to another
            raise StoreError(
                f"the database is {shown(postgresql.named(url), 300)}, but must have no NUL "
                "character (%00)"
            )
        return url
    named = url.render_as_string()
    if url.get_backend_name() != "sqlite":
        raise StoreError(f"{named} is neither a path nor a URL of SQLite or PostgreSQL")
    if not url.database or url.database == ":memory:" or url.query:
        raise StoreError(f"{named} names no file; write sqlite:///folder/file.db")
    return _expanded(url.database)


def _expanded(location: str | Path) -> Path:
    try:
        return Path(location).expanduser().absolute()
    except RuntimeError:
        raise StoreError(f"{location} begins with the home of a user that is not known") from None
    except OSError as error:
        raise StoreError(
            f"the database is {shown(str(location))}, but must be an absolute path or a URL where "
            f"there is no working directory ({error.strerror})"
        ) from None


def _whole(row: Any, parse: Callable[[Any], object]) -> bool:
    try:
        parse(row)
    except WireError:
        return False
    return True


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]
