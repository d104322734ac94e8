"""Whatever is wrong with the user's database, lookups at run time go on with the shipped records or
the defaults, in good time, and never raise."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kernels.attention.problem import Problem
from tests.patience import promptly
from tests.tuner.store import samples
from tuner import snapshot
from tuner.snapshot import Snapshot
from tuner.store.database import Store
from tuner.store.locations import shipped_database

ROOT = Path(__file__).parents[2]
PROBLEM = Problem.on_grid(128, 4096, True)


def made(path: Path) -> Path:
    with Store.open(path) as store:
        store.add_records(samples.bare_record(number) for number in range(100))
    return path


def truncated(path: Path) -> None:
    with made(path).open("rb+") as file:
        file.truncate(5000)


def scribbled(path: Path) -> None:
    with made(path).open("rb+") as file:
        for page in range(1, 20):
            file.seek(4096 * page)
            file.write(os.urandom(512))


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table studies (study_id integer)")


def revised(path: Path, revision: str) -> None:
    made(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("update tuner_schema set version_num = ?", [revision])
        connection.commit()


def without_a_column(path: Path) -> None:
    made(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("alter table records drop column evidence")
        connection.commit()


def full_of_nonsense(path: Path) -> None:
    made(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("update records set evidence = x'ff00', config = 7, seqlen = 'many'")
        connection.commit()


def looped(path: Path) -> None:
    path.symlink_to(path)


BROKEN: dict[str, Callable[[Path], object]] = {
    "absent": lambda path: None,
    "empty": lambda path: path.touch(),
    "truncated": truncated,
    "scribbled": scribbled,
    "json": lambda path: path.write_text(json.dumps({"format": "attention-tuner/records"})),
    "binary": lambda path: path.write_bytes(os.urandom(10_000)),
    "directory": lambda path: path.mkdir(),
    "foreign": foreign,
    "newer": lambda path: revised(path, "9999"),
    "older": lambda path: revised(path, "0000"),
    "no column": without_a_column,
    "nonsense": full_of_nonsense,
    "link to itself": looped,
}


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    snapshot.replace(None)
    yield
    snapshot.replace(None)


def assert_served_in_time() -> None:
    shipped = shipped_database()
    assert shipped is not None
    with promptly():
        loaded = Snapshot.load()
    with Store.read_only(shipped) as store:
        targets = {record.target for record in store.records()}
        assert sum(map(len, loaded.shelf.values())) > 0
    for target in targets:
        found = loaded.resolve(target, PROBLEM)
        assert found.candidate.template
    assert snapshot.current().digest == loaded.digest
    assert snapshot.newer(at_once=True) is None


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "mine.db"
    BROKEN[how](path)
    monkeypatch.setenv("TUNER_DB", str(path))
    with caplog.at_level(logging.WARNING):
        assert_served_in_time()
    if how not in ("absent", "link to itself"):
        assert str(path) in caplog.messages[0]
        assert "\n" not in caplog.messages[0]


@pytest.mark.parametrize(
    "name",
    [
        "mysql://host/db",
        "postgresql://host:port/db",
        "postgresql://u:secret@127.0.0.1:1/db",
        "postgresql://u@127.0.0.1:1/db?password=secret",
        "postgresql:///db?host=/nowhere&row_factory=x",
        "postgresql:///db?host=/nowhere&prepare_threshold=abc",
        "postgresql:///db?host=/nowhere&context=x&cursor_factory=y&autocommit=1",
        "postgresql:///db?host=/nowhere&conninfo=x",
        "postgresql:///db?host=/nowhere&dbname=x&dbname=y",
        "postgresql:///db?host=/nowhere&port=abc",
        "postgresql:///db?host=a:b:c",
        "postgresql:///db?host=/nowhere&plugin=zzz",
        "postgresql:///db?host=/nowhere&foo=bar",
        "postgresql:///db?host=%ff%00",
        "postgresql+nonsense:///db",
        "nonsense://",
        "://",
        "sqlite://",
        "~nobody-of-this-name/x.db",
        "x" * 5000,
        "/proc/self/mem",
        "/dev/zero",
        "",
        ".",
        "/",
        "sqlite:///",
        "sqlite:////",
    ],
    ids=lambda name: name[:30],
)
def test_a_name_that_is_none(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TUNER_DB", name)
    with caplog.at_level(logging.WARNING):
        assert_served_in_time()
    assert "secret" not in caplog.text


# Root may do anything, so the lookup is made as nobody.
def test_a_folder_one_may_not_enter_and_no_home() -> None:
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    folder = Path(tempfile.mkdtemp(prefix="closed-"))
    try:
        made(folder / "mine.db")
        folder.chmod(0o700)
        script = (
            "import os\n"
            "from tuner import snapshot\n"
            "import sqlalchemy.dialects.sqlite, platformdirs.unix, tuner.store.migrate\n"
            "from kernels.attention import registry\n"
            "versions = [registry.get(name).version for name in registry.names()]\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "for name in ('TUNER_DB', 'HOME', 'XDG_DATA_HOME'):\n"
            "    loaded = snapshot.Snapshot.load()\n"
            "    assert loaded.shelf\n"
            "    os.environ.pop(name, None)\n"
            "print('served')\n"
        )
        for place in (folder / "mine.db", folder / "deeper" / "mine.db"):
            ended = subprocess.run(
                [sys.executable, "-c", script],
                cwd=ROOT,
                env={**os.environ, "TUNER_DB": str(place), "HOME": str(folder)},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert (ended.returncode, ended.stdout) == (0, "served\n"), ended.stderr
    finally:
        shutil.rmtree(folder)


def test_a_locked_file_does_not_hold_up_a_lookup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.db"
    with Store.open(path, write_ahead_log=False) as store:
        store.add_record(samples.record())
    monkeypatch.setenv("TUNER_DB", str(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin exclusive")
        assert_served_in_time()


def test_without_shipped_records_the_default_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.store.layers.shipped_database", lambda: None)
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "none.db"))
    assert Snapshot.load().resolve(samples.TARGET, PROBLEM).source == "default"
    broken = tmp_path / "broken.db"
    truncated(broken)
    monkeypatch.setattr("tuner.store.layers.shipped_database", lambda: broken)
    assert Snapshot.load().resolve(samples.TARGET, PROBLEM).source == "default"
