"""Recorded spaces: every config of a template on one problem and target, in one compressed file.

The format is T4 of the autotuning community (JSON; one result per config, failures included), so
that their tools read our files. What T4 does not name (outcome, reason, template, target, peers)
stands beside its own fields.
"""

from __future__ import annotations

import gzip
import json
import lzma
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from kernels.attention.config import Config
from kernels.attention.printable import printable, shown
from kernels.attention.problem import Problem
from kernels.attention.template import Resources
from tuner.evaluate import wire
from tuner.evaluate.t4 import (
    INVALIDITY,
    SCHEMA_VERSION,
    SUFFIXES,
    Result,
    SpaceError,
    decompressed,
    of_kind,
    positive,
    read_results,
)
from tuner.evaluate.timing import spread
from tuner.files import replacing
from tuner.liveness import revived
from tuner.target import Hardware, Target
from tuner.trial import Candidate, Measurement, Outcome, Trial

# The metadata of our files come first and fit in here, so that a folder is listed fast.
_HEAD_BYTES = 64 << 10

_MOST_CHARACTERS = 2000
_MOST_NUMBER = 2**53
_ROUNDED = 0.999  # what a figure may have lost by being written with few digits
_LEAST_MHZ, _MOST_MHZ = 50, 10_000  # of an SM, by two medians of the same samples


@dataclass(frozen=True)
class Header:
    """What a space of ours was recorded on, and how."""

    problem: Problem
    target: Target
    template: str
    template_version: str
    recorded_at: str  # UTC, ISO 8601, when the last trial ended
    method: str = ""
    peers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # ms, by library


@dataclass(frozen=True)
class RecordedSpace:
    """One file of ours; its results are read when asked for."""

    path: Path
    header: Header

    @cached_property
    def trials(self) -> Mapping[Config, Trial]:
        """A trial per config.

        Raises:
            SpaceError: the file is damaged.
        """
        trials = {}
        for result in read_results(self.path):
            try:
                trial = self._trial(result)
            except ValueError as error:
                of = printable(str(result.config))
                raise SpaceError(f"{self.path} is damaged: of {of}: {error}") from None
            trials[trial.candidate.config] = trial
        if counted(trials):
            return trials
        # Some by cycles and some by time: they are comparable by time alone.
        return {config: _without_cycles(trial) for config, trial in trials.items()}

    def check(self, accept: Callable[[Trial], object]) -> None:
        """Read the whole file, and make sure that every trial is one to `accept`.

        Args:
            accept: raises a ValueError, one sentence, for what may not be kept as a trial.

        Raises:
            SpaceError: the file is damaged, or holds a trial that is not accepted.
            OSError: it cannot be read.
        """
        if not self.trials:
            raise SpaceError(f"{self.path} is no recorded space of ours: it has no results")
        for config, trial in self.trials.items():
            try:
                accept(trial)
            except ValueError as error:
                of = printable(str(config))
                raise SpaceError(
                    f"{self.path} is no recorded space of ours: of {of}: {error}"
                ) from None

    def _trial(self, result: Result) -> Trial:
        header, values = self.header, result.measurements
        resources = measurement = None
        if values.keys() >= {"registers", "spills", "shared_memory"}:
            resources = Resources(
                int(values["registers"]), int(values["spills"]), int(values["shared_memory"])
            )
        if result.samples_ms:
            median_ms = _time(values.get("time"), result.samples_ms)
            measurement = Measurement(
                median_ms=median_ms,
                spread=spread(result.samples_ms),
                samples_ms=result.samples_ms,
                tflops=header.problem.tflops(median_ms),
                max_diff=values.get("max_diff", math.nan),
                sm_clock_mhz=_whole(values.get("sm_clock")),
                power_w=_whole(values.get("power")),
                cycles=_cycles(values.get("cycles"), median_ms),
            )
        return Trial(
            problem=header.problem,
            target=header.target,
            candidate=revived(Candidate(header.template, result.config)),
            template_version=header.template_version,
            outcome=result.outcome,
            origin="replay",
            measured_at=result.timestamp or header.recorded_at,
            reason=result.reason,
            measurement=measurement,
            resources=resources,
            compile_s=result.compile_s,
            evaluate_s=result.evaluate_s,
        )


