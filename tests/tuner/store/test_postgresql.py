"""What a PostgreSQL server, a network or a URL can do to whoever asks: nothing for long."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from tests.patience import promptly, wait_until
from tests.tuner.store import samples
from tuner.snapshot import Snapshot
from tuner.store import postgresql
from tuner.store.database import READER_TIMEOUT_S, WRITER_TIMEOUT_S, Store
from tuner.store.errors import StoreError
from tuner.store.layers import Layers

psycopg = pytest.importorskip("psycopg")


@pytest.fixture
def url(new_postgresql: Callable[[], str]) -> str:
    made = new_postgresql()
    with Store.open(made) as store:
        store.add_record(samples.record())
    return made


@contextmanager
def locked(url: str, statement: str) -> Iterator[None]:
    """Another session that holds what `statement` takes."""
    with psycopg.connect(url) as session:
        session.execute(statement)
        yield


def test_a_lock_does_not_hold_up_the_runtime(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Layers.load(url)  # all that is imported on the way
    monkeypatch.setenv("TUNER_DB", url)
    with locked(url, "lock table records in access exclusive mode"):
        with promptly(), caplog.at_level(logging.WARNING):
            assert Snapshot.load().shelf
        assert " is locked by another session; try again when that is done; " in caplog.messages[0]
        with Store.open(url, timeout_s=0.5) as store:
            said = "is locked by another session; try again"
            start = time.monotonic()
            with promptly(), pytest.raises(StoreError, match=said):
                store.add_record(samples.record(2))
            assert time.monotonic() - start > 0.4
            with pytest.raises(StoreError, match=said):
                store.records()


def test_each_waits_as_long_as_it_should(url: str) -> None:
    def settings(store: Store) -> list[str]:
        names = ("lock_timeout", "statement_timeout", "default_transaction_read_only")
        with store._reading() as connection:
            return [str(connection.scalar(text(f"show {name}"))) for name in names]

    assert (READER_TIMEOUT_S, WRITER_TIMEOUT_S) == (0.2, 30)
    assert settings(Store.read_only(url)) == ["200ms", "3s", "on"]
    assert settings(Store.open(url)) == ["30s", "0", "off"]
    # A writer may be told to wait longer, a reader neither that nor to write.
    theirs = url + "&options=-c%20lock_timeout=90000&options=-cdefault_transaction_read_only=off"
    assert settings(Store.read_only(theirs)) == ["200ms", "3s", "on"]
    assert settings(Store.open(theirs)) == ["90s", "0", "off"]


def test_a_query_that_never_ends_is_cut_short(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "READER_STATEMENT_S", 0.3)
    with Store.read_only(url) as store:
        slow = pytest.raises(StoreError, match="the server was too slow to answer")
        with promptly(), slow, store._reading() as connection:
            connection.execute(text("select pg_sleep(600)"))
        assert store.records() == [samples.record()]


@pytest.mark.parametrize("way", ["options", "repeated", "environment"])
def test_readers_and_writers_meet_in_the_schema_that_the_url_names(
    new_postgresql: Callable[[], str], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_postgresql()
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("create schema team")
        if way == "options":
            url += "&options=-csearch_path%3Dteam"
        elif way == "repeated":
            url += "&options=-csearch_path%3Dteam&options=-cgeqo%3Doff"
        else:
            monkeypatch.setenv("PGOPTIONS", "-c search_path=team")
        with Store.open(url) as store:
            store.add_record(samples.record())
        found = session.execute("select schemaname from pg_tables where tablename = 'records'")
        assert found.fetchall() == [("team",)]
    with Store.read_only(url) as store:
        assert store.records() == [samples.record()]
    assert samples.record() in Layers.load(url).standing()


@contextmanager
def mute() -> Iterator[int]:
    """The port of a server that lets everybody in and says nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        guests: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    guest, _ = server.accept()
                except OSError:
                    return
                guests.append(guest)
                start = guest.recv(4096)
                while start[4:8] in (b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30"):  # SSL, GSS
                    guest.sendall(b"N")
                    start = guest.recv(4096)
                guest.sendall(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I")  # welcome, and ready

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            for guest in guests:
                guest.close()


def test_a_server_that_says_nothing_does_not_hold_up_the_runtime(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert postgresql.READER_CONNECTION_S <= 10
    monkeypatch.setattr(postgresql, "READER_CONNECTION_S", 0.5)
    with mute() as port:
        url = f"postgresql://tuner:secret@127.0.0.1:{port}/configs"
        monkeypatch.setenv("TUNER_DB", url)
        with promptly(), caplog.at_level(logging.WARNING):
            assert Snapshot.load().shelf
    assert "the connection ended, or no answer came in time; going on" in caplog.messages[0]
    assert "secret" not in caplog.text


REFUSED = "the database's URL, postgresql"


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("?row_factory=x", "is refused: row_factory is there, but no text can be one"),
        ("?prepare_threshold=5", "is refused: prepare_threshold is there, but no text can be one"),
        ("?host=h&port=abc", "is refused: "),
        ("?host=h&host=a:b:c", "is refused: "),
        ("?plugin=zzz", "is refused: Can't load plugin: sqlalchemy.plugins:zzz"),
    ],
)
def test_a_url_that_is_refused(rest: str, said: str) -> None:
    for opening in (Store.open, Store.read_only):
        with pytest.raises(StoreError) as caught:
            opening(f"postgresql://tuner:secret@/configs{rest}")
        assert str(caught.value).startswith(REFUSED)
        assert said in str(caught.value)
        assert "driver" not in str(caught.value)
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_driver_that_is_not_there() -> None:
    with pytest.raises(StoreError, match=r"/configs needs a driver that is not installed \(.*pip"):
        Store.read_only("postgresql+nonsense:///configs")


def test_no_clock_is_left_behind(url: str) -> None:
    def clocks() -> int:
        return sum(isinstance(thread, threading.Timer) for thread in threading.enumerate())

    before = clocks()
    with Store.read_only(url) as store:
        store.records()
        with pytest.raises(StoreError), store._reading() as connection:
            connection.execute(text("select nonsense"))
    assert wait_until(lambda: clocks() == before)
