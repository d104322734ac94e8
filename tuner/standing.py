"""Which of several records stands: one rule, for all that show, serve, merge or continue them."""

from __future__ import annotations

from collections.abc import Iterable

from kernels.attention.problem import Problem
from tuner.liveness import alive
from tuner.record import Record


def standing(records: Iterable[Record]) -> dict[tuple[Problem, str, str], Record]:
    """The record that stands for each key, whatever the order of `records`.

    Superseded ones fall first: who lost a race against a later verdict stays out even if its own
    figure, from another day, is higher (else noise would ratchet upwards). Among the rest, which
    never met, one that is `alive` comes first, since the figure of a kernel that is no more cannot
    be had; then a measured one beats a replayed one, then the faster one wins, then the smaller
    uid.
    """
    records = list(records)
    fallen = superseded(records)
    groups: dict[tuple[Problem, str, str], list[Record]] = {}
    for record in sorted(records, key=_precedence):
        if record.uid not in fallen:
            groups.setdefault(record.key, []).append(record)
    # Asked of those alone that have company: it takes a look at the kernel.
    return {
        key: next(filter(alive, group), group[0]) if len(group) > 1 else group[0]
        for key, group in groups.items()
    }


def superseded(records: Iterable[Record]) -> set[str]:
    """The uids among `records` that a later verdict replaced.

    A verdict counts only against records of its own key, and a replayed one never against a
    measured one: it cannot have raced it on a card.
    """
    records = list(records)
    known = {record.uid: record for record in records}
    return {
        uid
        for verdict in records
        for uid in verdict.supersedes
        if (loser := known.get(uid)) is not None
        and loser.key == verdict.key
        and (verdict.origin == "cuda" or loser.origin == "replay")
    }


def _precedence(record: Record) -> tuple[bool, float, str]:
    return record.origin == "replay", record.measurement.median_ms, record.uid
