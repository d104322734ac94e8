"""Table rows from records and trials and back.

A row is the value's wire form (see `wire`) with some of its leaves moved into columns; what remains
is the `evidence`. Whatever comes back is validated like a document from a stranger: a database is a
file that anything may have written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kernels.attention.printable import shown
from tuner.record import Record
from tuner.store.wire import (
    MOST_CHARACTERS,
    UNPRINTABLE,
    WireError,
    decode_record,
    decode_trial,
    encode,
)
from tuner.trial import Trial

Row = dict[str, Any]

# column -> where its value lies in the wire form
_BOTH = {
    **{
        name: ("problem", name)
        for name in ("headdim", "seqlen", "causal", "dtype", "batch", "heads")
    },
    **{
        name: ("target", "hardware", name)
        for name in ("capability", "sm_count", "memory_gib", "power_limit_w")
    },
    **{name: ("target", name) for name in ("gpu_name", "triton", "torch", "driver")},
    "template": ("candidate", "template"),
    "template_version": ("template_version",),
    "config": ("candidate", "config"),
    "origin": ("origin",),
    "measured_at": ("measured_at",),
    "median_ms": ("measurement", "median_ms"),
    "tflops": ("measurement", "tflops"),
}
_RECORD = {"uid": ("uid",), **_BOTH}
_TRIAL = {
    **_BOTH,
    "outcome": ("outcome",),
    "reason": ("reason",),
    **{name: ("resources", name) for name in ("registers", "spills", "shared_memory")},
    "compile_s": ("compile_s",),
    "evaluate_s": ("evaluate_s",),
}

_SHAPELESS = "evidence does not have the shape of a record or trial"


def record_row(record: Record) -> Row:
    """The row of `record`.

    Raises:
        WireError: the record holds what could not be read back.
    """
    decode_record(encode(record))
    row = _split(encode(record), _RECORD)
    return {**row, "config": record.candidate.config.key, "hardware": record.target.hardware.key}


def trial_row(trial: Trial) -> Row:
    """The row of `trial`. Its reason, which may quote a compiler, is cleaned and cut to fit.

    Raises:
        WireError: the trial holds what could not be read back.
    """
    document = encode(trial)
    if "reason" in document:
        document["reason"] = UNPRINTABLE.sub(" ", document["reason"])[:MOST_CHARACTERS]
    decode_trial(document)
    row = _split(document, _TRIAL)
    return {**row, "config": trial.candidate.config.key, "hardware": trial.target.hardware.key}


def record_of(row: Mapping[str, Any]) -> Record:
    """The record in `row`.

    Raises:
        WireError: the row was not written by `record_row`, or was changed since.
    """
    return decode_record(_join(row, _RECORD))


def trial_of(row: Mapping[str, Any]) -> Trial:
    """The trial in `row`.

    Raises:
        WireError: the row was not written by `trial_row`, or was changed so that it is none, or is
            found as one of other hardware or of another config.
    """
    trial = decode_trial(_join(row, _TRIAL))
    for column, key in (
        ("hardware", trial.target.hardware.key),
        ("config", trial.candidate.config.key),
    ):
        if row[column] != key:
            raise WireError(f"{column} is {shown(row[column])}, but must be {shown(key)}")
    return trial


def _split(document: dict[str, Any], columns: Mapping[str, tuple[str, ...]]) -> Row:
    row: Row = {}
    for column, (*parents, leaf) in columns.items():
        place: Any = document
        for parent in parents:
            place = place.get(parent, {})
        row[column] = place.pop(leaf, None)
    row["evidence"] = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return row


def _join(row: Mapping[str, Any], columns: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    try:
        document = json.loads(row["evidence"])
        config = json.loads(row["config"])
    except (TypeError, ValueError, RecursionError):
        raise WireError("evidence or config is not JSON") from None
    if not isinstance(document, dict):
        raise WireError(_SHAPELESS)
    # SQLite has no type for it and returns a number, or whatever somebody put there.
    causal = bool(row["causal"]) if row["causal"] in (0, 1) else None
    values = {**row, "config": config, "causal": causal}
    for column, (*parents, leaf) in columns.items():
        if values[column] is None:
            continue
        place = document
        for parent in parents:
            place = place.setdefault(parent, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise WireError(_SHAPELESS)
        place[leaf] = values[column]
    return document
