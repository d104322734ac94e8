"""Records and trials as JSON values and back, every field checked.

The dataclasses' own annotations are the format: one walk over them writes, reads and describes it,
so that database rows, documents and the published JSON Schema cannot drift apart. Standard library
only, since every lookup reads rows.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from kernels.attention.config import Config
from kernels.attention.printable import shown
from kernels.attention.problem import DTYPES
from tuner import moments
from tuner.record import Record
from tuner.trial import Measurement, Outcome, Trial

MOST_ITEMS = 10_000
"""The longest list inside one record or trial."""
MOST_CHARACTERS = 2_000
"""The longest text inside one record or trial."""
MOST_CONFIG = 1_000
"""The longest config, as JSON. It is part of a key, which PostgreSQL holds in some 2,700 bytes."""

_MOST_NUMBER = 2**53 - 1  # what every JSON reader holds exactly
# No control characters: these texts are printed on terminals. No lone surrogates: nothing stores
# them.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UID = {"pattern": "^[0-9a-f]{16}$"}
_POSITIVE = {"exclusiveMinimum": 0}
_OF_A_KEY = {"maxLength": 200}

# What the annotations cannot say, by field name, as keywords of JSON Schema.
_RULES: Mapping[str, Mapping[str, Any]] = {
    "headdim": {"minimum": 1},
    "seqlen": {"minimum": 1},
    "batch": {"minimum": 1},
    "heads": {"minimum": 1},
    "sm_count": {"minimum": 1},
    "triton": _OF_A_KEY,
    "template": _OF_A_KEY,
    "template_version": _OF_A_KEY,
    "dtype": {"enum": list(DTYPES)},
    "median_ms": _POSITIVE,
    "samples_ms": _POSITIVE,
    "default_ms": _POSITIVE,
    "tflops": _POSITIVE,
    "cycles": {"minimum": 1},
    "margin": {"minimum": -1},
    "measured_at": {"pattern": f"^{moments.PATTERN}$", "format": "date-time"},
    "supersedes": _UID,
    "uid": _UID,
}


class WireError(ValueError):
    """A value does not fit; the message says where it is, what it is, and what is accepted."""


def encode(value: Any) -> Any:
    """`value` in JSON's types. Fields that are empty by default are left out."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {
            field.name: encode(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not _left_out(field, getattr(value, field.name))
        }
    return value


def decode_record(value: object, path: str = "") -> Record:
    """The record that `value` spells.

    Raises:
        WireError: it spells none, or its uid is not that of its content.
    """
    record: Record = _decode_dataclass(Record, value, path)
    if record.uid != (digest := record.digest()):
        raise _refusal(record.uid, f"{digest}, the digest of this record", _join(path, "uid"))
    return record


def decode_trial(value: object) -> Trial:
    """The trial that `value` spells.

    Raises:
        WireError: it spells none.
    """
    trial: Trial = _decode_dataclass(Trial, value, "")
    if trial.outcome is Outcome.OK and trial.measurement is None:
        raise _refusal(None, "there where the outcome is ok", "measurement")
    return trial


def refusal(measurement: Measurement) -> str:
    """Why `measurement` could not be kept; empty if it could."""
    try:
        _decode_dataclass(Measurement, encode(measurement), "measurement")
    except WireError as error:
        return str(error)
    return ""


def schema(kind: type) -> dict[str, Any]:
    """The JSON Schema of the dataclass `kind`; those it holds are under `$defs`."""
    definitions: dict[str, Any] = {}
    reference = _describe(kind, "", definitions)
    return {**reference, "$defs": dict(sorted(definitions.items()))}


def _decode(kind: Any, value: object, path: str, name: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, path)
    if kind is Config:
        return _decode_config(value, path)
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        (inner,) = (part for part in get_args(kind) if part is not type(None))
        return None if value is None else _decode(inner, value, path, name)
    if origin is tuple:
        if not isinstance(value, list) or len(value) > MOST_ITEMS:
            raise _refusal(value, f"a list of at most {MOST_ITEMS}", path)
        inner = get_args(kind)[0]
        return tuple(_decode(inner, item, f"{path}[{i}]", name) for i, item in enumerate(value))
    if origin is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        choices = _choices(kind)
        if not isinstance(value, str) or value not in choices:
            raise _refusal(value, f"one of {', '.join(choices)}", path)
        return value if origin is Literal else kind(value)
    rules = _RULES.get(name, {})
    if not _fits(kind, value, rules):
        raise _refusal(value, _accepted(kind, rules), path)
    # Not -0.0, which is the equal of 0.0 but is written otherwise.
    return float(cast(float, value)) + 0.0 if kind is float else value


def _decode_dataclass(kind: Any, value: object, path: str) -> Any:
    if not isinstance(value, dict):
        raise _refusal(value, f"an object with the fields of a {kind.__name__.lower()}", path)
    hints = _hints(kind)
    for name in value:
        if name not in hints:
            raise WireError(
                f"{_join(path, _show(name)[1:-1])} is no field of a {kind.__name__.lower()}, "
                f"which has {', '.join(hints)}"
            )
    for name in _required(kind):
        if name not in value:
            raise WireError(f"{_join(path, name)} is missing")
    arguments = {
        name: _decode(hints[name], item, _join(path, name), name) for name, item in value.items()
    }
    try:
        return kind(**arguments)
    except ValueError as error:
        raise WireError(f"{path or kind.__name__.lower()} is refused: {error}") from None


