"""Errors of the command line: one sentence on stderr and an exit code, never a traceback."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import typer

from tuner.store.errors import StoreError

# Newer releases of Typer carry a click of their own, older ones depend on it: take whichever class
# it is that Typer's own errors descend from.
UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

# What contracts raise for input that does not fit, and what the world does.
_EXPECTED = (ValueError, LookupError, StoreError, OSError, ImportError)


class CommandError(ValueError):
    """What a command cannot do as asked; the message names the option, its value, and what it
    accepts."""


@dataclass(frozen=True)
class Failure:
    """What the user gets to read, and the exit code."""

    sentence: str
    status: int  # 2: what was asked for is wrong or impossible; 1: a fault of ours


def explain(error: Exception) -> Failure:
    """`error` in one sentence."""
    if isinstance(error, UsageError):
        return Failure(_usage(error), 2)
    text = " ".join(_text(error).split())
    if isinstance(error, OSError) and error.strerror:
        return Failure(f"{error.filename}: {error.strerror}" if error.filename else text, 2)
    if text and isinstance(error, _EXPECTED):
        return Failure(text, 2)
    return Failure(f"{type(error).__name__}: {text} (`tuner --debug` shows where)", 1)


def warn(sentence: str) -> None:
    """Print one line to stderr, under the program's name."""
    print(f"tuner: {sentence}", file=sys.stderr)


def _text(error: Exception) -> str:
    # str() of a KeyError is the repr of its message.
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)


def _usage(error: Exception) -> str:
    sentence = getattr(error, "format_message", error.__str__)().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{sentence}; see '{context.command_path if context else 'tuner'} --help'"
