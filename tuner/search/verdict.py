"""The finals of one problem, and the record that comes of them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from statistics import median, quantiles

from tuner.evaluate.executor import Race
from tuner.record import Record, Rival
from tuner.search import finals
from tuner.search.events import FinalsStarted, Observer
from tuner.search.exploration import Exploration, utc_now
from tuner.trial import Candidate, Outcome

# The fastest of the exploration that reach the finals; the default and the incumbent join them.
FINALISTS = 4


def crown(
    exploration: Exploration, records: Iterable[Record], rounds: int, observer: Observer
) -> Record | None:
    """Race the finalists and return the winner's record, None if there is no finalist.

    Only candidates that passed the correctness gate in a trial of this kernel version race. An
    incumbent that raced is superseded by the verdict, even when its own, older figure was better.
    """
    executor = exploration.executor
    incumbent = _incumbent(exploration, records)
    ranked = [trial.candidate for trial in exploration.ranking()]
    entrants = ranked[:FINALISTS]
    default = next((c for c in exploration.defaults if c in ranked), None)
    for extra in (default, incumbent and incumbent.candidate):
        if extra is not None and extra in ranked and extra not in entrants:
            entrants.append(extra)
    if not entrants:
        return None
    observer(FinalsStarted(exploration.problem, len(entrants), rounds))
    began = time.monotonic()
    race = executor.race(exploration.problem, entrants, rounds).result()
    exploration.seconds = replace(exploration.seconds, finals=time.monotonic() - began)
    if not race.entrants:
        for reason in race.dropped.values():
            exploration.reasons[f"{Outcome.CRASHED.value}: {reason}"] += 1
        return None
    return _record(exploration, race, default, incumbent)


def _incumbent(exploration: Exploration, records: Iterable[Record]) -> Record | None:
    target = exploration.executor.target
    key = (exploration.problem, target.hardware.key, target.triton)
    for record in records:
        # A replay never displaces what was measured.
        if record.key == key and record.origin == exploration.executor.origin:
            return record
    return None


def _record(
    exploration: Exploration, race: Race, default: Candidate | None, incumbent: Record | None
) -> Record:
    executor, problem = exploration.executor, exploration.problem
    verdict = finals.decide(race.entrants, default, exploration.candidates.rank)
    winner = verdict.winner
    trial = exploration.trials[winner].measurement
    measurement = race.entrants[winner]
    if trial is not None:
        measurement = replace(measurement, max_diff=trial.max_diff)
    supersedes: tuple[str, ...] = ()
    if incumbent is not None and (
        incumbent.candidate in race.entrants
        or incumbent.template_version
        != executor.template_version(problem, incumbent.candidate.template)
    ):
        supersedes = (incumbent.uid, *incumbent.supersedes)
    return Record(
        problem=problem,
        target=executor.target,
        candidate=winner,
        template_version=executor.template_version(problem, winner.template),
        measurement=measurement,
        origin=executor.origin,
        measured_at=utc_now(),
        default_ms=race.entrants[default].median_ms
        if default and default in race.entrants
        else None,
        margin=verdict.margin,
        rivals=tuple(
            Rival(str(c), race.entrants[c].median_ms, race.entrants[c].spread)
            for c in verdict.order
            if c != winner
        ),
        peers=tuple(
            sorted(
                (Rival(name, median(ms), _spread(ms)) for name, ms in race.peers.items() if ms),
                key=lambda peer: peer.median_ms,
            )
        ),
        tied=tuple(map(str, verdict.tied)),
        note=_note(verdict, default),
        supersedes=supersedes,
    )


def _note(verdict: finals.Verdict, default: Candidate | None) -> str:
    if verdict.kept_default:
        return "the default is kept: no candidate was faster beyond the noise"
    if verdict.tied:
        return f"tied with {len(verdict.tied)} more"
    if verdict.winner == default:
        return "the default is the fastest"
    return ""


def _spread(samples: tuple[float, ...]) -> float:
    if len(samples) < 2:
        return 0.0
    low, _, high = quantiles(samples, n=4)
    return (high - low) / median(samples)
