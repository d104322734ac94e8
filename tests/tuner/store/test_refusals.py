"""Files that cannot serve: one sentence, and the file as it was."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import optuna
import pytest
from sqlalchemy import event

from tests.patience import ANSWER_S, promptly
from tests.tuner.store import samples
from tuner.store.database import Store
from tuner.store.errors import StoreError
from tuner.store.layers import Layers

ROOT = Path(__file__).parents[3]
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX permissions and limits")


@pytest.fixture
def path(tmp_path):
    with Store.open(tmp_path / "data" / "configs.db") as store:
        store.add_records(samples.bare_record(number) for number in range(100))
    return tmp_path / "data" / "configs.db"


def contents(folder):
    return {entry.name: entry.is_file() and entry.read_bytes() for entry in folder.iterdir()}


def assert_refused_untouched(path, said):
    """By every way to open it, and the runtime goes on without it."""
    before = contents(path.parent)
    for opening in (Store.open, Store.read_only, lambda path: Layers.load(path, shipped=path)):
        with pytest.raises(StoreError) as caught:
            opening(path)
        assert str(caught.value) == f"{path} {said}"
    assert Layers.load(path, strict=False, shipped=path).standing() == []
    assert contents(path.parent) == before


@pytest.mark.parametrize(
    "content", [b"not a database", b"SQLite", b"\0" * 8192, b'{"records": []}']
)
def test_a_file_of_another_kind(tmp_path, content):
    path = tmp_path / "configs.db"
    path.write_bytes(content)
    assert_refused_untouched(path, "is not an SQLite database")


def test_a_directory(tmp_path):
    (tmp_path / "configs.db").mkdir()
    assert_refused_untouched(tmp_path / "configs.db", "is a directory, but must be a file")


@pytest.mark.parametrize("kept", [20, 100, 4096, 8192, 20000])
def test_a_truncated_file(path, kept):
    with path.open("rb+") as file:
        file.truncate(kept)
    with pytest.raises(StoreError, match=rf"^{path} (is damaged|is not an SQLite database)"):
        Store.open(path).records()
    with pytest.raises(StoreError, match=rf"^{path} (is damaged|is not an SQLite database)"):
        Store.read_only(path).records()
    assert Layers.load(path, strict=False, shipped=path).standing() == []
    assert path.stat().st_size == kept


def test_a_damaged_page(path):
    with path.open("rb+") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    before = path.read_bytes()
    with pytest.raises(StoreError, match=rf"^{path} is damaged"):
        Store.open(path).records()
    assert Layers.load(path, strict=False, shipped=path).standing() == []
    assert path.read_bytes() == before


def test_a_damaged_schema_that_sqlite_quotes_as_it_is(tmp_path):
    path = tmp_path / "mine.db"
    Store.open(path, write_ahead_log=False).close()
    content = path.read_bytes()
    assert b"CREATE TABLE records (" in content
    path.write_bytes(content.replace(b"CREATE TABLE records (", b"CREATE TABLE records \x8e"))
    assert_refused_untouched(path, "is damaged; restore a backup of it")


def test_the_storage_of_an_optuna_study(tmp_path):
    path = tmp_path / "study.db"
    optuna.create_study(storage=f"sqlite:///{path}")
    assert_refused_untouched(
        path,
        "holds the tables of another program (alembic_version, studies, study_directions, …); "
        "give the tuner a database of its own",
    )


def test_another_programs_file_in_wal_mode(tmp_path):
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma journal_mode=wal")
        connection.execute("create table records (uid)")
    before = path.read_bytes()
    for opening in (Store.open, Store.read_only):
        with pytest.raises(StoreError, match=r"holds the tables of another program \(records"):
            opening(path)
    assert path.read_bytes() == before


def test_a_missing_file_is_created_by_none_that_only_reads(tmp_path):
    path = tmp_path / "folder" / "configs.db"
    with pytest.raises(StoreError, match=f"{path} does not exist"):
        Store.read_only(path)
    with pytest.raises(StoreError, match=f"{path} does not exist"):
        Store.open(path, create=False)
    assert Layers.load(path, strict=False, shipped=path).standing() == []
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_a_new_database_to_a_writer_only(tmp_path):
    path = tmp_path / "configs.db"
    path.touch()
    with pytest.raises(StoreError, match="holds no tables yet"):
        Store.read_only(path)
    assert path.stat().st_size == 0
    assert Store.open(path).add_record(samples.record())


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"configs\.db cannot be created: Not a directory|exists"):
        Store.open(tmp_path / "file" / "configs.db")


@contextmanager
def locked(path, statement) -> Iterator[None]:
    """Another process that holds a lock on `path`."""
    script = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        f"c.executescript({statement!r}); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        yield
    finally:
        holder.communicate(timeout=ANSWER_S)


EXCLUSIVE_WAL = "pragma locking_mode=exclusive; begin exclusive; create table x(y); commit"


@pytest.mark.parametrize("write_ahead_log", [True, False], ids=["wal", "rollback"])
def test_an_exclusive_lock_does_not_hold_up_the_runtime(tmp_path, write_ahead_log, caplog):
    path = tmp_path / "configs.db"
    with Store.open(path, write_ahead_log=write_ahead_log) as store:
        store.add_record(samples.record())
    reader = Store.read_only(path)
    with locked(path, EXCLUSIVE_WAL if write_ahead_log else "begin exclusive"):
        with promptly():
            assert Layers.load(path, strict=False, shipped=path).standing() == []
            said = f"^{path} is locked by another process; try again"
            with pytest.raises(StoreError, match=said):
                reader.records()
        assert f"{path} is locked by another process" in caplog.messages[0]
    assert Layers.load(path, shipped=path).standing() == [samples.record()]


def test_a_writer_waits_and_then_gives_up_in_one_sentence(path):
    with Store.open(path, timeout_s=0.5) as store:
        with locked(path, "begin immediate"):
            said = f"^{path} is locked by another process; try again"
            start = time.monotonic()
            with promptly(), pytest.raises(StoreError, match=said):
                store.add_record(samples.record())
            assert time.monotonic() - start > 0.4
            assert len(Store.read_only(path).records()) == 100  # readers go on meanwhile
        assert store.add_record(samples.record())


def fill_until_refused(store):
    for acknowledged in range(10_000):
        try:
            store.add_record(samples.bare_record(1000 + acknowledged))
        except StoreError as error:
            return acknowledged, str(error)
    raise AssertionError("nothing was refused")


def test_a_full_database(path):
    with Store.open(path) as store:
        event.listen(store._writer, "connect", lambda c, _: c.execute("pragma max_page_count=60"))
        acknowledged, said = fill_until_refused(store)
    assert said == f"{path} cannot be written: the disk is full"
    assert acknowledged > 0
    with Store.open(path) as store:
        assert len(store.records()) == 100 + acknowledged
        assert store.add_record(samples.record())


# A limit on the size of files acts like a full disk, on the journal as on the database.
FULL = """
import resource, sys
from tests.tuner.store import samples
from tuner.store.database import Store
from tuner.store.errors import StoreError
path, limit = sys.argv[1], int(sys.argv[2])
with Store.open(path) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        for number in range(1000, 100000):
            store.add_record(samples.bare_record(number))
            print(number, flush=True)
    except StoreError as error:
        print(error, file=sys.stderr)
