"""The winner for a problem on a target, with its evidence."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kernels.attention.problem import Problem
from tuner.target import Target
from tuner.trial import Candidate, Measurement, Origin


@dataclass(frozen=True)
class Rival:
    """Another candidate, or a peer library, in the finals that decided a record."""

    name: str  # a candidate's text, or a peer such as "cudnn"
    median_ms: float
    spread: float


@dataclass(frozen=True)
class Record:
    """The verdict of one search.

    Records are never changed: a later verdict is a record of its own that names those it raced and
    replaced in `supersedes`. A database is thus a set of records, merging is set union, and which
    stands is a function of the set (`tuner.standing`): no order of writers, imports or merges can
    lose one or matter.
    """

    problem: Problem
    target: Target
    candidate: Candidate
    template_version: str
    measurement: Measurement
    origin: Origin
    measured_at: str  # UTC, ISO 8601, seconds
    default_ms: float | None = None  # the template's default in the same rounds
    margin: float | None = None  # by which the runner-up is slower in the same rounds
    rivals: tuple[Rival, ...] = ()  # the other finalists, fastest first
    peers: tuple[Rival, ...] = ()  # SDPA backends in the same rounds, where they ran
    tied: tuple[str, ...] = ()  # finalists that another race might crown
    note: str = ""  # e.g. that the default was kept
    supersedes: tuple[str, ...] = ()  # uids this verdict replaced, and those they had
    uid: str = field(default="")

    def __post_init__(self) -> None:
        if not self.uid:
            object.__setattr__(self, "uid", self.digest())

    def digest(self) -> str:
        """Sixteen hex digits over the content: the same record has the same uid everywhere."""
        content = asdict(replace(self, uid="-"))
        content["candidate"]["config"] = self.candidate.config.key
        text = json.dumps(_canonical(content), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def key(self) -> tuple[Problem, str, str]:
        """What at most one record stands for: problem, hardware, Triton version.

        Each Triton version keeps its own record, since the optimum moves between them."""
        return self.problem, self.target.hardware.key, self.target.triton


def _canonical(value: Any) -> Any:
    """One spelling for equal content: 1.0 is 1, and what is empty is left out, so that a field that
    is added to records later does not change the uids of older ones."""
    if isinstance(value, dict):
        return {
            name: _canonical(item)
            for name, item in value.items()
            if not (item is None or item == "" or item == ())
        }
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
