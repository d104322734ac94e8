"""SQLite files that somebody has made to keep whoever reads them busy: refused, or cut short."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.tuner.store import samples
from tuner.store.database import Store
from tuner.store.errors import StoreError
from tuner.store.layers import Layers
from tuner.store.schema import records

ENDLESS = "with recursive t(x) as (select 1 union all select x + 1 from t)"
NAMES = [column.name for column in records.columns]


def view(connection: sqlite3.Connection, name: str) -> None:
    listed = ", ".join(f"x as {column}" for column in NAMES)
    connection.execute(f"create view {name} as {ENDLESS} select {listed} from t where x < 0")


def a_view(connection: sqlite3.Connection) -> None:
    connection.execute("drop table records")
    view(connection, "records")


def a_virtual_table(connection: sqlite3.Connection) -> None:
    """It reads what it is told to, such as a view."""
    connection.execute("drop table records")
    view(connection, "content")
    listed = ", ".join(NAMES)
    connection.execute(f"create virtual table records using fts5({listed}, content='content')")


def a_generated_column(connection: sqlite3.Connection) -> None:
    """It takes an hour for each row, in one step."""
    connection.execute("alter table records drop column evidence")
    connection.execute(
        "alter table records add column evidence text as"
        f" (hex(zeroblob(100000)) like '{'%0' * 4000}1')"
    )


def a_missing_table(connection: sqlite3.Connection) -> None:
    connection.execute("drop table trials")


def a_revision_that_is_computed(connection: sqlite3.Connection) -> None:
    connection.execute("drop table tuner_schema")
    connection.execute(f"create view content as {ENDLESS} select x as version_num from t where x<0")
    connection.execute(
        "create virtual table tuner_schema using fts5(version_num, content='content')"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (a_view, "a table is missing .records."),
        (a_virtual_table, "records is no plain table"),
        (a_generated_column, "records is no plain table"),
        (a_revision_that_is_computed, "tuner_schema is no plain table"),
        (a_missing_table, "a table is missing .trials."),
    ],
)
def test_tables_that_are_computed_are_refused(
    tmp_path: Path, change: Callable[[sqlite3.Connection], None], said: str
) -> None:
    path = tmp_path / "hostile.db"
    with Store.open(path, write_ahead_log=False) as store:
        store.add_record(samples.record())
    with closing(sqlite3.connect(path)) as connection:
        change(connection)
        connection.commit()
    before = path.read_bytes()
    start = time.monotonic()
    for opening in (Store.open, Store.read_only, lambda path: Layers.load(path, shipped=path)):
        with pytest.raises(StoreError, match=f"^{path} is damaged: {said}"):
            opening(path)
    assert Layers.load(path, strict=False, shipped=path).standing() == []
    assert time.monotonic() - start < 5
    assert path.read_bytes() == before


def test_a_newer_version_may_have_other_tables(tmp_path: Path) -> None:
    path = tmp_path / "newer.db"
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("alter table trials rename to attempts")
        connection.execute("update tuner_schema set version_num = '9999'")
        connection.commit()
    with pytest.raises(StoreError, match="was written by a newer version"):
        Store.read_only(path)


def test_what_never_ends_is_interrupted_and_what_is_long_is_not(tmp_path: Path) -> None:
    """As a tree of pages that leads to the same page again and again."""
    path = tmp_path / "mine.db"
    with Store.open(path) as store:
        store.add_records(samples.bare_record(number) for number in range(20_000))
    with Store.read_only(path) as store:
        with (
            pytest.raises(StoreError, match=f"^{path} is damaged: reading it never ends"),
            store._reading() as connection,
        ):
            connection.execute(text(f"{ENDLESS} select x from t where x < 0")).all()
        assert len(store.records()) == 20_000
