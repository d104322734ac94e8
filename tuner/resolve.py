"""Which config serves a problem on a target, and why. Pure: no database, no GPU, no clock.

Sources, first that applies:
    exact    a record of this very problem and hardware, by this Triton and this kernel
    nearest  the same, for a seqlen within 2× and batch·heads within 4×
    stale    exact or nearest, but by another Triton or an older kernel: a hint, to be tuned again
    family   a record of other hardware of the same compute capability
    default  the default of the first template that serves it

`pinned` is not found here: somebody said so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log2
from typing import Literal

from kernels.attention import registry
from kernels.attention.problem import Problem, ratio
from tuner.liveness import current, refusal, revived
from tuner.record import Record
from tuner.target import Target
from tuner.trial import Candidate

Source = Literal["exact", "nearest", "stale", "family", "default", "pinned"]

# Beyond these a neighbour's winner is worth less than the default: measured elsewhere, another
# shape's winner reached anything from 5 to 100 % of the optimum.
MAX_SEQLEN_RATIO = 2.0
MAX_BATCH_HEADS_RATIO = 4.0


@dataclass(frozen=True)
class Resolution:
    source: Source
    candidate: Candidate
    reason: str  # one sentence
    record: Record | None = None  # None for a default
    seqlen_ratio: float = 1.0  # of problem and record, at least 1
    batch_heads_ratio: float = 1.0


def resolve(records: Iterable[Record], target: Target, problem: Problem) -> Resolution:
    """The candidate for `problem` on `target`, from standing records.

    A record whose template is unknown, does not serve this target, or rejects the record's config
    is passed over: what comes from a database is checked against the space before it can launch.

    Raises:
        LookupError: no template serves this problem on this target.
    """
    capability = target.hardware.capability
    near = [
        near
        for record in records
        if record.target.hardware.capability == capability
        and (near := _near(record, target, problem)) is not None
    ]
    refused = ""
    for resolution in sorted(near, key=_order):
        why = refusal(resolution.candidate, problem, capability)
        if why is None:
            return resolution
        refused = refused or _refused(resolution, problem, why)
    return _default(problem, capability, refused)


def _refused(resolution: Resolution, problem: Problem, why: str) -> str:
    assert resolution.record is not None
    mine, template = resolution.record.problem, resolution.candidate.template
    what = "a record of this problem" if mine == problem else f"the neighbour {mine}"
    return f"{what} is there, but the {template} kernel refuses its config: {why}"


def fresh(record: Record, target: Target) -> bool:
    """Whether `record` speaks for the installed Triton and the kernel as it is now."""
    return record.target.triton == target.triton and current(record)


def _near(record: Record, target: Target, problem: Problem) -> Resolution | None:
    mine = record.problem
    if mine.specialization != problem.specialization:
        return None
    seqlen_ratio = ratio(mine.seqlen, problem.seqlen)
    batch_heads_ratio = ratio(mine.batch * mine.heads, problem.batch * problem.heads)
    if seqlen_ratio > MAX_SEQLEN_RATIO or batch_heads_ratio > MAX_BATCH_HEADS_RATIO:
        return None
    source, reason = _judge(record, target, problem)
    candidate = revived(record.candidate)
    return Resolution(source, candidate, reason, record, seqlen_ratio, batch_heads_ratio)


def _judge(record: Record, target: Target, problem: Problem) -> tuple[Source, str]:
    here = record.problem == problem
    what = "this problem" if here else f"the neighbour {record.problem}"
    if record.target.hardware != target.hardware:
        return "family", f"{what} was tuned on {record.target.hardware}, this is {target.hardware}"
    if record.target.triton != target.triton:
        return "stale", (
            f"{what} was tuned under Triton {record.target.triton}, this is {target.triton}"
        )
    if not current(record):
        return "stale", f"{what} was tuned on an older {record.candidate.template} kernel"
    return ("exact" if here else "nearest"), f"{what} was tuned on {record.measured_at[:10]}"


_RANK: dict[Source, int] = {"exact": 0, "nearest": 1, "stale": 2, "family": 3}


def _order(resolution: Resolution) -> tuple[int, float, float, float, str]:
    record = resolution.record
    assert record is not None
    return (
        _RANK[resolution.source],
        log2(resolution.seqlen_ratio),
        log2(resolution.batch_heads_ratio),
        record.measurement.median_ms / record.problem.flops,
        record.uid,
    )


def _default(problem: Problem, capability: int, refused: str) -> Resolution:
    refusals = []
    for name in registry.names():
        template = registry.get(name)
        unserved = template.supports(problem.specialization, capability)
        if unserved is None:
            return Resolution(
                "default",
                Candidate(name, template.default(problem, capability)),
                refused
                or f"no record within {MAX_SEQLEN_RATIO:g}× of the seqlen and "
                f"{MAX_BATCH_HEADS_RATIO:g}× of batch·heads for this headdim, mask and dtype on "
                f"any sm_{capability}",
            )
        refusals.append(f"{name}: {unserved}")
    # Without the sizes, on which it does not depend: the runtime says each reason once.
    what = f"D{problem.headdim} {'causal' if problem.causal else 'full'} {problem.dtype}"
    raise LookupError(f"no template serves {what} on sm_{capability} ({'; '.join(refusals)})")
