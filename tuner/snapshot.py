"""The records in force, held in memory: read once, then again only on request."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernels.attention.problem import Problem
from tuner import resolve
from tuner.record import Record
from tuner.resolve import Resolution
from tuner.store.layers import Layers
from tuner.target import Target

_logger = logging.getLogger("tuner")

_Shelf = Mapping[tuple[int, bool, str], tuple[Record, ...]]


@dataclass(frozen=True)
class Snapshot:
    """Standing records of all layers, shelved by what a neighbour must share."""

    shelf: _Shelf
    digest: str
    """Equal on every machine and rank that sees the same records."""

    @classmethod
    def load(cls, database: str | Path | None = None) -> Snapshot:
        """Read the user's database over the shipped one. Never raises for what is wrong with a
        database: it is left out, with a warning in the log."""
        layers = Layers.load(database, strict=False)
        shelf: dict[tuple[int, bool, str], list[Record]] = {}
        for record in layers.standing():
            problem = record.problem
            shelf.setdefault((problem.headdim, problem.causal, problem.dtype), []).append(record)
        return cls({key: tuple(records) for key, records in shelf.items()}, layers.snapshot_hash())

    def resolve(self, target: Target, problem: Problem) -> Resolution:
        """Which candidate serves `problem` on `target`, and why.

        Raises:
            LookupError: no template serves it.
        """
        key = (problem.headdim, problem.causal, problem.dtype)
        return resolve.resolve(self.shelf.get(key, ()), target, problem)


@dataclass
class _Holder:
    snapshot: Snapshot | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_holder = _Holder()


def current() -> Snapshot:
    """The snapshot in force, loaded at the first call."""
    snapshot = _holder.snapshot
    if snapshot is None:
        with _holder.lock:
            snapshot = _holder.snapshot
            if snapshot is None:
                snapshot = _holder.snapshot = Snapshot.load()
                _logger.debug("records loaded, snapshot %s", snapshot.digest)
    return snapshot


def replace(snapshot: Snapshot | None) -> None:
    """Put `snapshot` in force; None reads the databases again at the next lookup."""
    _holder.snapshot = snapshot


# A lock that another thread held while the process forked would never be released in the child.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: setattr(_holder, "lock", threading.Lock()))
