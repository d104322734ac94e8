"""Union of databases and documents, and a report of what it changed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.moments import tomorrow
from tuner.record import Record
from tuner.standing import standing
from tuner.store.database import Store
from tuner.store.errors import StoreError
from tuner.store.exchange import read_document
from tuner.store.sqlite import looks_like_database
from tuner.store.wire import encode
from tuner.trial import Trial


@dataclass(frozen=True)
class MergeReport:
    """What a merge did. Every given record is in the database afterwards, whatever stands."""

    added: tuple[Record, ...]
    already_there: int
    now_standing: tuple[Record, ...]  # those added that stand
    replaced: tuple[Record, ...]  # those that stood and no longer do
    trials: int = 0  # that are new, or newer than what was there

    def to_json(self) -> dict[str, Any]:
        """The report in JSON's types, records by their uids."""
        return {
            "added": [record.uid for record in self.added],
            "already_there": self.already_there,
            "now_standing": [record.uid for record in self.now_standing],
            "replaced": [record.uid for record in self.replaced],
        }


@dataclass(frozen=True)
class Contents:
    """What a database or document holds."""

    location: str  # what messages call it
    records: tuple[Record, ...]
    trials: tuple[Trial, ...] = ()  # a document has none


def contents(location: str | Path) -> Contents:
    """All that is in `location`, a database (path or URL) or an exported document.

    Raises:
        StoreError: it is neither, or cannot be read, or claims to be of the future, which would
            hide whatever is measured until then.
    """
    if "://" in str(location) or _is_database(Path(location)):
        with Store.read_only(location) as store:
            held = Contents(store.location, tuple(store.records()), tuple(store.trials()))
    else:
        held = Contents(str(location), tuple(read_document(location)))
    latest = tomorrow()
    items: tuple[Record | Trial, ...] = (*held.records, *held.trials)
    for item in items:
        if item.measured_at > latest:
            kind = type(item).__name__.lower()
            raise StoreError(
                f"{held.location} holds a {kind} of {item.measured_at}, but must have none of "
                f"later than a day from now, {latest}"
            )
    return held


def _is_database(path: Path) -> bool:
    # SQLite takes an empty file for a database without tables, and so do the other commands.
    if not path.is_file():  # what is read of a pipe to tell is gone from it
        return False
    return (path.suffix != ".json" and path.stat().st_size == 0) or looks_like_database(path)


def merge(into: Store, records: Iterable[Record], trials: Iterable[Trial] = ()) -> MergeReport:
    """Add `records` and `trials`, from documents or other databases, to `into`: all or none.

    The order of merges does not matter, and a repeated one changes nothing.

    Raises:
        StoreError: `into` cannot be read or written.
    """
    given = {record.uid: record for record in records}
    newer = _newer(into, trials)
    before = standing(into.records())
    added = into.add_all(given.values(), newer)
    after = {record.uid for record in standing(into.records()).values()}
    return MergeReport(
        added=tuple(added),
        already_there=len(given) - len(added),
        now_standing=tuple(record for record in added if record.uid in after),
        replaced=tuple(record for record in before.values() if record.uid not in after),
        trials=len(newer),
    )


def _newer(into: Store, trials: Iterable[Trial]) -> list[Trial]:
    """Those of `trials` that are new to `into` or take the place of an older one there. Of several
    of the same candidate the latest is kept; of equally late ones always the same, in whatever
    order they come."""
    trials = list(trials)
    if not trials:
        return []
    latest = tomorrow()
    there = {trial.key: trial for trial in into.trials() if trial.measured_at <= latest}
    kept: dict[tuple[object, ...], Trial] = {}
    for trial in trials:
        rival = kept.get(trial.key) or there.get(trial.key)
        if rival is None or _seniority(rival) < _seniority(trial):
            kept[trial.key] = trial
    return list(kept.values())


def _seniority(trial: Trial) -> Any:
    return trial.measured_at, json.dumps(encode(trial), sort_keys=True)
