"""The databases in force, one over the other: the user's own over the one that is shipped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kernels.attention.problem import Problem
from tuner import caution
from tuner.liveness import alive
from tuner.record import Record
from tuner.standing import standing, superseded
from tuner.store import sqlite
from tuner.store.database import Store, parse_location
from tuner.store.errors import StoreError
from tuner.store.locations import check_type, shipped_database, user_database

Key = tuple[Problem, str, str]


class Layers:
    """The records of both layers as they were when read, and which of them stand.

    For each key the user's standing record hides the shipped one, even a faster one: it was
    measured here. Three things act across layers: a verdict falls before a later one that names it,
    a replayed record never hides a measured one, and one of an older kernel, or with a config that
    the kernel refuses, hides none that can be served.
    """

    def __init__(self, user: Iterable[Record], shipped: Iterable[Record]) -> None:
        self._layers = layers = list(user), list(shipped)
        fallen = superseded(record for records in layers for record in records)
        self._standing: dict[Key, Record] = {}
        for records in layers:
            candidates = standing(r for r in records if r.uid not in fallen)
            for key, record in candidates.items():
                above = self._standing.get(key)
                if above is None or _yields(above, record):
                    self._standing[key] = record

    @classmethod
    def load(
        cls,
        location: str | Path | None = None,
        *,
        strict: bool = True,
        shipped: str | Path | None = None,
    ) -> Layers:
        """Read both layers, changing and creating nothing.

        Args:
            location: the user's database, found as in `user_database`. One that was never made is
                an empty layer, unless it is named here.
            strict: raise for a database that cannot be read; else log a warning and leave it out,
                whatever was raised: nothing may end the program that only wants its attention.
            shipped: instead of the shipped database.

        Raises:
            StoreError: a database cannot be read, and `strict`.
            TypeError, ValueError: `location` can name no database.
        """
        if location is not None:
            check_type(location)
        user = _attempt(lambda: _user_records(location), named(location), strict)
        below = str(shipped or "the shipped database")
        return cls(user, _attempt(lambda: _shipped_records(shipped), below, strict))

    @classmethod
    @contextmanager
    def open(cls, location: str | Path | None = None) -> Iterator[WritableLayers]:
        """Open the user's database for writing, made if need be, and read both layers.

        Raises:
            StoreError: a database cannot be read, or the user's cannot be written.
        """
        with Store.open(user_database(location)) as store:
            yield WritableLayers(store, _shipped_records(None))

    def standing(self) -> list[Record]:
        """The record in force for each key, in a fixed order."""
        return [self._standing[key] for key in sorted(self._standing)]

    def history(self) -> list[Record]:
        """All there are, those of a problem from the oldest on."""
        known = {record.uid: record for records in self._layers for record in records}
        return sorted(known.values(), key=lambda record: (record.problem, record.measured_at))

    def snapshot_hash(self) -> str:
        """Sixteen hex digits over the standing records: equal wherever the same ones stand."""
        uids = sorted(record.uid for record in self._standing.values())
        return hashlib.sha256("\n".join(uids).encode()).hexdigest()[:16]


class WritableLayers(Layers):
    """Layers whose upper one is open for writing. What is written does not show in these."""

    def __init__(self, store: Store, shipped: Iterable[Record]) -> None:
        super().__init__(store.records(), shipped)
        self.store = store


def _yields(upper: Record, lower: Record) -> bool:
    """Whether the shipped record `lower` shows although the user has `upper`."""
    if upper.origin == "replay" and lower.origin == "cuda":
        return True
    return upper.uid != lower.uid and not alive(upper) and alive(lower)


def change_token(location: str | Path | None = None) -> object | None:
    """A value that differs once the user's database, found as in `user_database`, may have changed.
    It costs a few stats; None where it would cost a connection, and if there is none to find."""
    try:
        place = parse_location(user_database(location))
        return sqlite.change_token(place) if isinstance(place, Path) else None
    except Exception:  # whoever reads it says so
        return None


def told(error: Exception, what: str) -> str:
    """What `error`, raised by reading `what`, has to say to the user."""
    if isinstance(error, StoreError):
        return str(error)
    # No more of it: a driver may quote a URL, with its password.
    return f"{what} cannot be read ({type(error).__name__})"


def named(location: str | Path | None) -> str:
    """What to call the user's database, found as in `user_database`, whatever is wrong with it."""
    try:
        name = str(user_database(location))
    except Exception:
        return "your database"
    return "your database" if "://" in name else name  # with a password, maybe


def _attempt(read: Callable[[], list[Record]], what: str, strict: bool) -> list[Record]:
    try:
        return read()
    except Exception as error:
        if strict:
            raise
        caution.log(f"{told(error, what)}; going on without its records")
        return []


def _user_records(location: str | Path | None) -> list[Record]:
    path = user_database(location)
    return [] if location is None and never_made(path) else _read(path)


def _shipped_records(path: str | Path | None) -> list[Record]:
    path = path or shipped_database()
    if path is None:
        caution.log("this installation lacks the shipped records; reinstall attention-tuner")
        return []
    return _read(path)


def _read(location: str | Path) -> list[Record]:
    with Store.read_only(location) as store:
        return store.records()


def never_made(location: str | Path) -> bool:
    """Whether `location` is that of a file which is not there, as the user's own at first."""
    try:
        place = parse_location(location)
        return isinstance(place, Path) and not place.exists()
    except (StoreError, OSError):  # no name of a database, a folder one may not enter
        return False  # whoever reads it says so
