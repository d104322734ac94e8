"""SQLite files whose pages lead to the same row again and again, as no writer makes them."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

from tests.tuner.store import samples
from tuner.store.database import Store

KIDS = 400
MIB = 1 << 20


def leading_to_one_row(
    path: Path, table: str, text: str | bytes | None = "x" * 4 * MIB, levels: int = 1
) -> None:
    """Make `path` a database whose `table` has one row of `text`, before all else in it (None: a
    row of nothing), and claims to have it KIDS ** levels times."""
    with Store.open(path, write_ahead_log=False) as store:
        store.add_record(samples.record())
        store.add_trial(samples.trial())
    with closing(sqlite3.connect(path)) as connection, connection:
        found = connection.execute(f"select * from {table}")
        row = dict(zip([column for column, *_ in found.description], found.fetchone()))
        row = {"evidence": text, **{k: text and v for k, v in row.items() if k != "evidence"}}
        connection.execute(f"drop table {table}")
        connection.execute(f"create table {table} ({', '.join(row)})")
        places = ", ".join("?" * len(row))
        connection.execute(f"insert into {table} values ({places})", list(row.values()))
        query = f"select rootpage from sqlite_master where name = '{table}'"
        (root,) = connection.execute(query).fetchone()
        (size,) = connection.execute("pragma page_size").fetchone()
    pages = bytearray(path.read_bytes())
    at = slice((root - 1) * size, root * size)
    pages += pages[at]  # the leaf, of which the root becomes a parent
    for level in range(levels):
        page = _parent(len(pages) // size, size)
        if level < levels - 1:
            pages += page
        else:
            pages[at] = page
    pages[28:32] = struct.pack(">I", len(pages) // size)
    path.write_bytes(pages)


def leading_to_one_row_of_the_schema(path: Path) -> None:
    """Make `path` a database whose schema has one row, which is long and says nothing new, over and
    over again."""
    with Store.open(path, write_ahead_log=False) as store:
        store.add_record(samples.record())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("pragma writable_schema = 1")
        for number in range(30):  # for which the first page becomes a parent
            connection.execute(f"create table t{number} (a default '{'x' * 200}')")
        connection.execute(
            "insert into sqlite_master select ?, name, tbl_name, rootpage, null from sqlite_master"
            " where name = 'sqlite_autoindex_records_1'",
            ["x" * 4 * MIB],
        )
        (size,) = connection.execute("pragma page_size").fetchone()
    pages = bytearray(path.read_bytes())
    assert pages[100] == 5
    last = slice(108, 112)
    (leaf,) = struct.unpack(">I", pages[last])
    pages += _parent(leaf, size)
    pages += _parent(len(pages) // size, size)
    pages[last] = pages[28:32] = struct.pack(">I", len(pages) // size)
    path.write_bytes(pages)


def _parent(child: int, size: int) -> bytes:
    """An interior page of a table, of KIDS cells and all of them of `child`."""
    cell = struct.pack(">IB", child, 1)
    first = size - KIDS * len(cell)
    header = struct.pack(">BHHHBI", 5, 0, KIDS, first, 0, child)
    pointers = b"".join(struct.pack(">H", first + n * len(cell)) for n in range(KIDS))
    return (header + pointers).ljust(first, b"\0") + cell * KIDS