def _time(stated_ms: float | None, samples_ms: Sequence[float]) -> float:
    """What is stated, if the samples say so; what they say, if nothing is."""
    if stated_ms is None:
        return median(samples_ms)
    least, most = min(samples_ms), max(samples_ms)
    if not _ROUNDED * least <= stated_ms <= most / _ROUNDED:
        raise ValueError(
            f"time is {stated_ms:g} ms, but must be among its runtimes of {least:g} to {most:g} ms"
        )
    return stated_ms


def _cycles(count: float | None, ms: float) -> float | None:
    """`count`, if a clock may have made so many in the time."""
    if count is not None and not _LEAST_MHZ < count / ms / 1e3 < _MOST_MHZ:
        raise ValueError(
            f"cycles is {count:g}, but must be what a clock of {_LEAST_MHZ} to {_MOST_MHZ} MHz "
            f"makes in {ms:g} ms"
        )
    return count


def counted(trials: Mapping[Config, Trial]) -> bool:
    """Whether all that was right has cycles."""
    right = (trial.measurement for trial in trials.values() if trial.outcome is Outcome.OK)
    return all(measured and measured.cycles for measured in right)


def _without_cycles(trial: Trial) -> Trial:
    measured = trial.measurement
    return trial if measured is None else replace(trial, measurement=replace(measured, cycles=None))


def file_name(problem: Problem, template: str, target: Target) -> str:
    """The usual name of a space; only what is inside the file counts."""
    return f"{str(problem).replace(' ', '-')}.{template}.{target.hardware.key}.json.xz"


def write_space(
    path: Path,
    trials: Iterable[Trial],
    peers: Mapping[str, Iterable[float]] | None = None,
    method: str = "",
) -> RecordedSpace:
    """Write the trials of one template on one problem and target; the last one of a config counts.

    What a static rule rejected is left out: the rule rejects it again.

    Args:
        path: ends in .json.xz, .json.gz or .json.
        peers: ms per round, by library.
        method: one sentence on how it was measured.

    Raises:
        SpaceError: there is no trial, or they are not of one template, problem and target.
        OSError: the file cannot be written.
    """
    kept: dict[str, Trial] = {}
    for trial in sorted(trials, key=lambda trial: trial.measured_at):
        if trial.outcome is not Outcome.REJECTED:
            kept[trial.candidate.config.key] = trial
    kinds = {(t.problem, t.target, t.candidate.template, t.template_version) for t in kept.values()}
    if len(kinds) != 1:
        raise SpaceError(
            f"{path} cannot be written: {len(kinds)} combinations of problem, target, template and "
            "version are given, but a space is of exactly one"
        )
    problem, target, template, version = kinds.pop()
    header = Header(
        problem, target, template, version,
        recorded_at=max(trial.measured_at for trial in kept.values()),
        method=method,
        peers={name: tuple(samples) for name, samples in (peers or {}).items()},
    )  # fmt: skip
    document = {
        "schema_version": SCHEMA_VERSION,
        "metadata": _metadata(header),
        "results": [_result(kept[key]) for key in sorted(kept)],
    }
    data = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    if path.name.endswith(".xz"):
        data = lzma.compress(data, preset=9)
    elif path.name.endswith(".gz"):
        data = gzip.compress(data, mtime=0)  # no date inside: the same trials, the same bytes
    with replacing(path) as part:
        part.write_bytes(data)
    return RecordedSpace(path, header)


def read_folder(folder: Path) -> list[RecordedSpace]:
    """The spaces in a folder, in the order of their names; reads their heads only.

    Raises:
        SpaceError: a file that is named like one is none; one sentence.
        OSError: the folder or a file cannot be read.
    """
    return [
        read_space(path)
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name.endswith(SUFFIXES) and path.name[0] != "."
    ]


