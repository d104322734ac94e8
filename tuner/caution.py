"""Warnings of the library itself, in a log or by `warnings`. The names of files and the texts of
databases are in them: none of their characters steers a terminal."""

from __future__ import annotations

import logging
import sys
import warnings

from kernels.attention.printable import printable_sentence

_logger = logging.getLogger("tuner")

# What lies between the user's code and ours.
_BETWEEN = ("tuner", "torch", "transformers")


def warn(message: str, category: type[Warning]) -> None:
    """As `warnings.warn`, at the line of the user's code that asked for attention: not in our own
    modules, PyTorch's dispatcher, or a model of Hugging Face's."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _package(frame.f_globals) in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(printable_sentence(message), category, stacklevel=level)


def log(message: str) -> None:
    """A warning in the log."""
    _logger.warning("%s", printable_sentence(message))


def debug(message: str, *values: object) -> None:
    """A line for who debugs; `values` take the places of the message's %s if anybody listens."""
    if _logger.isEnabledFor(logging.DEBUG):
        _logger.debug("%s", printable_sentence(message % values))


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]
