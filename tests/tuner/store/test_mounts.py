from __future__ import annotations

import sqlite3
from contextlib import closing
from threading import Timer

import pytest

from tests.tuner.store import samples
from tuner.store import database
from tuner.store.database import Store
from tuner.store.errors import StoreError
from tuner.store.mounts import network_file_system

MOUNTS = """\
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:40 / /home rw shared:2 - nfs4 server:/home rw,vers=4.2
31 30 259:2 / /home/me/local\\040disk rw - xfs /dev/nvme1n1 rw
32 22 0:41 / /mnt/share rw - cifs //host/share rw
33 22 0:42 / /mnt/ssh rw - fuse.sshfs me@host: rw
34 22 0:43 / /over rw - nfs old:/over rw
35 22 0:44 / /over rw - tmpfs tmpfs rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib", None),
        ("/home/me/.local/share", "nfs4"),
        ("/home", "nfs4"),
        ("/homestead", None),
        ("/home/me/local disk/x", None),
        ("/mnt/share/a/b", "cifs"),
        ("/mnt/ssh", "fuse.sshfs"),
        ("/over/x", None),
    ],
)
def test_the_innermost_latest_mount_counts(tmp_path, path, kind):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert network_file_system(database.Path(path), mounts) == kind


def test_where_mounts_are_unknown_nothing_is_said(tmp_path):
    assert network_file_system(tmp_path, tmp_path / "absent") is None
    assert network_file_system(tmp_path) is None


def test_a_database_there_is_warned_of_and_has_no_write_ahead_log(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(database, "network_file_system", lambda folder: "nfs4")
    path = tmp_path / "configs.db"
    with Store.open(path) as store:
        assert store.add_record(samples.record())
    (said,) = caplog.messages
    assert said.startswith(f"{path} lies on a network file system (nfs4), where SQLite cannot")
    assert journal(path) == "delete"
    caplog.clear()
    assert Store.read_only(path).records() == [samples.record()]
    assert caplog.messages == []


def test_a_database_that_comes_there_loses_its_write_ahead_log(tmp_path, monkeypatch):
    path = tmp_path / "configs.db"
    with Store.open(path) as store:
        store.add_record(samples.record(1))
    assert journal(path) == "wal"
    monkeypatch.setattr(database, "network_file_system", lambda folder: "nfs4")
    with Store.open(path) as store:
        assert journal(path) == "delete"
        store.add_record(samples.record(2))
    assert {record.uid for record in Store.read_only(path).records()} == {
        samples.record(1).uid, samples.record(2).uid
    }  # fmt: skip
    assert list(tmp_path.glob("configs.db-*")) == []


def test_the_switch_waits_for_those_that_use_the_log(tmp_path, monkeypatch):
    path = tmp_path / "configs.db"
    Store.open(path).close()
    monkeypatch.setattr(database, "network_file_system", lambda folder: "nfs4")
    with closing(sqlite3.connect(path, check_same_thread=False)) as other:
        other.execute("begin")
        other.execute("select * from records").fetchall()
        with pytest.raises(StoreError, match="is locked"):
            Store.open(path, timeout_s=0.1)
        assert journal(path) == "wal"
        timer = Timer(0.5, other.close)
        timer.start()
        Store.open(path, timeout_s=30).close()
        timer.join()
    assert journal(path) == "delete"


def journal(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("pragma journal_mode").fetchone()[0]