def _decode_config(value: object, path: str) -> Config:
    if not isinstance(value, dict) or len(value) > MOST_ITEMS:
        raise _refusal(value, "an object of parameters", path)
    for name, item in value.items():
        if not _fits(str, name, {}):
            raise _refusal(name, f"a name: {_accepted(str, {})}", path)
        kind = type(item)
        # Bounds of other fields do not apply: a parameter may be negative.
        if kind not in (bool, int, str) or not _fits(kind, item, {"minimum": -_MOST_NUMBER}):
            accepted = "true, false, a whole number or a text without control characters"
            raise _refusal(item, accepted, _join(path, name))
    config = Config(value)
    if len(config.key) > MOST_CONFIG:
        raise _refusal(config.key, f"at most {MOST_CONFIG} characters of JSON", path)
    return config


def _fits(kind: Any, value: object, rules: Mapping[str, Any]) -> bool:
    if kind is bool:
        return isinstance(value, bool)
    if kind is str:
        return (
            isinstance(value, str)
            and len(value) <= rules.get("maxLength", MOST_CHARACTERS)
            and not UNPRINTABLE.search(value)
            and ("pattern" not in rules or re.fullmatch(rules["pattern"][1:-1], value) is not None)
            and ("enum" not in rules or value in rules["enum"])
            and ("format" not in rules or moments.exists(value))
        )
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        return False
    if isinstance(value, int) and abs(value) > _MOST_NUMBER:
        return False
    if "exclusiveMinimum" in rules and not value > rules["exclusiveMinimum"]:
        return False
    return math.isfinite(value) and value >= rules.get("minimum", 0)


def _accepted(kind: Any, rules: Mapping[str, Any]) -> str:
    if kind is bool:
        return "true or false"
    if kind is str:
        if "enum" in rules:
            return f"one of {', '.join(rules['enum'])}"
        if "format" in rules:
            return "a moment of UTC that exists, such as 2026-11-28T12:00:00Z"
        if "pattern" in rules:
            return f"a text like {rules['pattern']}"
        most = rules.get("maxLength", MOST_CHARACTERS)
        return f"a text of at most {most} characters without control characters"
    number = "a whole number" if kind is int else "a finite number"
    if "exclusiveMinimum" in rules:
        return f"{number} above {rules['exclusiveMinimum']}"
    return f"{number} of at least {rules.get('minimum', 0)}"


def _describe(kind: Any, name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        kind = cast("type[Any]", kind)
        title = kind.__name__
        if title not in definitions:
            definitions[title] = {}  # holds the place while its fields are described
            definitions[title] = {
                "type": "object",
                "properties": {
                    field: _describe(hint, field, definitions)
                    for field, hint in _hints(kind).items()
                },
                "required": list(_required(kind)),
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{title}"}
    if kind is Config:
        limits = {"minimum": -_MOST_NUMBER, "maximum": _MOST_NUMBER}
        values = [{"type": "boolean"}, {"type": "integer", **limits}, _text({})]
        return {"type": "object", "additionalProperties": {"anyOf": values}}
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        (inner,) = (part for part in get_args(kind) if part is not type(None))
        return {"anyOf": [_describe(inner, name, definitions), {"type": "null"}]}
    if origin is tuple:
        items = _describe(get_args(kind)[0], name, definitions)
        return {"type": "array", "items": items, "maxItems": MOST_ITEMS}
    if origin is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        return {"enum": list(_choices(kind))}
    rules = _RULES.get(name, {})
    if kind is bool:
        return {"type": "boolean"}
    if kind is str:
        return _text(rules)
    least = {} if "exclusiveMinimum" in rules else {"minimum": 0}
    most = {"maximum": _MOST_NUMBER} if kind is int else {}
    return {"type": "integer" if kind is int else "number", **least, **most, **rules}


def _text(rules: Mapping[str, Any]) -> dict[str, Any]:
    printable = {"pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]*$"}
    return {"type": "string", "maxLength": MOST_CHARACTERS, **printable, **rules}


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@cache
def _required(kind: Any) -> tuple[str, ...]:
    # A uid is computed where it is not given, but a document that lacks it proves nothing.
    return tuple(
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING or field.name == "uid"
    )


def _choices(kind: Any) -> tuple[str, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(member.value for member in cast("Iterator[Enum]", kind))


def _left_out(field: dataclasses.Field[Any], value: object) -> bool:
    empty = value is None or value == "" or value == ()
    return empty and field.default is not dataclasses.MISSING


def _refusal(value: object, accepted: str, path: str) -> WireError:
    return WireError(f"{path or 'it'} is {_show(value)}, but must be {accepted}")


def _show(value: object) -> str:
    return f"a {type(value).__name__}" if isinstance(value, (dict, list)) else shown(value)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
