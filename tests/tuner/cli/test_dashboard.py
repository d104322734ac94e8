"""`tuner dashboard`: studies for Optuna, whole or not at all."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest

from tuner.search import study_file

from .conftest import Said

SHAPE = ("--hdim", "256", "--seqlen", "512", "--causal")


@pytest.fixture
def searched(tuner: Callable[..., Said], spaces: Path, tmp_path: Path) -> Path:
    """A database with trials of a replayed search."""
    db = tmp_path / "mine.db"
    options = ("--backend", "replay", "--spaces", str(spaces), "--trials", "12", "--db", str(db))
    assert tuner("search", *SHAPE, *options).status == 0
    return db


def test_an_export_is_a_study_of_every_trial(
    tuner: Callable[..., Said], searched: Path, tmp_path: Path
) -> None:
    file = tmp_path / "studies.db"
    options = ("--db", str(searched), "--output", str(file), "--export-only")
    said = tuner("dashboard", *SHAPE, *options)
    assert said.status == 0, said.err
    (name,) = optuna.get_all_study_names(f"sqlite:///{file}")
    study = optuna.load_study(study_name=name, storage=f"sqlite:///{file}")
    assert len(study.trials) == 12
    assert study.best_value > 0
    file.chmod(0o600)
    again = tuner("dashboard", *SHAPE, *options)
    assert again.status == 0, again.err
    assert optuna.get_all_study_names(f"sqlite:///{file}") == [name]
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_was_written_in_the_dashboard_stays(
    tuner: Callable[..., Said], searched: Path, tmp_path: Path
) -> None:
    dashboard = pytest.importorskip("optuna_dashboard")
    file = tmp_path / "studies.db"
    options = ("--db", str(searched), "--output", str(file), "--export-only")
    assert tuner("dashboard", *SHAPE, *options).status == 0
    study = optuna.load_study(study_name=None, storage=f"sqlite:///{file}")
    dashboard.save_note(study, "what I found")
    before = file.read_bytes()
    said = tuner("dashboard", *SHAPE, *options)
    assert said.status == 2
    assert "--output" in said.err
    assert file.read_bytes() == before


def test_an_export_lands_in_the_file_that_was_named(
    tuner: Callable[..., Said], searched: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "data"
    mine.write_bytes(b"")
    file = tmp_path / "data?x=1"
    options = ("--db", str(searched), "--output", str(file), "--export-only")
    assert tuner("dashboard", *SHAPE, *options).status == 0
    assert file.stat().st_size > 0
    assert mine.stat().st_size == 0


@pytest.mark.parametrize("name", ["x" * 255, "x\udcff.db"])
def test_a_file_that_sqlite_cannot_write_is_named_and_not_begun(
    tuner: Callable[..., Said], searched: Path, tmp_path: Path, name: str
) -> None:
    output = tmp_path / "out" / name
    output.parent.mkdir()
    options = ("--db", str(searched), "--output", str(output), "--export-only")
    said = tuner("dashboard", *SHAPE, *options)
    assert said.status == 2
    assert said.err.startswith("tuner: --output is '")
    assert said.err.endswith("\n")
    assert "but must be a file that SQLite can write: " in said.err
    assert list(output.parent.iterdir()) == []


def test_a_port_that_is_none_is_refused_before_anything_is_written(
    tuner: Callable[..., Said], searched: Path, tmp_path: Path
) -> None:
    file = tmp_path / "s.db"
    said = tuner("dashboard", *SHAPE, "--db", searched, "-o", file, "--port", "70000")
    assert said.status == 2
    assert said.err == "tuner: --port is 70000, but must be a whole number from 1 to 65535\n"
    assert not file.exists()


def _garbage(file: Path) -> None:
    file.write_bytes(b"no database")


def _of_another(file: Path) -> None:
    for name in ("mine", "D256 S512 causal fp16 B32 H8"):
        optuna.create_study(storage=f"sqlite:///{file}", study_name=name)


def _of_nothing(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("create table studies (study_name text)")


def _link(file: Path) -> None:
    file.with_name("target.db").touch()
    file.symlink_to("target.db")


@pytest.mark.parametrize("make", [_garbage, _of_another, _of_nothing, _link])
def test_a_file_of_anybody_else_stays(
    tuner: Callable[..., Said], searched: Path, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    file = tmp_path / "there.db"
    make(file)
    content = file.read_bytes()
    said = tuner("dashboard", *SHAPE, "--db", searched, "-o", file, "--export-only")
    assert said.status == 2
    assert said.err == f"tuner: --output is '{file}', which exists already: name a new file\n"
    assert file.read_bytes() == content


@pytest.mark.parametrize("ending", ["-wal", "-journal"])
def test_the_log_of_another_is_not_applied_to_an_export(
    tuner: Callable[..., Said], searched: Path, tmp_path: Path, ending: str
) -> None:
    file, log = tmp_path / "there.db", tmp_path / f"there.db{ending}"
    log.write_bytes(b"pages")
    said = tuner("dashboard", *SHAPE, "--db", searched, "-o", file, "--export-only")
    assert said.status == 2
    assert said.err == (
        f"tuner: --output is '{file}', but must be no file for whose log SQLite would take "
        f"'{log}': name a new file\n"
    )
    assert not file.exists()


def test_a_file_that_appears_during_the_export_stays(
    tuner: Callable[..., Said], searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "there.db"
    study_of = study_file.study_of

    def slowly(*arguments: Any) -> Any:
        file.write_text("mine")
        return study_of(*arguments)

    monkeypatch.setattr(study_file, "study_of", slowly)
    said = tuner("dashboard", *SHAPE, "--db", searched, "-o", file, "--export-only")
    assert said.status == 2
    assert said.err == f"tuner: --output is '{file}', which exists already: name a new file\n"
    assert file.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, os.strerror(28))])
def test_what_ends_in_the_middle_leaves_what_was_there(
    tuner: Callable[..., Said],
    searched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    words = ("dashboard", *SHAPE, "--db", searched, "-o", folder / "s.db", "--export-only")
    add = optuna.Study.add_trial

    def fail(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        if len(study.get_trials(deepcopy=False)) == 4:
            raise error
        add(study, trial)

    for _ in range(2):  # where there is no file, and where there is one
        before = {path: path.read_bytes() for path in folder.iterdir()}
        monkeypatch.setattr(optuna.Study, "add_trial", fail)
        said = tuner(*words)
        assert said.status == (2 if isinstance(error, OSError) else 130)
        assert {path: path.read_bytes() for path in folder.iterdir()} == before
        monkeypatch.setattr(optuna.Study, "add_trial", add)
        assert tuner(*words).status == 0


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Optuna's dashboard, which notes where it is to listen."""
    served: list[tuple[object, ...]] = []

    class Dashboard:
        @staticmethod
        def run_server(storage: optuna.storages.BaseStorage, host: str, port: int) -> None:
            served.append((len(storage.get_all_studies()), host, port))

    monkeypatch.setitem(__import__("sys").modules, "optuna_dashboard", Dashboard)
    return served