"""


@posix
@pytest.mark.parametrize("limit", [100_000, 200_000])
@pytest.mark.parametrize("write_ahead_log", [True, False], ids=["wal", "rollback"])
def test_a_full_disk(tmp_path, limit, write_ahead_log):
    path = tmp_path / "configs.db"
    Store.open(path, write_ahead_log=write_ahead_log).close()
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(path), str(limit)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    acknowledged = [int(number) for number in ended.stdout.split()]
    assert len(acknowledged) > 10
    assert ended.stderr.startswith(f"{path} cannot be ")
    assert "disk" in ended.stderr
    assert ended.stderr.count("\n") == 1
    with Store.open(path) as store:
        found = {record.candidate.config["number"] for record in store.records()}
        assert found == set(acknowledged)
        assert store.add_record(samples.record())
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]


# Root may write through any permission, so the attempt is made as somebody else.
AS_NOBODY = """
import os, sys
import alembic.command, platformdirs, sqlalchemy.dialects.sqlite
from tests.tuner.store import samples
from tuner.store.database import Store
from tuner.store.errors import StoreError
from tuner.store.layers import Layers
from kernels.attention import registry  # all that is imported on the way: nobody may not
versions = [registry.get(name).version for name in registry.names()]
path = sys.argv[1]
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    print(len(Store.read_only(path).records()), "records read")
except StoreError as error:
    print(error)
print(len(Layers.load(path, strict=False, shipped=path).standing()), "standing")
try:
    Store.open(path).add_record(samples.record())
    print("written")
except StoreError as error:
    print(error)
"""


@pytest.fixture
def shared(path):
    """A copy where others may look, unlike in the test's own folder."""
    folder = Path(tempfile.mkdtemp(prefix="store-"))
    shutil.copy(path, folder / "configs.db")
    folder.chmod(0o755)
    yield folder / "configs.db"
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_nobody(path):
    ended = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ended.stdout.splitlines()


@posix
@pytest.mark.parametrize("write_ahead_log", [True, False], ids=["wal", "rollback"])
def test_a_read_only_folder_serves_readers(shared, write_ahead_log):
    if not write_ahead_log:
        with closing(sqlite3.connect(shared)) as connection:
            connection.execute("pragma journal_mode=delete")
    shared.chmod(0o444)
    shared.parent.chmod(0o555)
    before = contents(shared.parent)
    assert as_nobody(shared) == [
        "100 records read",
        "1 standing",
        f"{shared} may not be written: its folder is read-only",
    ]
    assert contents(shared.parent) == before


@posix
def test_a_read_only_folder_with_a_living_writer_serves_readers_the_latest(shared):
    shared.parent.chmod(0o555)
    if os.geteuid() != 0:
        pytest.skip("only root can write there to be read by another")
    with closing(sqlite3.connect(shared)) as writer:
        writer.execute("delete from records where rowid in (select rowid from records limit 1)")
        writer.commit()
        assert as_nobody(shared)[0] == "99 records read"


@posix
def test_a_name_so_long_that_its_log_can_have_none(shared):
    with closing(sqlite3.connect(shared)) as connection:
        connection.execute("pragma journal_mode=delete")
    path = shared.rename(shared.with_name("n" * 253))
    path.parent.chmod(0o555)
    assert as_nobody(path)[:2] == ["100 records read", "1 standing"]


@posix
def test_a_read_only_file_in_a_folder_of_ones_own(shared):
    shared.chmod(0o444)
    shared.parent.chmod(0o777)
    before = shared.read_bytes()
    assert as_nobody(shared) == [
        "100 records read",
        "1 standing",
        f"{shared} may not be written: it is read-only",
    ]
    assert shared.read_bytes() == before


@posix
def test_a_file_that_may_not_be_read(shared):
    shared.chmod(0o000)
    said = f"{shared} may not be read: Permission denied"
    assert as_nobody(shared) == [said, "0 standing", said]


@posix
def test_a_folder_that_may_not_be_entered(shared):
    shared.parent.chmod(0o700)
    said = f"{shared} may not be read: Permission denied"
    if os.geteuid() != 0:
        pytest.skip("it is one's own")
    assert as_nobody(shared) == [said, "0 standing", said]
