"""Reading T4, the JSON format in which the autotuning community records whole search spaces."""

from __future__ import annotations

import gzip
import lzma
import math
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kernels.attention.config import Config, Value
from kernels.attention.printable import shown
from tuner import strangers_json
from tuner.trial import Outcome

T = TypeVar("T", dict[str, Any], list[Any])

SUFFIXES = (".json.xz", ".json.gz", ".json")
SCHEMA_VERSION = "1.0.0"

# Bytes of a file once decompressed; ours and the community's stay below a quarter of that.
MOST_BYTES = 128 << 20

# How T4 calls the ways in which a config can end.
INVALIDITY = {
    Outcome.OK: "correct",
    Outcome.PRUNED: "correct",
    Outcome.REJECTED: "constraints",
    Outcome.COMPILE_ERROR: "compile",
    Outcome.OUT_OF_RESOURCES: "compile",
    Outcome.SPILLS: "constraints",
    Outcome.WRONG: "correctness",
    Outcome.CRASHED: "runtime",
    Outcome.TIMEOUT: "timeout",
}
# For files that have no outcome of ours.
_OUTCOME = {
    "correct": Outcome.OK,
    "compile": Outcome.COMPILE_ERROR,
    "runtime": Outcome.CRASHED,
    "correctness": Outcome.WRONG,
    "timeout": Outcome.TIMEOUT,
    "constraints": Outcome.REJECTED,
}
# T4 files spell it in several ways, one of them wrong.
_MILLISECONDS = {
    "ms": 1.0, "milliseconds": 1.0, "miliseconds": 1.0,
    "s": 1e3, "seconds": 1e3,
    "us": 1e-3, "microseconds": 1e-3,
}  # fmt: skip


class SpaceError(ValueError):
    """A file is no recorded space; the message names it and says why."""


@dataclass(frozen=True)
class Result:
    """One config of a space, ours or the community's."""

    config: Config
    outcome: Outcome
    reason: str = ""
    samples_ms: tuple[float, ...] = ()
    compile_s: float | None = None
    evaluate_s: float | None = None
    timestamp: str = ""
    measurements: Mapping[str, float] = field(default_factory=dict)  # by T4's names


def read_results(path: Path) -> tuple[Result, ...]:
    """The results of any T4 file, in its order.

    Raises:
        SpaceError: the file is none; one sentence.
        OSError: it cannot be read.
    """
    data = decompressed(path, MOST_BYTES, whole=True)
    try:
        document = of_kind(dict, strangers_json.loads(data), "the document")
        unit = of_kind(dict, document.get("metadata", {}), "metadata").get("timeunit", "ms")
        scale = _MILLISECONDS[_one_of(_MILLISECONDS, unit, "timeunit")]
        results = of_kind(list, document["results"], "results")
        return tuple(_parse(of_kind(dict, result, "a result"), scale) for result in results)
    except (
        ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError
    ) as error:  # fmt: skip
        detail = f"{error} is missing" if isinstance(error, KeyError) else error
        raise SpaceError(f"{path} is no recorded space: {detail}") from None


def decompressed(path: Path, limit: int, whole: bool) -> bytes:
    """At most `limit` bytes of a file's content; more is an error where all of it is wanted."""
    try:
        if path.name.endswith(".xz"):
            with lzma.open(path) as file:
                data = file.read(limit + 1)
        elif path.name.endswith(".gz"):
            with gzip.open(path) as file:
                data = file.read(limit + 1)
        else:
            with path.open("rb") as file:
                data = file.read(limit + 1)
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise SpaceError(f"{path} is damaged: {error}") from None
    if whole and len(data) > limit:
        raise SpaceError(f"{path} holds more than {limit >> 20} MiB, which no recorded space does")
    return data[:limit]


def _parse(data: Mapping[str, Any], scale: float) -> Result:
    times = of_kind(dict, data.get("times", {}), "times")
    configuration = of_kind(dict, data["configuration"], "configuration")
    outcome = data.get("outcome")
    values = {
        str(entry["name"]): float(entry["value"])
        for entry in of_kind(list, data.get("measurements", []), "measurements")
        # A failure's "time" is the name of an error.
        if not isinstance(entry["value"], bool)
        and isinstance(entry["value"], (int, float))
        and math.isfinite(entry["value"])
    }
    if "time" in values:
        values["time"] *= scale
    result = Result(
        config=Config({str(name): _value(value) for name, value in configuration.items()}),
        outcome=_OUTCOME[_one_of(_OUTCOME, data["invalidity"], "invalidity")]
        if outcome is None
        else Outcome(_one_of([known.value for known in Outcome], outcome, "outcome")),
        reason=str(data.get("reason", "")),
        samples_ms=tuple(
            scale * positive(ms) for ms in of_kind(list, times.get("runtimes", []), "runtimes")
        ),
        compile_s=_seconds(times.get("compilation"), scale),
        evaluate_s=_seconds(times.get("benchmark"), scale),
        timestamp=str(data.get("timestamp", "")),
        measurements=values,
    )
    if result.outcome.timed and not result.samples_ms:
        raise ValueError(f"a config that is {result.outcome.value} has no runtimes")
    return result


def _value(value: object) -> Value:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, (bool, int, str)) else str(value)


def of_kind(kind: type[T], value: object, name: str) -> T:
    """`value`, if it is an object or a list, as `kind` says; else a ValueError, one sentence."""
    if not isinstance(value, kind):
        wanted = "a list" if kind is list else "an object"
        raise ValueError(f"{name} is {shown(value)}, but must be {wanted}")
    return value


def _one_of(known: Collection[str], value: object, name: str) -> str:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} is {shown(value)}, but must be one of {', '.join(known)}")
    return value


def positive(value: object) -> float:
    # Within these bounds no figure that is computed from a time overflows.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1e-9 <= value <= 1e12:
        raise ValueError(f"a time is {shown(value)}, but must be a number from 1e-9 to 1e12")
    return float(value)


def _seconds(value: object, scale: float) -> float | None:
    return value * scale / 1e3 if isinstance(value, (int, float)) else None
