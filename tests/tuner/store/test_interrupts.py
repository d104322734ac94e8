from __future__ import annotations

import signal
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from tuner.store import database
from tuner.store.database import Store
from tuner.store.interrupts import deferring_interrupts, noting_interrupts


class Thing:
    pass


def interrupt_in_a_weak_references_callback() -> None:
    thing = Thing()
    weakref.finalize(thing, signal.raise_signal, signal.SIGINT)
    del thing


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    """Python's own handler: there is none where a shell started the tests in the background."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


def test_a_ctrl_c_while_a_new_database_is_migrated_is_not_lost(tmp_path, monkeypatch):
    migrate = database.upgrade

    def upgrade(*arguments):
        migrate(*arguments)
        interrupt_in_a_weak_references_callback()

    monkeypatch.setattr(database, "upgrade", upgrade)
    usual = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        Store.open(tmp_path / "new.db")
    assert signal.getsignal(signal.SIGINT) is usual
    with Store.read_only(tmp_path / "new.db") as store:
        assert store.records() == []


def test_a_ctrl_c_beside_an_error_is_not_lost_either():
    @deferring_interrupts()
    def fail():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("went wrong")

    with pytest.raises(KeyboardInterrupt) as caught:
        fail()
    assert isinstance(caught.value.__context__, ValueError)


def test_the_second_ctrl_c_takes_effect_at_once():
    reached = []

    @deferring_interrupts()
    def work():
        for step in range(3):
            reached.append(step)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached == [0, 1]


def test_other_threads_and_handlers_are_left_alone():
    done = []

    def work():
        with deferring_interrupts():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.getsignal(signal.SIGINT)]
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferring_interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, usual)


def test_a_ctrl_c_that_was_swallowed_is_noted(capfd):
    usual = signal.getsignal(signal.SIGINT), sys.unraisablehook
    with noting_interrupts() as outer:
        assert not outer()
        interrupt_in_a_weak_references_callback()
        with noting_interrupts() as inner:  # it arrived before, but nobody heeded it
            assert inner()
        assert outer()
    with noting_interrupts() as another:
        assert not another()
    assert (signal.getsignal(signal.SIGINT), sys.unraisablehook) == usual
    assert capfd.readouterr() == ("", "")


def test_a_noted_ctrl_c_takes_effect_as_usual():
    with noting_interrupts() as interrupted:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert interrupted()