def test_what_is_exported_is_served(
    tuner: Callable[..., Said], searched: Path, tmp_path: Path, installed: list[object]
) -> None:
    file = tmp_path / "s.db"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("dashboard", *SHAPE, "--db", searched, "-o", file, "--port", str(port))
        said = tuner(*words)
        assert said.status == 2
        assert said.err.startswith(f"tuner: --port is {port}, but must be one that is free")
        assert not file.exists()
    said = tuner(*words)
    assert said.status == 0, said.err
    assert said.out.endswith(f"http://127.0.0.1:{port} until Ctrl-C\n")
    assert installed == [(1, "127.0.0.1", port)]


@pytest.mark.parametrize("host", ["", " ", "127.0.0.1\n", "no such host", "192.0.2.1", "x" * 70])
def test_a_host_that_is_none_is_refused_before_anything_is_written(
    tuner: Callable[..., Said], searched: Path, tmp_path: Path, installed: list[object], host: str
) -> None:
    file = tmp_path / "s.db"
    said = tuner("dashboard", *SHAPE, "--db", searched, "-o", file, "--host", host)
    assert said.status == 2
    assert said.err.startswith("tuner: --host is '")
    assert "but must be a name or an address of this machine" in said.err
    assert said.err.count("\n") == 1
    assert not file.exists()
    assert installed == []


def test_without_the_dashboard_nothing_is_written(
    tuner: Callable[..., Said], searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna_dashboard", None)
    file = tmp_path / "s.db"
    said = tuner("dashboard", *SHAPE, "--db", searched, "-o", file)
    assert said.status == 2
    assert said.err == (
        "tuner: optuna-dashboard is not installed: give --export-only, or "
        "pip install 'optuna-dashboard>=0.18'\n"
    )
    assert not file.exists()


def test_a_file_whose_writer_was_killed_is_not_taken_for_whole(tmp_path: Path) -> None:
    file, killed = tmp_path / "half.db", tmp_path / "killed.db"
    optuna.create_study(storage=f"sqlite:///{file}", study_name="mine")
    assert study_file.can_be_made_anew(file, {"mine", "more"})
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("pragma cache_size = 1")
        connection.execute("begin exclusive")
        connection.execute("create table large as select randomblob(1000000) as x")
        for suffix in ("", "-journal"):
            Path(f"{killed}{suffix}").write_bytes(Path(f"{file}{suffix}").read_bytes())
        connection.rollback()
    assert not study_file.can_be_made_anew(killed, {"mine", "more"})
    assert not study_file.can_be_made_anew(tmp_path / ("x" * 300), {"mine"})
