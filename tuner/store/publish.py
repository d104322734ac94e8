"""Make a database to ship: one file that can be read where nothing may be written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from tuner.record import Record
from tuner.store.database import Store
from tuner.store.errors import StoreError, explain
from tuner.store.files import replacing
from tuner.store.sqlite import check_file, execute, log_beside, writing_engine


def publish(path: str | Path, records: Iterable[Record]) -> None:
    """Write `records`, and nothing else, to a new database in place of `path`.

    It has no write-ahead log, and equal records give equal bytes under one version of SQLite.

    Raises:
        StoreError: it cannot be written, or an old file is in use or none of SQLite's, or only the
            log of one is left; an old file is as it was.
    """
    path = Path(path)
    _drop_log(path)
    with replacing(path) as part:
        with Store.open(part, write_ahead_log=False) as store:
            store.add_records(sorted(records, key=lambda record: record.uid))
        execute(writing_engine(part, 1), "VACUUM")


def _drop_log(path: Path) -> None:
    """Fold the log of an old file into it: left beside a new one, SQLite would apply it to that."""
    if not path.exists():
        if log := log_beside(path):
            raise StoreError(f"{path} cannot be written: {log} would be taken for its log")
        return
    check_file(path)
    try:
        execute(writing_engine(path, 1), "PRAGMA journal_mode=DELETE")
    except SQLAlchemyError as error:
        raise explain(str(path), error) from None
