"""Connecting to a Ray cluster, or one sentence where nobody answers: Ray itself would try for
minutes, also where it was not told an address but remembers one of a cluster that is gone."""

from __future__ import annotations

import os
import re
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

_CONNECT_S = 10.0  # for the head of a cluster to take a connection
_ADDRESS = re.compile(r"\[?([^/\[\]]+?)\]?:([0-9]{1,5})")
_GREATEST_PORT = 65535


def names_cluster(address: str) -> bool:
    """Whether `address` says where a cluster is, or `local`, that Ray shall start one; for anything
    else it would start one, too."""
    if address in ("auto", "local"):
        return True
    found = _ADDRESS.fullmatch(address.removeprefix("ray://"))
    return (
        found is not None
        and re.search(r"\s", found[1]) is None
        and found[1].isprintable()
        and 0 < int(found[2]) <= _GREATEST_PORT
    )


def connect(ray: Any, address: str | None) -> None:
    """Make this process a driver of the cluster at `address`: else at RAY_ADDRESS, else of the one
    that was started on this machine last, else of a new one.

    Raises:
        RuntimeError: it cannot be reached; one sentence.
    """
    address = (address or os.environ.get("RAY_ADDRESS") or "").strip() or None
    named = address if address not in (None, "auto") else _remembered()
    where = f"at {named or address} " if named or address else ""
    try:
        if named is not None and (found := _ADDRESS.fullmatch(named)):
            socket.create_connection((found[1], int(found[2])), _CONNECT_S).close()
        ray.init(address=address, logging_level="error", log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError, OverflowError, OSError) as error:
        said = first_line(error)
        if named not in (None, address):
            said = f"{said} ({_memory()} names it; remove that file if the cluster is gone)"
        raise RuntimeError(f"the Ray cluster {where}cannot be reached: {said}") from None


def _memory() -> Path:
    """Where Ray keeps the address of the last cluster that was started here."""
    unix = sys.platform in ("linux", "darwin")
    folder = os.environ.get("RAY_TMPDIR") or ("/tmp" if unix else tempfile.gettempdir())
    return Path(folder) / "ray" / "ray_current_cluster"


def _remembered() -> str | None:
    try:
        return _memory().read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):
        return None


def first_line(error: BaseException | None) -> str:
    """What one of Ray's errors says first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
