"""Warnings that point to the line of the user's code that asked for attention, not to what lies
between: our own modules, PyTorch's dispatcher, a model of Hugging Face's."""

from __future__ import annotations

import sys
import warnings

_BETWEEN = ("tuner", "torch", "transformers")


def warn(message: str, category: type[Warning]) -> None:
    """As `warnings.warn`, at the nearest caller outside of these packages."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _package(frame.f_globals) in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]
