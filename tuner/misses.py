"""Problems that production ran without a record of their own, noted for a search to tune.

Only where the environment asks for it: TUNER_RECORD_MISSES=1 (or true, yes, on) notes them in the
user's data folder, 0 (or false, no, off) does not, any other value is the folder to use. They are
noted in memory when a shape is met first; a thread writes them every half a minute, since servers
are mostly killed, and what is left is written at exit. Every process writes files of its own, whole
or not at all, so that none waits for another.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kernels.attention.printable import shown
from kernels.attention.problem import HEADDIMS, Problem
from tuner import caution, strangers_json
from tuner.store.errors import StoreError
from tuner.store.files import write_atomically
from tuner.store.locations import data_folder
from tuner.target import Target

VARIABLE = "TUNER_RECORD_MISSES"

_FORMAT = 1
_MOST = 4096  # problems noted in one process, and in one file
_EVERY_S = 30.0
_MOST_BYTES = 16 << 20  # of a file, some 50,000 problems: what is larger is none of ours
_OFF = ("", "0", "false", "no", "off")
_ON = ("1", "true", "yes", "on")


@dataclass(frozen=True, order=True)
class Miss:
    """A problem met on some hardware, and where its config came from instead."""

    problem: Problem
    hardware: str  # Hardware.key
    gpu_name: str
    source: str

    @property
    def key(self) -> tuple[Problem, str]:
        return self.problem, self.hardware


@dataclass(frozen=True)
class Noted:
    """What a folder holds."""

    misses: tuple[Miss, ...]  # one for each problem and hardware, in a fixed order
    files: tuple[tuple[Path, int], ...]  # those that were read, and when they had been changed


_found: dict[tuple[Problem, str], Miss] = {}
_written: set[tuple[Problem, str]] = set()
_at_exit = False
_flusher: threading.Thread | None = None
_flushing = threading.Lock()


def note(problem: Problem, target: Target, source: str) -> None:
    """Remember that `problem` was served by a config from `source`, if that is asked for."""
    global _at_exit, _flusher
    if _asked().lower() in _OFF or len(_found) >= _MOST:
        return
    miss = Miss(problem, target.hardware.key, target.gpu_name, source)
    _found.setdefault(miss.key, miss)
    if not _at_exit:
        _at_exit = True
        atexit.register(_flush_or_log)
    if _flusher is None:
        flusher = threading.Thread(target=_flush_on_and_on, name="tuner-misses", daemon=True)
        with suppress(RuntimeError):  # there is no room for one, or the process ends
            flusher.start()
            _flusher = flusher


def folder() -> Path:
    """Where misses are kept."""
    chosen = _asked()
    if chosen.lower() not in (*_OFF, *_ON):
        return Path(os.path.expanduser(chosen))  # noqa: PTH111 – a home of nobody is no error
    return data_folder() / "misses"


def flush() -> Path | None:
    """Write what this process noted and the folder does not hold yet.

    Returns:
        The file written; None if there was nothing to write.

    Raises:
        StoreError: it cannot be read or written.
    """
    with _flushing:
        unwritten = [miss for key, miss in list(_found.items()) if key not in _written]
        if not unwritten or _asked().lower() in _OFF:
            return None
        where = folder()
        held = {miss.key for miss in read(where).misses}
        new = [miss for miss in unwritten if miss.key not in held]
        path = _write(where, new) if new else None
        _written.update(miss.key for miss in unwritten)
        return path


def read(where: Path) -> Noted:
    """All misses in a folder; a file that is none is passed over with a warning in the log.

    Raises:
        StoreError: the folder cannot be read.
    """
    found: dict[tuple[Problem, str], Miss] = {}
    files: list[tuple[Path, int]] = []
    try:
        paths = sorted(path for path in where.iterdir() if path.suffix == ".json")
    except FileNotFoundError:
        paths = []
    except OSError as error:
        if isinstance(error, NotADirectoryError) and _asked().lower() not in (*_OFF, *_ON):
            raise StoreError(
                f"{VARIABLE} leads to {shown(str(where), 300)}, but must be 1, 0 or a folder"
            ) from None
        raise StoreError(f"{where} cannot be read: {error.strerror}") from None
    for path in paths:
        try:
            if not path.is_file():  # reading a pipe would wait for ever
                raise ValueError("it is no file")
            status = path.stat()
            if status.st_size > _MOST_BYTES:
                raise ValueError(f"it has more than {_MOST_BYTES} bytes")
            misses = _decode(_document(path.read_bytes()))
        except OSError as error:
            caution.log(f"{path} cannot be read ({error.strerror}); passed over")
            continue
        except ValueError as error:
            caution.log(f"{path} holds no misses ({error}); passed over")
            continue
        files.append((path, status.st_mtime_ns))
        for miss in misses:
            found.setdefault(miss.key, miss)
    return Noted(tuple(sorted(found.values())), tuple(files))


def settle(where: Path, noted: Noted, open_: Iterable[Miss]) -> None:
    """Keep only the `open_` ones of what was `noted`; what was added since stays.

    Raises:
        StoreError: the folder cannot be written.
    """
    remaining = list(open_)
    for start in range(0, len(remaining), _MOST):
        _write(where, remaining[start : start + _MOST])
    for path, changed in noted.files:
        try:
            if path.stat().st_mtime_ns == changed:
                path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreError(f"{path} cannot be removed: {error.strerror}") from None


def _asked() -> str:
    return os.environ.get(VARIABLE, "").strip()


def _write(where: Path, misses: Iterable[Miss]) -> Path:
    path = where / f"{os.getpid()}-{secrets.token_hex(6)}.json"
    document = {"format": _FORMAT, "misses": [asdict(miss) for miss in sorted(misses)]}
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{where} cannot be made: {error.strerror}") from None
    write_atomically(path, json.dumps(document, indent=1) + "\n")
    return path


def _document(content: bytes) -> Any:
    try:
        return strangers_json.loads(content.decode("utf-8"))
    except strangers_json.TooLargeError:
        raise
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None


def _decode(document: Any) -> list[Miss]:
    form = _fields(document, "it", ("format", "misses"))
    if form["format"] != _FORMAT:
        raise ValueError(f"format is {shown(form['format'])}, but must be {_FORMAT}")
    if not isinstance(form["misses"], list):
        raise ValueError(f"misses is {shown(form['misses'])}, but must be a list")
    return [_miss(miss, f"misses[{number}]") for number, miss in enumerate(form["misses"])]


def _miss(document: Any, place: str) -> Miss:
    form = _fields(document, place, [field.name for field in fields(Miss)])
    sizes = [field.name for field in fields(Problem)]
    inner = _fields(form["problem"], f"{place}.problem", sizes)
    try:
        problem = Problem(**{name: inner[name] for name in sizes})
    except ValueError as error:
        raise ValueError(f"{place}.problem.{error}") from None
    if problem.headdim not in HEADDIMS:
        raise ValueError(
            f"{place}.problem.headdim is {problem.headdim}, but must be one of "
            f"{', '.join(map(str, HEADDIMS))}"
        )
    return Miss(problem, *(str(form[name]) for name in ("hardware", "gpu_name", "source")))


def _fields(document: Any, place: str, names: Sequence[str]) -> dict[str, Any]:
    """`document`, if it is an object that has `names`."""
    if not isinstance(document, dict) or not document.keys() >= set(names):
        raise ValueError(
            f"{place} is {shown(document)}, but must be an object with {', '.join(names)}"
        )
    return document


def _flush_or_log() -> None:
    try:
        flush()
    except StoreError as error:
        caution.log(f"misses are lost: {error}")


def _flush_on_and_on() -> None:
    while True:
        time.sleep(_EVERY_S)
        with suppress(Exception):  # it will be said at exit, or is over by the next time
            flush()


def _forget() -> None:
    """A fork's child notes its own. The thread is not there, and may have held the lock."""
    global _flusher, _flushing
    _flusher, _flushing = None, threading.Lock()
    _found.clear()
    _written.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
