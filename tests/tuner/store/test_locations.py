from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

from tuner.store import locations
from tuner.store.database import Store, parse_location
from tuner.store.errors import StoreError
from tuner.store.layers import Layers, change_token
from tuner.store.locations import shipped_database, user_database

ROOT = Path(__file__).parents[3]


def test_the_shipped_database_of_this_installation_is_ours():
    path = shipped_database()
    assert path is not None
    assert isinstance(Store.read_only(path).records(), list)


def test_in_a_checkout_it_lies_at_the_root_and_in_a_wheel_in_the_package(tmp_path, monkeypatch):
    package = tmp_path / "tuner"
    package.mkdir()
    monkeypatch.setattr(locations, "_PACKAGE", package)
    assert shipped_database() is None
    (tmp_path / "configs.db").touch()
    assert shipped_database() is None  # in site-packages that is somebody else's
    (package / "configs.db").touch()
    assert shipped_database() == package / "configs.db"
    (tmp_path / "pyproject.toml").touch()
    assert shipped_database() == tmp_path / "configs.db"


def test_the_users_database_is_what_is_given_then_the_environments_then_the_platforms(monkeypatch):
    monkeypatch.setenv("TUNER_DB", "postgresql+psycopg://host/db")
    assert user_database("mine.db") == "mine.db"
    assert user_database() == "postgresql+psycopg://host/db"
    for unset in (
        lambda: monkeypatch.setenv("TUNER_DB", ""),
        lambda: monkeypatch.delenv("TUNER_DB"),
    ):
        unset()
        folder = platformdirs.user_data_path("attention-tuner", appauthor=False)
        assert user_database() == folder / "configs.db"


@pytest.mark.parametrize("name", ["mine.db", Path("mine.db"), "sqlite:///mine.db"])
def test_a_relative_path_where_the_working_directory_is_gone(name, tmp_path, monkeypatch, caplog):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    said = (
        "the database is 'mine.db', but must be an absolute path or a URL where there is no "
        "working directory (No such file or directory)"
    )
    for reading in (parse_location, Store.read_only, Store.open, Layers.load):
        with pytest.raises(StoreError) as caught:
            reading(name)
        assert str(caught.value) == said
    assert Layers.load(name, strict=False).standing()  # the shipped ones
    assert caplog.messages == [f"{said}; going on without its records"]
    assert change_token(name) is None
    assert parse_location(tmp_path / "mine.db") == tmp_path / "mine.db"


def run(code):
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return ended.stdout.split()


LOADED = "import sys; print(*(m for m in {!r} if m in sys.modules))"
HEAVY = ("alembic", "mako", "pydantic", "optuna", "torch", "triton", "numpy", "psycopg")


def test_importing_the_store_loads_no_database_library():
    found = run("import tuner.store;" + LOADED.format((*HEAVY, "sqlalchemy", "platformdirs")))
    assert found == []


def test_reading_records_loads_neither_migrations_nor_anything_heavy(tmp_path):
    path = tmp_path / "configs.db"
    Store.open(path).close()
    code = "from tuner.store.database import Store; from tuner.store.layers import Layers;"
    code += f"Layers.load({str(path)!r});"
    assert run(code + LOADED.format(HEAVY)) == []
    assert run(code + f"Store.open({str(path)!r});" + LOADED.format(HEAVY)) == []
