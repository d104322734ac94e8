"""Whatever is raised while the records are read, a lookup at run time goes on, with one warning."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.patience import promptly
from tests.tuner.store import page_trees, samples
from tuner import snapshot
from tuner.snapshot import Snapshot
from tuner.store.database import Store
from tuner.store.layers import Layers

FAULTS = [MemoryError(), RecursionError("deep"), OSError(36, "File name too long"), KeyError("uid")]
faults = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    snapshot.replace(None)
    yield
    snapshot.replace(None)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's database, of one record."""
    path = tmp_path / "mine.db"
    with Store.open(path, write_ahead_log=False) as store:
        store.add_record(samples.record())
    monkeypatch.setenv("TUNER_DB", str(path))
    return path


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, BaseException], None]:
    """Makes reading a database of this name raise."""

    def break_it(name: str, fault: BaseException) -> None:
        usual = Store.read_only

        def read_only(location: str | Path) -> Store:
            if str(location) == name:
                raise fault
            return usual(location)

        monkeypatch.setattr(Store, "read_only", read_only)

    return break_it


@faults
def test_what_the_users_database_raises_leaves_the_shipped_records(
    fault: Exception,
    mine: Path,
    breaking: Callable[[str, BaseException], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    breaking(str(mine), fault)
    current = snapshot.current()
    assert current.shelf
    assert snapshot.current() is current
    assert snapshot.newer() is None
    assert caplog.messages == [
        f"{mine} cannot be read ({type(fault).__name__}); going on without its records"
    ]
    with pytest.raises(type(fault)):  # as the command line wants it
        Layers.load(mine)


@faults
def test_what_the_database_raises_later_leaves_the_records_read_before(
    fault: Exception,
    mine: Path,
    breaking: Callable[[str, BaseException], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    current = snapshot.current()
    assert current.resolve(samples.TARGET, samples.PROBLEM).record is not None
    os.utime(mine, (0, 0))
    breaking(str(mine), fault)
    assert snapshot.newer(at_once=True) is None
    assert snapshot.current() is current
    assert caplog.messages == [
        f"{mine} cannot be read ({type(fault).__name__}); going on with the records read before"
    ]


@faults
@pytest.mark.parametrize(
    "place",
    [
        "tuner.store.layers.user_database",
        "tuner.store.database.parse_location",
        "tuner.store.layers.shipped_database",
        "tuner.store.layers.superseded",
        "tuner.store.layers.Layers.standing",
    ],
)
def test_no_step_of_a_lookup_raises(
    place: str,
    fault: Exception,
    mine: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(place, fail)
        assert snapshot.current().resolve(samples.TARGET, samples.PROBLEM).candidate
        assert snapshot.newer(at_once=True) is None
    assert caplog.messages


def test_the_password_of_a_url_is_in_no_warning(
    monkeypatch: pytest.MonkeyPatch,
    breaking: Callable[[str, BaseException], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = "postgresql://user:secret@127.0.0.1:1/db"
    monkeypatch.setenv("TUNER_DB", url)
    breaking(url, RuntimeError(f"cannot reach {url}"))
    assert snapshot.current().shelf
    assert snapshot.newer(at_once=True) is None
    assert [said.partition(";")[0] for said in caplog.messages] == [
        "your database cannot be read (RuntimeError)"
    ] * 2


def test_ctrl_c_is_not_swallowed(
    mine: Path, breaking: Callable[[str, BaseException], None]
) -> None:
    snapshot.current()
    os.utime(mine, (0, 0))
    breaking(str(mine), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        snapshot.newer(at_once=True)
    snapshot.replace(None)
    with pytest.raises(KeyboardInterrupt):
        snapshot.current()


def test_an_argument_that_names_no_database_is_still_refused() -> None:
    with pytest.raises(TypeError, match="the database is 5, but must be a path or a URL"):
        Snapshot.load(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must have no NUL character"):
        Snapshot.load("a\0b")


def test_a_file_that_claims_far_more_than_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "hostile.db"
    page_trees.leading_to_one_row(path, "records")
    monkeypatch.setenv("TUNER_DB", str(path))
    with promptly(), caplog.at_level(logging.WARNING):
        assert snapshot.current().shelf
    assert caplog.messages == [
        f"{path} is damaged; restore a backup of it; going on without its records"
    ]


def test_a_relative_name_in_a_working_directory_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TUNER_DB", "mine.db")
    folder.rmdir()
    assert snapshot.current().shelf
    assert snapshot.newer() is None
    (said,) = caplog.messages
    assert said.startswith("the database is 'mine.db', but must be an absolute path or a URL")
