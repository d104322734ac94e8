"""The records in force, held in memory: read once, and again when their database has changed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernels.attention.problem import Problem, Specialization
from tuner import caution, resolve
from tuner.record import Record
from tuner.resolve import Resolution
from tuner.store.layers import Layers, change_token, named, told
from tuner.target import Target

LOOK_EVERY_S = 5.0
_NOTHING = Layers([], []).snapshot_hash()  # now: what fails later may be this very step

_Shelf = Mapping[Specialization, tuple[Record, ...]]


@dataclass(frozen=True)
class Snapshot:
    """Standing records of all layers, shelved by what a neighbour must share."""

    shelf: _Shelf
    digest: str
    """Equal on every machine and rank that sees the same records."""
    database: str | Path | None = None
    """The user's, as it was named."""
    token: object = None
    """Of the user's database, from before it was read."""

    @classmethod
    def load(cls, database: str | Path | None = None, *, strict: bool = False) -> Snapshot:
        """Read the user's database over the shipped one.

        Raises:
            StoreError: strict, and a database cannot be read. Else it is left out, with a warning
                in the log.
            TypeError, ValueError: `database` can name none.
        """
        token = change_token(database)
        layers = Layers.load(database, strict=strict)
        shelf: dict[Specialization, list[Record]] = {}
        for record in layers.standing():
            shelf.setdefault(record.problem.specialization, []).append(record)
        tuples = {key: tuple(records) for key, records in shelf.items()}
        return cls(tuples, layers.snapshot_hash(), database, token)

    def resolve(self, target: Target, problem: Problem) -> Resolution:
        """Which candidate serves `problem` on `target`, and why.

        Raises:
            LookupError: no template serves it.
        """
        return resolve.resolve(self.shelf.get(problem.specialization, ()), target, problem)


@dataclass
class _Holder:
    snapshot: Snapshot | None = None
    next_look: float = 0.0  # at the database, by time.monotonic
    lock: threading.Lock = field(default_factory=threading.Lock)


_holder = _Holder()


def current() -> Snapshot:
    """The snapshot in force, loaded at the first call. It never raises: of records that cannot be
    had or put together it has none, and the defaults serve."""
    snapshot = _holder.snapshot
    if snapshot is None:
        with _holder.lock:
            snapshot = _holder.snapshot
            if snapshot is None:
                snapshot = _holder.snapshot = _loaded()
                caution.debug("records loaded, snapshot %s", snapshot.digest)
    return snapshot


def _loaded() -> Snapshot:
    try:
        return Snapshot.load()
    except Exception as error:
        caution.log(f"{told(error, 'the records')}; going on without any")
        return Snapshot({}, _NOTHING, token=change_token())


def newer(at_once: bool = False) -> Snapshot | None:
    """Other records than those in force, if their database has changed; None if not, or if it
    cannot be read now, whatever was raised.

    Args:
        at_once: look now, and also into a database that can only be asked over a connection. Else
            look at a file every few seconds at most, and not at all if the environment has
            TUNER_REFRESH=0.
    """
    snapshot = _holder.snapshot
    if snapshot is None:
        return None
    if not at_once:
        now = time.monotonic()
        if now < _holder.next_look or os.environ.get("TUNER_REFRESH") == "0":
            return None
        _holder.next_look = now + LOOK_EVERY_S
    token = change_token(snapshot.database)
    if token == snapshot.token and not (at_once and token is None):
        return None
    try:
        fresh = Snapshot.load(snapshot.database, strict=True)
    except Exception as error:
        said = told(error, named(snapshot.database))
        caution.log(f"{said}; going on with the records read before")
        return None
    if fresh.digest == snapshot.digest:  # only trials were added
        _holder.snapshot = fresh
        return None
    caution.debug("the records have changed, snapshot %s", fresh.digest)
    return fresh


def replace(snapshot: Snapshot | None) -> None:
    """Put `snapshot` in force; None reads the databases again at the next lookup."""
    _holder.snapshot = snapshot


# A lock that another thread held while the process forked would never be released in the child.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: setattr(_holder, "lock", threading.Lock()))
