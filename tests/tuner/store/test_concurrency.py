"""Many processes on one database, and processes that die."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.patience import ANSWER_S
from tests.tuner.store import samples
from tuner.store.database import Store
from tuner.store.errors import StoreError
from tuner.store.sqlite import use_write_ahead_log, writing_engine

ROOT = Path(__file__).parents[3]


def start_writer(path, first, count, gate=""):
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.tuner.store.writer"),
            *map(str, (path, first, count, gate)),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def eight_at_once(code, folder, word):
    """What eight processes print that run `code` on `folder`, each with a number of its own, once
    all are ready and were told a word."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder), str(number)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    said = f"{word()}\n"
    for process in processes:
        process.stdin.write(said)
        process.stdin.flush()
    printed = []
    for process in processes:
        out, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
        printed.append(out)
    return printed


def numbers(store):
    return {record.candidate.config["number"] for record in store.records()}


def integrity(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("pragma integrity_check").fetchall()


SAME_ROWS = """
import sys
from tests.tuner.store import samples
from tuner.store.database import Store
path, writer = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
with Store.open(path) as store:
    for turn in range(40):
        moment = 8 * (7 * turn % 40) + writer  # each but once, and in no order
        at = f"2024-11-28T{moment // 60:02}:{moment % 60:02}:00+00:00"
        for number in range(3):
            store.add_trial(samples.trial(number, measured_at=at, compile_s=float(moment)))
            if store.add_record(samples.bare_record(3 * turn + number)):
                print(3 * turn + number, flush=True)
"""


def test_8_writers_of_the_same_rows_leave_the_latest_and_add_each_record_once(tmp_path):
    path = tmp_path / "configs.db"
    Store.open(path).close()
    printed = eight_at_once(SAME_ROWS, path, lambda: "go")
    assert sorted(int(line) for out in printed for line in out.split()) == list(range(120))
    with Store.open(path, create=False) as store:
        assert numbers(store) == set(range(120))
        latest = 319
        at = f"2024-11-28T{latest // 60:02}:{latest % 60:02}:00+00:00"
        expected = {number: (at, float(latest)) for number in range(3)}
        found = store.trials()
        assert {
            t.candidate.config["number"]: (t.measured_at, t.compile_s) for t in found
        } == expected
        assert len(found) == 3
    assert integrity(path) == [("ok",)]


CREATE = """
import sys, time
from alembic import command
from tests.tuner.store import samples
from tuner.store.database import Store
folder, number = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
start = float(sys.stdin.readline())
for attempt in range(5):
    while time.time() < start + 0.3 * attempt:
        pass
    with Store.open(f"{folder}/{attempt}/configs.db") as store:
        store.add_record(samples.bare_record(number))
"""


def test_8_processes_create_one_database_at_once(tmp_path):
    eight_at_once(CREATE, tmp_path, lambda: time.time() + 0.2)
    for attempt in range(5):
        path = tmp_path / str(attempt) / "configs.db"
        with Store.open(path, create=False) as store:
            assert numbers(store) == set(range(8))
        with closing(sqlite3.connect(path)) as connection:
            found = connection.execute("select version_num from tuner_schema").fetchall()
            assert found == [("0001",)]
            assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
        assert list(path.parent.iterdir()) == [path]


def test_switching_to_a_write_ahead_log_waits_where_sqlite_does_not(tmp_path):
    # When several switch a file at once, SQLite refuses some without waiting (3 % of 8 processes'
    # attempts); here it does so for certain, since it is told to wait 0 s.
    path = tmp_path / "new.db"
    engine = writing_engine(path, timeout_s=0)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("begin exclusive")
        with pytest.raises(StoreError, match=f"{path} is locked by another process"):
            use_write_ahead_log(engine, path, timeout_s=0.1)
        threading.Timer(0.2, other.execute, ["commit"]).start()
        use_write_ahead_log(engine, path, timeout_s=60)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("pragma journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("write_ahead_log", [True, False], ids=["wal", "rollback"])
def test_who_others_are_always_ahead_of_waits_on_for_as_long_as_they_write(
    tmp_path, write_ahead_log
):
    path = tmp_path / "configs.db"
    with Store.open(path, write_ahead_log=write_ahead_log) as store:
        patient = Store.open(path, timeout_s=0.3)
        held, done = threading.Event(), threading.Event()

        def hold() -> None:  # the lock, but for the instants between two transactions
            number = 0
            while not done.is_set():
                number += 1
                with store._writing() as connection:
                    connection.exec_driver_sql(f"create table t{number} (a)")
                    held.set()
                    time.sleep(0.1)

        holder = threading.Thread(target=hold)
        holder.start()
        try:
            assert held.wait(ANSWER_S)
            for number in range(5):
                assert patient.add_record(samples.bare_record(number))
        finally:
            done.set()
            holder.join(ANSWER_S)
        assert numbers(store) == set(range(5))


@pytest.mark.parametrize("by", ["none", "another"])
def test_a_writer_whose_file_is_taken_away_while_it_waits_says_so(tmp_path, by):
    path = tmp_path / "configs.db"
    Store.open(path).close()
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("begin immediate")

        def take_away() -> None:
            for file in tmp_path.iterdir():
                file.unlink()
            if by == "another":
                path.write_bytes(b"")
            other.execute("commit")

        with Store.open(path) as store:
            threading.Timer(0.3, take_away).start()
            with pytest.raises(StoreError, match=f"^{path} was moved, removed or replaced meanwh"):
                store.add_record(samples.bare_record(1))


@pytest.mark.parametrize("write_ahead_log", [True, False], ids=["wal", "rollback"])
def test_readers_beside_a_writer_see_a_growing_set_and_no_error(tmp_path, write_ahead_log):
    path = tmp_path / "configs.db"
    Store.open(path, write_ahead_log=write_ahead_log).close()
    writer = start_writer(path, 0, 100)
    seen = set()
    while writer.poll() is None:
        # Without a write-ahead log a reader has to wait for a commit now and then.
        found = numbers(Store.read_only(path, timeout_s=0.2 if write_ahead_log else 30))
        assert found >= seen
        seen = found
    _, errors = writer.communicate()
    assert errors == ""
    assert numbers(Store.read_only(path)) == set(range(100))


@pytest.mark.parametrize("write_ahead_log", [True, False], ids=["wal", "rollback"])
def test_what_was_acknowledged_survives_a_killed_writer(tmp_path, write_ahead_log):
    path = tmp_path / "configs.db"
    Store.open(path, write_ahead_log=write_ahead_log).close()
    acknowledged = set()
    for attempt in range(4):
        writer = start_writer(path, 10_000 * attempt, 10_000)
        assert writer.stdout.readline() == "ready\n"
        acknowledged.add(int(writer.stdout.readline()))
        time.sleep(random.uniform(0, 0.2))
        writer.kill()
        out, _ = writer.communicate()
        acknowledged.update(int(line) for line in out.splitlines(keepends=True) if "\n" in line)
        with Store.open(path) as store:
            assert numbers(store) >= acknowledged
            tried = {trial.candidate.config["number"] for trial in store.trials()}
            assert tried >= {number for number in acknowledged if number % 10 == 0}
        assert integrity(path) == [("ok",)]
    assert len(acknowledged) >= 4


def test_a_store_serves_on_after_a_fork(tmp_path):
    os = pytest.importorskip("os")
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    with Store.open(tmp_path / "configs.db") as store:
        store.add_record(samples.bare_record(1))
        child = os.fork()
        if child == 0:
            os._exit(0 if store.add_record(samples.bare_record(2)) else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0
        assert numbers(store) == {1, 2}
