"""Figures that are none, such as a time of NaN: the fault of the candidate or of the peer that they
are of, whoever measured them, and never the end of a search.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from tuner.evaluate.executor import Evaluation, Race
from tuner.store import wire
from tuner.trial import Measurement, Outcome


def credible_evaluation(evaluated: Evaluation) -> Evaluation:
    """`evaluated`; crashed if what it measured could not be kept."""
    if evaluated.measurement is None:
        return evaluated
    why = wire.refusal(evaluated.measurement)
    if not why:
        return evaluated
    return replace(evaluated, outcome=Outcome.CRASHED, reason=why, measurement=None)


def credible_race(race: Race) -> Race:
    """`race` without the entrants and peers whose rounds cannot be compared, and why they are
    not there."""
    dropped = {
        candidate: why
        for candidate, measurement in race.entrants.items()
        if (why := _refusal(measurement, race.compared(candidate)))
    }
    absent = {name: why for name, ms in race.peers.items() if (why := _rounds_refusal(ms))}
    if not dropped and not absent:
        return race
    return replace(
        race,
        entrants={c: measured for c, measured in race.entrants.items() if c not in dropped},
        deciding={c: ms for c, ms in race.deciding.items() if c not in dropped},
        dropped={**race.dropped, **dropped},
        peers={name: ms for name, ms in race.peers.items() if name not in absent},
        absent={**race.absent, **absent},
    )


def _refusal(measurement: Measurement, deciding_ms: Iterable[float]) -> str:
    return (
        wire.refusal(measurement)
        or _rounds_refusal(measurement.samples_ms)
        or _rounds_refusal(deciding_ms)
    )


def _rounds_refusal(samples_ms: Iterable[float]) -> str:
    """Why these are no rounds; empty if they are."""
    samples = tuple(samples_ms)
    for ms in samples:
        if not 0.0 < ms < math.inf:
            return f"a round was timed at {ms} ms"
    return "" if samples else "no round was timed"
