"""What several scripts refuse before they begin: one sentence of the parser's, and exit code 2."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (makes kernels.attention importable)
from kernels.attention.printable import printable_sentence, shown
from tuner import extras
from tuner.store.errors import StoreError
from tuner.store.files import write_atomically
from tuner.store.sqlite import looks_like_database

PICTURES = (".svg", ".png", ".pdf")

_MOST = 1_000_000  # of whatever is counted

Found = TypeVar("Found")


class Parser(ArgumentParser):
    """Of a script whose docstring's first line says what it does. The names of files and the values
    of options are in what it refuses: none of their characters steers a terminal."""

    def __init__(self, doc: str | None) -> None:
        super().__init__(description=(doc or "").partition("\n")[0])

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {printable_sentence(message)}\n")


def at_least(parser: ArgumentParser, least: int, **numbers: int | None) -> None:
    """Refuse a number below `least`, or of which nobody would see the end; None is one that was not
    given."""
    for name, number in numbers.items():
        if number is not None and not least <= number <= _MOST:
            parser.error(
                f"--{name} is {shown(number)}, but must be a whole number of at least {least}"
                f"{f' and at most {_MOST}' if number > _MOST else ''}"
            )


def one_of(parser: ArgumentParser, option: str, text: str, accepted: Sequence[str]) -> list[str]:
    """The names in `text`, each of which is accepted."""
    names = text.split(",")
    for name in names:
        if name not in accepted:
            parser.error(f"{option} is {shown(name)}, but must be one of {', '.join(accepted)}")
    return list(dict.fromkeys(names))


def folders(parser: ArgumentParser, option: str, given: Iterable[Path]) -> None:
    """Refuse what is no folder."""
    for folder in given:
        if not os.path.isdir(folder):  # noqa: PTH112 – a name that is too long is no error
            parser.error(f"{option} is {shown(str(folder), 300)}, but must be a folder")


def file(parser: ArgumentParser, option: str, path: Path) -> None:
    """Refuse what is there, but is no file: reading a pipe would wait for ever."""
    if path.exists() and not path.is_file():
        parser.error(f"{option} is {shown(str(path), 300)}, but must be a file")


def output(
    parser: ArgumentParser,
    path: Path,
    suffixes: Sequence[str] = (),
    option: str = "--output",
    database: bool = False,
) -> None:
    """Refuse a file that cannot be written, whose name has none of the `suffixes`, or, but where
    one is made, which is a database; nothing is written."""
    named = f"{option} is {shown(str(path), 300)}, but must"
    try:
        if path.is_dir():
            parser.error(f"{named} be a file")
        if suffixes and path.suffix not in suffixes:
            parser.error(f"{named} end in {' or '.join(suffixes)}")
        folder = path.resolve().parent  # of what a link leads to
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            parser.error(f"{named} be in a folder that is there and can be written")
        path.exists()
        if not database and path.is_file() and looks_like_database(path):
            parser.error(f"{named} be no database, which is not replaced")
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL character, a loop
        parser.error(f"{named} be a file's name: {getattr(error, 'strerror', None) or error}")


def write(
    parser: ArgumentParser, path: Path, content: str | bytes, measured: str | None = None
) -> None:
    """Write a file; refuse, in the end, where it turns out that it cannot be, and print what was
    `measured`, which would be lost."""
    try:
        write_atomically(path, content)
    except StoreError as error:
        if measured is not None:
            print(measured)
        parser.error(str(error))


def needs_matplotlib(parser: ArgumentParser) -> None:
    """Refuse to draw where it is not installed."""
    if find_spec("matplotlib") is None:
        parser.error(
            f"drawing needs matplotlib, which is not installed: {extras.command('matplotlib')}"
        )


def elsewhere(
    parser: ArgumentParser, path: Path, made_on: dict[str, Any] | None, target: dict[str, Any]
) -> None:
    """Refuse to add to what was measured on another target; None is a file that is not there."""
    if made_on not in (None, target):
        parser.error(f"{shown(str(path), 300)} has results of {made_on}, but this is {target}")


def written(
    parser: ArgumentParser,
    option: str,
    path: Path,
    read: Callable[[Any], Found],
    writer: str,
) -> Found:
    """What `read` makes of the JSON that `writer` wrote to `path`; refuses all else."""
    named = f"{option} is {shown(str(path), 300)}, but"
    try:
        file(parser, option, path)
        return read(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        parser.error(f"{named} cannot be read: {error.strerror}")
    except (
        ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError,
    ) as error:  # fmt: skip
        parser.error(f"{named} must be a file that {writer} wrote{_because(error)}")


def _because(error: Exception) -> str:
    """What is wrong with a file, where an error says more than what is with Python's objects."""
    if isinstance(error, KeyError):
        return f": {error} is missing"
    return f": {error}" if isinstance(error, ValueError) else ""
