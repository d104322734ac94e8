"""SQLite files that somebody has made to keep whoever reads them busy: refused, or cut short."""

from __future__ import annotations

import re
import sqlite3
import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from kernels.attention.problem import Problem
from tests.patience import promptly
from tests.tuner.store import page_trees, samples
from tuner.cli.app import app
from tuner.store import sqlite
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


def a_trigger_on_records(connection: sqlite3.Connection) -> None:
    """What is added is gone."""
    connection.execute("create trigger t after insert on records begin delete from records; end")


def a_trigger_on_trials(connection: sqlite3.Connection) -> None:
    connection.execute(
        f"create trigger t after insert on Trials begin {ENDLESS} select x from t where x < 0; end"
    )


def a_trigger_that_passes_for_none(connection: sqlite3.Connection) -> None:
    a_trigger_on_records(connection)
    connection.execute("pragma writable_schema = 1")
    connection.execute(
        "update sqlite_master set type = cast('trigger' as blob), tbl_name = 'records' || char(0)"
        " || 'x' where name = 't'"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (a_trigger_on_records, "records has a trigger, which may undo what is written"),
        (a_trigger_on_trials, "trials has a trigger"),
        (a_trigger_that_passes_for_none, "records has a trigger"),
        (a_view, "a table is missing .records."),
        (a_virtual_table, "records is no plain table"),
        (a_generated_column, "records is no plain table"),
        (a_revision_that_is_computed, "tuner_schema is no plain table"),
        (a_missing_table, "a table is missing .trials."),
    ],
)
def test_tables_that_are_computed_or_undone_are_refused(
    tmp_path: Path, change: Callable[[sqlite3.Connection], None], said: str
) -> None:
    path = tmp_path / "hostile.db"
    with Store.open(path, write_ahead_log=False) as store:
        store.add_record(samples.record())
    with closing(sqlite3.connect(path)) as connection:
        change(connection)
        connection.commit()
    before = path.read_bytes()
    openings = (Store.open, Store.read_only, lambda path: Layers.load(path, shipped=path))
    with promptly():
        for opening in openings:
            with pytest.raises(StoreError, match=f"^{path} is damaged: {said}"):
                opening(path)
        assert Layers.load(path, strict=False, shipped=path).standing() == []
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


def defaulted(path: Path) -> None:
    """A default that each row has, though none holds it."""
    Store.open(path, write_ahead_log=False).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("alter table records drop column evidence")
        row = ", ".join("1" for _ in NAMES[1:])
        connection.execute(
            f"with recursive t(x) as (select 1 union all select x + 1 from t where x < {COPIES}) "
            f"insert into records select x, {row[3:]} from t"
        )
        long = "x" * 4 * page_trees.MIB
        connection.execute(f"alter table records add column evidence text default '{long}'")


COPIES = 200
AMPLIFIED: dict[str, Callable[[Path], None]] = {
    "text": lambda path: page_trees.leading_to_one_row(path, "records"),
    "bytes": lambda path: page_trees.leading_to_one_row(path, "records", b"x" * 4 * page_trees.MIB),
    "nothing": lambda path: page_trees.leading_to_one_row(path, "records", None, levels=3),
    "default": defaulted,
}


@pytest.mark.parametrize("how", AMPLIFIED)
def test_no_more_is_read_than_a_file_can_hold(how: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    AMPLIFIED[how](path)
    assert path.stat().st_size < 5 * page_trees.MIB
    said = f"^{path} is damaged(: reading it never ends)?; restore a backup of it$"
    start = time.process_time()
    tracemalloc.start()
    try:
        for opening in (Store.read_only, Store.open):
            with opening(path) as store, pytest.raises(StoreError, match=said):
                store.records()
        assert Layers.load(path, strict=False, shipped=path).standing() == []
        assert tracemalloc.get_traced_memory()[1] < 60 * page_trees.MIB
    finally:
        tracemalloc.stop()
    shown = CliRunner().invoke(app, ["show", "--db", str(path)])
    assert shown.exit_code == 2
    assert re.match(said, shown.stderr.removeprefix("tuner: "))
    assert time.process_time() - start < 10


def test_steps_that_are_long_are_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are not returned: to see that each is of another problem takes all of it."""
    path = tmp_path / "mine.db"
    page_trees.leading_to_one_row(path, "trials", levels=2)
    monkeypatch.setattr(sqlite, "_LEAST_CPU_S", 0.1)
    with (
        promptly(60),
        Store.read_only(path) as store,
        pytest.raises(StoreError, match=f"^{path} is damaged: reading it never ends"),
    ):
        store.trials(Problem.on_grid(64, 512, False))


def test_a_schema_that_takes_for_ever_to_read_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.db"
    page_trees.leading_to_one_row_of_the_schema(path)
    monkeypatch.setattr(sqlite, "_LEAST_CPU_S", 0.1)
    with promptly(60):
        for opening in (Store.read_only, Store.open):
            with pytest.raises(StoreError, match=f"^{path} is damaged"):
                opening(path)


def test_too_little_memory_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.db"

    def fail(*_: object) -> None:
        raise MemoryError

    said = f"^{path} is damaged, or too large: it takes more memory than there is$"
    with Store.open(path) as store:
        store.add_record(samples.record())
        for place in ("tuner.store.rows.record_of", "tuner.store.sqlite._Scales.__call__"):
            with monkeypatch.context() as patch:
                patch.setattr(place, fail)
                with pytest.raises(StoreError, match=said):
                    store.records()
        with pytest.raises(StoreError, match=said), store._writing():
            fail()


def test_what_a_long_log_holds_is_read_by_way_of_a_link(tmp_path: Path) -> None:
    """Whose log lies beside the file, not beside the link."""
    (tmp_path / "folder").mkdir()
    path, link = tmp_path / "folder" / "mine.db", tmp_path / "link.db"
    link.symlink_to(path)
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as other:
        other.execute("pragma wal_autocheckpoint = 0")
        other.execute("begin")  # whoever closes last folds the log into the file
        other.execute("select * from records").fetchall()
        before = sqlite.change_token(link)
        with Store.open(path) as store:
            store.add_records(samples.bare_record(number) for number in range(3_000))
        assert path.stat().st_size < page_trees.MIB < path.with_name("mine.db-wal").stat().st_size
        assert sqlite.change_token(link) != before
        for place in (path, link):
            with Store.read_only(place) as store:
                assert len(store.records()) == 3_000


def test_what_never_ends_is_interrupted_and_what_is_long_is_not(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    with Store.open(path) as store:
        store.add_records(samples.bare_record(number) for number in range(4_000))
    with Store.read_only(path) as store:
        with (
            pytest.raises(StoreError, match=f"^{path} is damaged: reading it never ends"),
            store._reading() as connection,
        ):
            connection.execute(text(f"{ENDLESS} select x from t where x < 0")).all()
        assert len(store.records()) == 4_000
