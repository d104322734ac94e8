"""The finals of one problem, and the record that comes of them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future
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


class Finals:
    """The race of a problem's finalists, under way; or none, where nothing succeeded.

    Only candidates that passed the correctness gate in a trial of this kernel version race. An
    incumbent that raced is superseded by the verdict, even when its own, older figure was better.
    """

    def __init__(
        self, exploration: Exploration, records: Iterable[Record], rounds: int, observer: Observer
    ) -> None:
        self._exploration = exploration
        self._incumbent = _incumbent(exploration, records)
        ranked = [trial.candidate for trial in exploration.ranking()]
        entrants = ranked[:FINALISTS]
        self._default = next((c for c in exploration.defaults if c in ranked), None)
        for extra in (self._default, self._incumbent and self._incumbent.candidate):
            if extra is not None and extra in ranked and extra not in entrants:
                entrants.append(extra)
        self._race: Future[Race] | None = None
        self._ended: float | None = None
        if entrants:
            observer(FinalsStarted(exploration.problem, len(entrants), rounds))
            self._began = time.monotonic()
            self._race = exploration.executor.race(exploration.problem, entrants, rounds)
            self._race.add_done_callback(lambda _: self._stop())

    @property
    def done(self) -> bool:
        """Whether `record` would answer at once."""
        return self._race is None or self._race.done()

    def record(self) -> Record | None:
        """Wait for the race, and return the winner's record; None if there is no winner."""
        if self._race is None:
            return None
        race = self._race.result()
        exploration = self._exploration
        ended = self._ended or time.monotonic()  # whoever waits may be told before we are
        exploration.seconds = replace(exploration.seconds, finals=ended - self._began)
        if not race.entrants:
            for reason in race.dropped.values():
                exploration.reasons[f"{Outcome.CRASHED.value}: {reason}"] += 1
            return None
        return _record(exploration, race, self._default, self._incumbent)

    def _stop(self) -> None:
        self._ended = time.monotonic()


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
