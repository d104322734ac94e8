from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.tuner.store import postgresql_server


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of a PostgreSQL server's first database; skips where there is no PostgreSQL."""
    with postgresql_server.running() as url:
        yield url


@pytest.fixture
def new_postgresql(server: str) -> Callable[[], str]:
    """Makes empty databases on the server."""
    import psycopg

    def make() -> str:
        name = f"tuner_{uuid4().hex}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"create database {name}")
        return server.replace("/postgres?", f"/{name}?")

    return make


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that is not there yet, of each kind."""
    if request.param == "sqlite":
        return str(tmp_path / "configs.db")
    made: Callable[[], str] = request.getfixturevalue("new_postgresql")
    return made()
