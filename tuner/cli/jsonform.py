"""Anything of ours as plain JSON values, for `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from tuner.record import Record
from tuner.store.wire import encode
from tuner.trial import Trial


def json_form(value: object) -> Any:
    """Dataclasses and mappings become objects, sequences arrays, enums their values."""
    if isinstance(value, (Record, Trial)):
        return encode(value)  # as in an export
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_form(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(json_form(name)): json_form(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [json_form(item) for item in value]
    return value
