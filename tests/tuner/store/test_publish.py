from __future__ import annotations

import sqlite3
from contextlib import closing
from types import SimpleNamespace

import pytest

from tests.tuner.store import samples
from tuner.store import sqlite
from tuner.store.database import Store
from tuner.store.errors import StoreError
from tuner.store.publish import publish

RECORDS = [samples.record(number) for number in range(20)]


def test_a_published_file_is_one_file_without_a_log(tmp_path):
    path = tmp_path / "configs.db"
    publish(path, RECORDS)
    assert list(tmp_path.iterdir()) == [path]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("pragma journal_mode").fetchone() == ("delete",)
    assert {record.uid for record in Store.read_only(path).records()} == {r.uid for r in RECORDS}
    assert list(tmp_path.iterdir()) == [path]


def test_equal_records_give_equal_bytes(tmp_path):
    publish(tmp_path / "one.db", RECORDS)
    publish(tmp_path / "two.db", [*RECORDS[::-1], *RECORDS])
    assert (tmp_path / "one.db").read_bytes() == (tmp_path / "two.db").read_bytes()


def test_publishing_replaces_all_or_nothing(tmp_path):
    path = tmp_path / "configs.db"
    publish(path, RECORDS)
    publish(path, RECORDS[:1])
    assert Store.read_only(path).records() == RECORDS[:1]

    def fail():
        yield RECORDS[2]
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        publish(path, fail())
    assert Store.read_only(path).records() == RECORDS[:1]
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"configs\.db cannot be (created|written)"):
        publish(tmp_path / "file" / "configs.db", RECORDS)


def test_a_log_that_was_left_behind_is_not_applied_to_what_is_published(tmp_path):
    path, log = tmp_path / "configs.db", tmp_path / "configs.db-wal"
    log.write_bytes(b"pages")
    with pytest.raises(StoreError, match=f"^{path} cannot be written: {log} would be taken"):
        publish(path, [samples.record(1)])
    assert log.read_bytes() == b"pages"
    assert not path.exists()


def test_a_file_in_use_is_not_replaced_under_its_log(tmp_path):
    # SQLite would apply the old file's log to the new one.
    path = tmp_path / "configs.db"
    Store.open(path).add_record(RECORDS[0])
    with closing(sqlite3.connect(path)) as user:
        user.execute("delete from trials")
        user.commit()
        with pytest.raises(StoreError, match=f"{path} is locked by another process"):
            publish(path, RECORDS[1:])
    assert Store.read_only(path).records() == RECORDS[:1]  # leaves an empty log
    publish(path, RECORDS[1:])
    assert list(tmp_path.iterdir()) == [path]
    assert len(Store.read_only(path).records()) == 19


def test_on_a_full_disk_a_file_that_nobody_has_open_is_read_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "mine.db"
    full = SimpleNamespace(free=4096)
    with Store.open(path) as store:
        store.add_records(RECORDS)
    monkeypatch.setattr(sqlite.shutil, "disk_usage", lambda _: full)
    with closing(sqlite3.connect(path)) as other:
        other.execute("select * from records").fetchall()
        assert sqlite._reading_mode(path) == "mode=ro"  # by the other's index
    assert sqlite._reading_mode(path) == "mode=ro&immutable=1"
    assert len(Store.read_only(path).records()) == 20


def test_it_is_opened_immutable_where_nothing_can_be_written(tmp_path, monkeypatch):
    path = tmp_path / "configs.db"
    publish(path, RECORDS)
    monkeypatch.setattr(sqlite.os, "access", lambda *_: False)
    assert sqlite._reading_mode(path) == "mode=ro&immutable=1"
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("begin exclusive")  # which an immutable reader does not even ask about
        assert len(Store.read_only(path).records()) == 20
