"""Warnings of the library itself, in a log or by `warnings`. The names of files and the texts of
databases are in them: none of their characters steers a terminal."""

from __future__ import annotations

import logging
import sys
import warnings

from kernels.attention.printable import MOST_LINE, printable

_logger = logging.getLogger("tuner")

# What lies between the user's code and ours.
_BETWEEN = ("tuner", "torch", "transformers")


def warn(message: str, category: type[Warning]) -> None:
    """As `warnings.warn`, at the line of the user's code that asked for attention: not in our own
    modules, PyTorch's dispatcher, or a model of Hugging Face's."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _package(frame.f_globals) in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(printable(message, MOST_LINE), category, stacklevel=level)


def log(message: str) -> None:
    """A warning in the log."""
    _logger.warning("%s", printable(message, MOST_LINE))


def debug(message: str, *values: object) -> None:
    """A line for who debugs; `values` take the places of the message's %s if anybody listens."""
    if _logger.isEnabledFor(logging.DEBUG):
        _logger.debug("%s", printable(message % values, MOST_LINE))


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]
