"""What a search makes small: the time of a launch among many, or of a single one.

Both are milliseconds of the same kernels, and nothing but a mark tells them apart. So a database
holds figures of one objective, and whatever was measured for latency says so: its trials in their
reason, its records in their note.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.trial import Outcome

if TYPE_CHECKING:
    from tuner.store.database import Store

OBJECTIVES = ("throughput", "latency")
MARK = "single launches with a cold L2"


def conflict(store: Store, objective: str) -> str | None:
    """Why measurements for `objective` must not go to `store`; None if they may.

    Raises:
        StoreError: it cannot be read.
    """
    marks = [MARK in record.note for record in store.records() if record.origin == "cuda"]
    marks += [
        MARK in trial.reason for trial in store.trials(origin="cuda") if trial.outcome is Outcome.OK
    ]
    if all(mark == (objective == "latency") for mark in marks):
        return None
    other = next(name for name in OBJECTIVES if name != objective)
    return f"{store.location} holds measurements for {other}, not {objective}"
