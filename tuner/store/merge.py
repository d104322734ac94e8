"""Union of databases and documents, and a report of what it changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tuner.record import Record, standing
from tuner.store.database import Store


@dataclass(frozen=True)
class MergeReport:
    """What a merge did. Every given record is in the database afterwards, whatever stands."""

    added: tuple[Record, ...]
    already_there: int
    now_standing: tuple[Record, ...]  # those added that stand
    replaced: tuple[Record, ...]  # those that stood and no longer do


def merge(into: Store, records: Iterable[Record]) -> MergeReport:
    """Add `records`, from documents or other databases, to `into`.

    The order of merges does not matter, and a repeated one changes nothing.

    Raises:
        StoreError: `into` cannot be read or written.
    """
    given = {record.uid: record for record in records}
    before = standing(into.records())
    added = into.add_records(given.values())
    after = {record.uid for record in standing(into.records()).values()}
    return MergeReport(
        added=tuple(added),
        already_there=len(given) - len(added),
        now_standing=tuple(record for record in added if record.uid in after),
        replaced=tuple(record for record in before.values() if record.uid not in after),
    )
