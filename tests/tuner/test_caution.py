"""What the library itself warns of: texts of files and databases in it steer no terminal."""

from __future__ import annotations

import ast
import logging
import re
import sqlite3
import threading
import warnings
from contextlib import closing
from pathlib import Path

import pytest

from tests.tuner.store import samples
from tuner import caution, misses, snapshot
from tuner.store import layers, migrate
from tuner.store.database import Store
from tuner.store.layers import Layers
from tuner.store.publish import publish

ROOT = Path(__file__).parents[2]
EVIL = "red\x1b[31m\u202e\n\x07"
STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def the_only_one(caplog: pytest.LogCaptureFixture) -> str:
    (said,) = caplog.messages
    assert not STEERING.search(said)
    assert r"red\x1b[31m\u202e\n\x07" in said
    caplog.clear()
    return str(said)


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A database of such a name with a record and a row that is none."""
    path = tmp_path / f"{EVIL}.db"
    with Store.open(path) as store:
        store.add_records([samples.record(1), samples.record(2)])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("update records set tflops = 0 where uid = ?", [samples.record(2).uid])
    return path


def test_of_a_damaged_row(evil: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Store.read_only(evil) as store:
        store.records()
    assert "1 of 2 rows are skipped" in the_only_one(caplog)


def test_of_a_network_file_system(
    evil: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.store.database.network_file_system", lambda folder: "nfs")
    Store.open(evil).close()
    assert "lies on a network file system (nfs)" in the_only_one(caplog)


def test_of_a_migration(
    evil: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "revision", lambda connection, location: "0000")

    def enough(old: str) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        migrate.upgrade(None, str(evil), enough)  # type: ignore[arg-type]
    assert "schema 0000 is migrated" in the_only_one(caplog)


def test_of_databases_that_cannot_be_read(
    evil: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path / "shipped.db", [])
    monkeypatch.setattr(layers, "shipped_database", lambda: tmp_path / "shipped.db")
    held = snapshot.Snapshot.load(evil)
    monkeypatch.setattr(snapshot, "_holder", snapshot._Holder(held))
    caplog.clear()
    evil.write_bytes(b"nonsense" * 20)
    Layers.load(evil, strict=False)
    assert "going on without its records" in the_only_one(caplog)
    assert snapshot.newer(at_once=True) is None
    assert "going on with the records read before" in the_only_one(caplog)


def test_of_misses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{EVIL}.json").write_text('{"format": 7}')
    misses.read(tmp_path)
    assert "holds no misses" in the_only_one(caplog)
    monkeypatch.setenv(misses.VARIABLE, str(tmp_path / f"{EVIL}.json" / "folder"))
    monkeypatch.setattr(misses, "_found", {})
    monkeypatch.setattr(misses, "_written", set())
    monkeypatch.setattr(misses, "_at_exit", True)
    monkeypatch.setattr(misses, "_flusher", threading.current_thread())  # none is started
    misses.note(samples.PROBLEM, samples.TARGET, "default")
    misses._flush_or_log()
    assert "misses are lost" in the_only_one(caplog)


def test_a_warning_says_it_on_one_line_that_is_not_endless() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        caution.warn(EVIL * 500, UserWarning)
    said = str(caught[0].message)
    assert said.startswith(r"red\x1b[31m\u202e\n\x07red")
    assert not STEERING.search(said)
    assert 700 < len(said) <= 1000
    assert caught[0].filename == __file__


def test_the_log_is_of_the_library(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        caution.log("100% of it")
        caution.debug("not now")
    with caplog.at_level(logging.DEBUG):
        caution.debug("%s of %d", EVIL, 2)
    assert caplog.record_tuples == [
        ("tuner", logging.WARNING, "100% of it"),
        ("tuner", logging.DEBUG, r"red\x1b[31m\u202e\n\x07 of 2"),
    ]


def test_nobody_warns_past_it() -> None:
    # The command line's remarks are about the log itself.
    known = {"tuner/caution.py", "tuner/cli/remarks.py"}
    for folder in ("tuner", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    name = f"{node.value.id}.{node.attr}"
                    if name in ("warnings.warn", "logging.getLogger"):
                        assert str(path.relative_to(ROOT)) in known, path
