"""A PostgreSQL server of the tests' own, from the binaries of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# A server refuses to run as root. Debian's package makes a user for it; `nobody` is everywhere.
_SOMEBODY = ("postgres", "nobody")


def _binary(name: str) -> str | None:
    # Debian keeps all but the clients away from the path.
    places = [str(at) for at in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(places))


def _unprivileged() -> str | None:
    """Whom to run the server as; None: as whoever runs the tests."""
    if os.geteuid() != 0:
        return None
    import pwd

    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in _SOMEBODY if name in names)


@contextmanager
def running() -> Iterator[str]:
    """The URL of a new server with one empty database, on a socket that is its own.

    Skips the test where PostgreSQL or its driver is not installed.
    """
    pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")
    initdb, pg_ctl = _binary("initdb"), _binary("pg_ctl")
    if initdb is None or pg_ctl is None:
        pytest.skip("PostgreSQL is not installed")
    user = _unprivileged()
    # A socket's path may have 107 bytes, which pytest's folders would use up.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        if user is not None:
            shutil.chown(folder, user)

        def run(*words: str) -> None:
            with (folder.parent / f"{folder.name}.log").open("ab") as log:
                subprocess.run(
                    words, user=user, cwd=folder, check=True, timeout=120,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip

        data = str(folder / "data")
        run(initdb, "-D", data, "-U", "tuner", "-A", "trust", "-E", "UTF8", "--locale=C")
        options = f"-k {folder} -c listen_addresses='' -c max_connections=100"
        run(pg_ctl, "-D", data, "-o", options, "-w", "-t", "60", "start")
        try:
            yield f"postgresql://tuner@/postgres?host={folder}"
        finally:
            run(pg_ctl, "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        (folder.parent / f"{folder.name}.log").unlink(missing_ok=True)
