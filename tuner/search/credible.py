"""Figures that are none, such as a time of NaN: the fault of the candidate or of the peer that they
are of, whoever measured them, and never the end of a search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tuner.evaluate.executor import Evaluation, Race
from tuner.store import wire
from tuner.trial import Outcome


def credible_evaluation(evaluated: Evaluation) -> Evaluation:
    """`evaluated`; crashed if it was timed, but what was measured is not there or could not be
    kept."""
    if not evaluated.outcome.timed and evaluated.measurement is None:
        return evaluated
    why = "nothing was measured"
    if evaluated.measurement is not None:
        why = wire.refusal(evaluated.measurement)
    if not why:
        return evaluated
    return replace(evaluated, outcome=Outcome.CRASHED, reason=why, measurement=None)


def credible_race(race: Race) -> Race:
    """`race` without the entrants and peers whose rounds are none, and why they are not there. Of
    what decides, the rounds before the first that is none, the same for all if someone left."""
    dropped = {
        candidate: why
        for candidate, measurement in race.entrants.items()
        if (why := wire.refusal(measurement) or _refusal(measurement.samples_ms))
    }
    absent = {name: why for name, ms in race.peers.items() if (why := _refusal(ms))}
    deciding = {c: ms for c, ms in race.deciding.items() if c not in dropped}
    sound = {c: _sound(ms) for c, ms in deciding.items()}
    if dropped or any(sound[c] < len(ms) for c, ms in deciding.items()):
        common = min(sound.values(), default=0)
        deciding = {c: ms[:common] for c, ms in deciding.items() if common}
    return replace(
        race,
        entrants={c: measured for c, measured in race.entrants.items() if c not in dropped},
        deciding=deciding,
        dropped={**race.dropped, **dropped},
        peers={name: ms for name, ms in race.peers.items() if name not in absent},
        absent={**race.absent, **absent},
    )


def _refusal(samples_ms: Sequence[float]) -> str:
    """Why these are no rounds; empty if they are."""
    if not samples_ms:
        return "no round was timed"
    sound = _sound(samples_ms)
    return "" if sound == len(samples_ms) else f"a round was timed at {samples_ms[sound]} ms"


def _sound(samples_ms: Sequence[float]) -> int:
    """How many rounds there are before the first that is none."""
    return next((n for n, ms in enumerate(samples_ms) if not 0.0 < ms < math.inf), len(samples_ms))
