"""Make a database to ship: one file that can be read where nothing may be written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from tuner.record import Record
from tuner.store.database import Store
from tuner.store.files import replacing


def publish(path: str | Path, records: Iterable[Record]) -> None:
    """Write `records`, and nothing else, to a new database in place of `path`.

    It has no write-ahead log, and equal records give equal bytes under one version of SQLite.

    Raises:
        StoreError: it cannot be written; an old file is as it was.
    """
    with replacing(Path(path)) as part:
        with Store.open(part, write_ahead_log=False) as store:
            store.add_records(sorted(records, key=lambda record: record.uid))
        with closing(sqlite3.connect(part)) as connection:
            connection.execute("VACUUM")
