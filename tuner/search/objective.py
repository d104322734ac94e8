"""What a search makes small: the time of a launch among many, or of a single one.

Both are milliseconds of the same kernels, and nothing but a mark tells them apart. So a database
holds figures of one objective, and whatever was measured for latency says so: its trials in their
reason, its records in their note.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tuner.record import Record
from tuner.trial import Outcome, Trial

if TYPE_CHECKING:
    from tuner.store.database import Store

OBJECTIVES = ("throughput", "latency")
MARK = "single launches with a cold L2"


def measured_for(records: Iterable[Record], trials: Iterable[Trial] = ()) -> set[str]:
    """The objectives of what of these was measured on a GPU."""
    marked = {MARK in record.note for record in records if record.origin == "cuda"}
    marked |= {
        MARK in trial.reason
        for trial in trials
        if trial.origin == "cuda" and trial.outcome is Outcome.OK
    }
    return {"latency" if mark else "throughput" for mark in marked}


def conflict(store: Store, objective: str) -> str | None:
    """Why measurements for `objective` must not go to `store`; None if they may.

    Raises:
        StoreError: it cannot be read.
    """
    if measured_for(store.records(), store.trials(origin="cuda")) <= {objective}:
        return None
    other = next(name for name in OBJECTIVES if name != objective)
    return f"{store.location} holds measurements for {other}, not {objective}"
