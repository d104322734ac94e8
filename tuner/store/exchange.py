"""Records as a JSON document: to carry between machines, keep in git, or hand to other programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernels.attention.printable import shown
from tuner import strangers_json
from tuner.moments import tomorrow
from tuner.record import Record
from tuner.store.errors import DocumentError
from tuner.store.wire import WireError, decode_record, encode, schema

FORMAT = "attention-tuner/records"
VERSION = 1
MOST_BYTES = 64 * 2**20
MOST_RECORDS = 100_000


def export_document(records: Iterable[Record]) -> str:
    """`records` as a document: equal sets of records give equal texts, and close ones close texts.

    Raises:
        DocumentError: there are more than a document may hold.
    """
    ordered = sorted({record.uid: record for record in records}.values(), key=_order)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "records": [encode(record) for record in ordered],
    }
    text = json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n"
    if len(ordered) > MOST_RECORDS or len(text) > MOST_BYTES:
        raise DocumentError(
            f"{len(ordered)} records ({len(text)} bytes) are too many for one document, which "
            f"holds up to {MOST_RECORDS} in {MOST_BYTES} bytes"
        )
    return text


def import_document(text: str) -> list[Record]:
    """The records of a document, each checked in full.

    Raises:
        DocumentError: something in it does not fit; nothing of it should be used.
    """
    if len(text) > MOST_BYTES:
        raise DocumentError(f"the document has more than {MOST_BYTES} characters")
    try:
        document = strangers_json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise DocumentError(
            f"the document is not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise DocumentError("the document is nested too deeply") from None
    except strangers_json.TooLargeError as error:
        raise DocumentError(f"the document is too large: {error}") from None
    except ValueError:
        raise DocumentError("the document has a number of thousands of digits") from None
    latest = tomorrow()
    records = []
    for index, value in enumerate(_checked(document)):
        record = _record(value, f"records[{index}]")
        if record.measured_at > latest:
            raise DocumentError(
                f"records[{index}].measured_at is '{record.measured_at}', but must be at most a "
                f"day from now, {latest}"
            )
        records.append(record)
    return records


def read_document(path: str | Path) -> list[Record]:
    """The records of the document in the file `path`.

    Raises:
        DocumentError: it cannot be read, or as `import_document`.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise DocumentError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise DocumentError(f"{path} is larger than {MOST_BYTES} bytes")
    try:
        return import_document(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise DocumentError(f"{path} is not UTF-8 text") from None
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from None


def json_schema() -> str:
    """The JSON Schema of documents, as it is published beside this module."""
    described = schema(Record)
    definitions = described.pop("$defs")
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tuned attention configs with the measurements behind them",
        "type": "object",
        "properties": {
            "format": {"const": FORMAT},
            "version": {"const": VERSION},
            "records": {"type": "array", "items": described, "maxItems": MOST_RECORDS},
        },
        "required": ["format", "version", "records"],
        "additionalProperties": False,
        "$defs": definitions,
    }
    return json.dumps(document, indent=2) + "\n"


def _checked(document: Any) -> list[Any]:
    """The list of records of a document of ours."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DocumentError(f'the document is no export of records: it lacks "format": "{FORMAT}"')
    version = document.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise DocumentError(f"version is {shown(version)}, but must be {VERSION}")
    if version > VERSION:
        raise DocumentError(
            f"version is {shown(version)}, but this version of attention-tuner reads up to "
            f"{VERSION}; upgrade it"
        )
    for name in document:
        if name not in ("format", "version", "records"):
            raise DocumentError(f"{shown(name)} is no part of a document of records")
    records = document.get("records")
    if not isinstance(records, list):
        found = shown(records) if "records" in document else "not there"
        raise DocumentError(f"records is {found}, but must be a list")
    if len(records) > MOST_RECORDS:
        raise DocumentError(f"records has {len(records)} items, but may have {MOST_RECORDS}")
    return records


def _record(value: object, path: str) -> Record:
    try:
        return decode_record(value, path)
    except WireError as error:
        raise DocumentError(str(error)) from None


def _order(record: Record) -> tuple[Any, ...]:
    target = record.target
    return record.problem, target.hardware.key, target.triton, record.measured_at, record.uid


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise DocumentError(f"the document has {shown(twice)} twice in one object")
    return result


def _constant(name: str) -> float:
    raise DocumentError(f"the document holds {name}, but JSON has finite numbers only")
