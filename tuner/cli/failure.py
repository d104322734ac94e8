"""Errors of the command line: one sentence on stderr and an exit code, never a traceback."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass

import typer

from kernels.attention.printable import printable_sentence
from tuner.store.errors import StoreError

# Newer releases of Typer carry a click of their own, older ones depend on it: take whichever class
# it is that Typer's own errors descend from.
UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

# What contracts raise for input that does not fit, and what the world does.
_EXPECTED = (ValueError, LookupError, StoreError, OSError, ImportError)


class CommandError(ValueError):
    """What a command cannot do as asked; the message names the option, its value, and what it
    accepts."""


class Interrupted(Exception):  # noqa: N818 (as Python calls it)
    """Ctrl-C; the message says what is kept."""


@dataclass(frozen=True)
class Failure:
    """What the user gets to read, and the exit code."""

    sentence: str
    status: int  # 2: what was asked for is wrong or impossible; 130: Ctrl-C; 1: a fault of ours


def explain(error: Exception) -> Failure:
    """`error` in one sentence."""
    if isinstance(error, UsageError):
        return Failure(_usage(error), 2)
    text = " ".join(_text(error).split())
    if isinstance(error, Interrupted):
        return Failure(text, INTERRUPTED)
    if isinstance(error, OSError) and error.strerror:
        named = f"{error.filename}: {error.strerror}"
        return Failure(named if error.filename else error.strerror, 2)
    if text and isinstance(error, _EXPECTED):
        return Failure(text, 2)
    return Failure(f"{type(error).__name__}: {text} (`tuner --debug` shows where)", 1)


def warn(sentence: str) -> None:
    """Print one line to stderr, under the program's name. The names of files and the values of
    options are in it: none of their characters steers a terminal. Where stderr cannot be written,
    nothing is said, and the command goes on."""
    if sys.stderr is None:  # closed by the shell: print would take stdout
        return
    with suppress(OSError, ValueError):
        print(f"tuner: {printable_sentence(sentence)}", file=sys.stderr)


def _text(error: Exception) -> str:
    # str() of a KeyError is the repr of its message.
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)


def _usage(error: Exception) -> str:
    sentence = getattr(error, "format_message", error.__str__)().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{sentence}; see '{context.command_path if context else 'tuner'} --help'"
