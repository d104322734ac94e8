from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from tests.tuner.store import samples
from tuner.store import database, migrate, schema
from tuner.store.database import Store
from tuner.store.errors import StoreError

NEXT = '''
"""A later schema: trials are called attempts, and records have one more column."""
import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    with op.batch_alter_table("records") as records:
        records.add_column(sa.Column("liked", sa.Boolean))
        records.alter_column("driver", nullable=True)
'''


@pytest.fixture
def path(tmp_path):
    with Store.open(tmp_path / "data" / "configs.db") as store:
        store.add_records([samples.record(1), samples.record(2)])
        store.add_trial(samples.trial())
    return tmp_path / "data" / "configs.db"


@pytest.fixture
def become_newer(tmp_path, monkeypatch):
    """Makes this version one whose schema is a revision further on."""

    def become(migration=NEXT):
        folder = tmp_path / "migrations"
        shutil.copytree(migrate.MIGRATIONS, folder)
        (folder / "versions" / "v0002_next.py").write_text(migration)
        monkeypatch.setattr(migrate, "MIGRATIONS", folder)
        monkeypatch.setattr(migrate, "REVISIONS", ("0001", "0002"))
        monkeypatch.setattr(migrate, "HEAD", "0002")
        monkeypatch.setattr(database, "HEAD", "0002")

    return become


def query(path, statement):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def dump(path):
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def test_the_migrations_make_the_tables_that_the_code_declares(path):
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        options = {"version_table": schema.version.name, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()
    for table in schema.metadata.tables.values():
        columns = query(path, f"pragma table_info({table.name})")
        assert [column[1] for column in sorted(columns, key=lambda c: c[5]) if column[5]] == [
            column.name for column in table.primary_key.columns
        ]


def test_the_revisions_are_those_of_the_migrations():
    config = AlembicConfig()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    script = ScriptDirectory.from_config(config)
    assert [found.revision for found in script.walk_revisions()][::-1] == list(schema.REVISIONS)


def test_an_old_file_is_migrated_after_a_backup(path, become_newer, caplog):
    before = dump(path)
    path.chmod(0o600)
    become_newer()
    with caplog.at_level(logging.WARNING), Store.open(path) as store:
        assert store.records() == Store.open(path).records()
        assert len(store.records()) == 2
        assert store.trials() == [samples.trial()]
        assert store.add_record(samples.record(3))
    assert query(path, "select version_num from tuner_schema") == [("0002",)]
    assert query(path, "select distinct liked from records") == [(None,)]
    (copy,) = path.parent.glob("configs.db.bak-0001-*")
    assert dump(copy) == before
    assert copy.stat().st_mode & 0o777 == 0o600
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, copy.name}
    assert caplog.messages == [f"{path}: schema 0001 is migrated to 0002"]


def test_many_that_find_an_old_file_migrate_it_once(path, become_newer):
    become_newer()
    barrier = threading.Barrier(4)

    def use(number):
        barrier.wait()
        with Store.open(path) as store:
            return store.add_record(samples.record(number))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(use, range(10, 14))) == [True] * 4
    assert len(list(path.parent.glob("configs.db.bak-*"))) == 1
    assert len(Store.read_only(path).records()) == 6


def test_threads_migrate_different_files_at_once(path, become_newer, tmp_path):
    # Alembic keeps the migration in progress in global variables.
    paths = [tmp_path / f"{number}.db" for number in range(4)]
    for copy in paths:
        shutil.copy(path, copy)
    become_newer()
    with ThreadPoolExecutor(4) as pool:
        for store in pool.map(Store.open, paths):
            assert len(store.records()) == 2


def test_a_migration_that_fails_changes_nothing(path, become_newer):
    before = dump(path)
    become_newer(NEXT + "    raise RuntimeError('half way')\n")
    with pytest.raises(RuntimeError, match="half way"):
        Store.open(path)
    assert dump(path) == before


def test_without_a_backup_nothing_is_migrated(path, become_newer, monkeypatch):
    before = dump(path)
    become_newer()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("no room")))
    with pytest.raises(StoreError, match=r"configs\.db cannot be backed up to .*: no room"):
        Store.open(path)
    monkeypatch.undo()
    assert dump(path) == before
    assert list(path.parent.iterdir()) == [path]


def test_an_old_file_is_not_migrated_by_a_reader(path, become_newer):
    become_newer()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"schema of an older version \(0001, now 0002\)"):
        Store.read_only(path)
    assert path.read_bytes() == before


def test_a_file_that_does_not_say_its_schema_is_damaged(path):
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM tuner_schema")
    for opening in (Store.open, Store.read_only):
        with pytest.raises(StoreError, match="is damaged: it does not say which schema it has"):
            opening(path)


def test_a_newer_file_is_refused_untouched(path, become_newer, monkeypatch):
    become_newer()
    Store.open(path).close()
    monkeypatch.undo()
    before = path.read_bytes()
    for opening in (Store.open, Store.read_only):
        with pytest.raises(StoreError) as caught:
            opening(path)
        assert str(caught.value) == (
            f"{path} was written by a newer version (its schema is 0002, this version knows up to "
            "0001); upgrade attention-tuner"
        )
    assert path.read_bytes() == before