def read_space(path: Path) -> RecordedSpace:
    """A space of ours; reads its head only.

    Raises:
        SpaceError: the file is none; one sentence.
        OSError: it cannot be read.
    """
    head = decompressed(path, _HEAD_BYTES, whole=False)
    text = head.decode(errors="replace")
    try:
        _, there, rest = text.partition('"metadata":')
        if not there:
            raise ValueError('it lacks "metadata"')
        metadata, _ = json.JSONDecoder().raw_decode(rest.lstrip())
        return RecordedSpace(path, _header(of_kind(dict, metadata, "metadata")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        detail = f"{error} is missing" if isinstance(error, KeyError) else error
        raise SpaceError(f"{path} is no recorded space of ours: {detail}") from None


def _metadata(header: Header) -> dict[str, Any]:
    target = header.target
    return {
        "timeunit": "ms",
        "hardware": target.gpu_name,
        "problem": wire.problem_to_json(header.problem),
        "target": wire.target_to_json(target),
        "template": header.template,
        "template_version": header.template_version,
        "recorded_at": header.recorded_at,
        "method": header.method,
        "peers": {name: [_short(ms) for ms in samples] for name, samples in header.peers.items()},
    }


def _header(data: Mapping[str, Any]) -> Header:
    peers = {
        _text(name, "a peer's name"): tuple(
            map(positive, of_kind(list, ms, f"times of {shown(name)}"))
        )
        for name, ms in of_kind(dict, data.get("peers", {}), "peers").items()
    }
    if not all(peers.values()):
        raise ValueError("a peer has no times")
    target = _fields(Target, data["target"], "target")
    hardware = _fields(Hardware, target["hardware"], "hardware")
    for name, value in hardware.items():
        fits = isinstance(value, int) and not isinstance(value, bool)
        if not fits or not (name == "sm_count") <= value < _MOST_NUMBER:
            raise ValueError(
                f"{name} is {shown(value)}, but must be a whole number that hardware has"
            )
    for name in target.keys() - {"hardware"}:
        _text(target[name], name)
    return Header(
        problem=wire.problem_from_json(_fields(Problem, data["problem"], "problem")),
        target=wire.target_from_json(target),
        template=_text(data["template"], "template"),
        template_version=_text(data["template_version"], "template_version"),
        recorded_at=_text(data["recorded_at"], "recorded_at"),
        method=_text(data.get("method", ""), "method"),
        peers=peers,
    )


def _fields(kind: type[Any], data: object, name: str) -> Mapping[str, Any]:
    wanted = [field.name for field in fields(kind)]
    if not isinstance(data, dict) or data.keys() != set(wanted):
        found = ", ".join(data) if isinstance(data, dict) else data
        raise ValueError(f"{name} has {shown(found)}, but must have {', '.join(wanted)}")
    return data


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or printable(value, _MOST_CHARACTERS) != value:
        raise ValueError(
            f"{name} is {shown(value)}, but must be a text of at most {_MOST_CHARACTERS} "
            "characters, none of which steers a terminal"
        )
    return value


def _result(trial: Trial) -> dict[str, Any]:
    measured, resources = trial.measurement, trial.resources
    values: list[tuple[str, float | int | None, str]] = []
    times: dict[str, Any] = {
        "compilation": _short(1e3 * (trial.compile_s or 0)),
        "framework": 0,
        "search_algorithm": 0,
        "validation": 0,
    }
    if trial.evaluate_s is not None:
        times["benchmark"] = _short(1e3 * trial.evaluate_s)
    if measured is not None:
        times["runtimes"] = [_short(ms) for ms in measured.samples_ms]
        values += [
            ("time", _short(measured.median_ms), "ms"),
            ("tflops", _short(measured.tflops), "TFLOP/s"),
            ("max_diff", _short(measured.max_diff), ""),
            ("sm_clock", measured.sm_clock_mhz, "MHz"),
            ("power", measured.power_w, "W"),
            ("cycles", measured.cycles and round(measured.cycles), ""),
        ]
    if resources is not None:
        values += [
            ("registers", resources.registers, ""),
            ("spills", resources.spills, "B"),
            ("shared_memory", resources.shared_memory, "B"),
        ]
    result: dict[str, Any] = {
        "timestamp": trial.measured_at,
        "configuration": dict(trial.candidate.config),
        "times": times,
        "invalidity": INVALIDITY[trial.outcome],
        "correctness": int(measured is not None),
        "measurements": [
            {"name": name, "value": value, "unit": unit}
            for name, value, unit in values
            if value is not None
        ],
        "objectives": ["time"],
        "outcome": trial.outcome.value,
    }
    if trial.reason:
        result["reason"] = trial.reason
    return result


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _short(value: float) -> float:
    """Five digits: a hundredth of the noise, at half the size."""
    return float(f"{value:.5g}")
