"""The finals of one problem, and the record that comes of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from statistics import median

from tuner.evaluate.executor import Race
from tuner.evaluate.timing import (
    DECIDE_S,
    HEAT_ROUNDS,
    HEAT_SAMPLE_MS,
    PLACES,
    spread,
)
from tuner.moments import now
from tuner.record import Record, Rival
from tuner.search import finals
from tuner.search.credible import credible_race
from tuner.search.events import FinalsStarted, Observer, Seconds
from tuner.search.exploration import Exploration
from tuner.search.objective import MARK
from tuner.trial import Candidate, Outcome, Trial

# By simulation of six entrants and three peers: a round, and what comes before the first.
_ROUND_S, _PREPARING_S = 0.3, 1.0
# Of a heat: the load before, and loading and checking a hopeful.
_HEAT_LOAD_S, _HOPEFUL_S = 0.5, 0.06
_FEW_ROUNDS = 8  # where there is no time for more
# What the note of a record says of a search whose time was up early.
CUT_SHORT = "cut short"


@dataclass
class Final:
    """Finals under way."""

    exploration: Exploration
    race: Future[Race]
    default: Candidate | None
    incumbent: Record | None
    began: float
    ended: float | None = None

    def stop(self, _race: Future[Race]) -> None:
        """Note when the race was over: whoever has several GPUs may look much later."""
        self.ended = time.monotonic()


def begin(
    exploration: Exploration,
    incumbent: Record | None,
    rounds: int,
    seconds: float,
    observer: Observer,
) -> Final | None:
    """Start to race the finalists; None if there is none, or if the time was up before all that
    must be tried was: a record must not be worse than what serves the problem without it.

    Only candidates that passed the correctness gate in a trial of this kernel version race.

    Args:
        incumbent: from `incumbent_of`.
        rounds: beside the peers, at least; fewer where there is little time.
        seconds: that the finals should take.
    """
    if exploration.missing:
        return None
    ranking = exploration.ranking()
    ranked = [trial.candidate for trial in ranking]
    # They race even if they were clearly slower: against them the others are judged.
    default = next((c for c in exploration.defaults if _passed(exploration, c)), None)
    always = [default, incumbent.candidate if incumbent else None]
    entrants = dict.fromkeys(c for c in always if c is not None and _passed(exploration, c))
    entrants |= dict.fromkeys(c for c in exploration.required if c in ranked)
    hopefuls = exploration.hopefuls(but=entrants)
    if not entrants and not hopefuls:
        return None
    heat_s = _heat_s([trial for trial in ranking if trial.candidate in hopefuls])
    if seconds >= heat_s + _PREPARING_S + rounds * _ROUND_S:
        seconds -= heat_s
    else:
        hopefuls = hopefuls[:PLACES]
    rounds, decide_s = _course(rounds, seconds)
    finalists = len(entrants) + min(PLACES, len(hopefuls))
    observer(FinalsStarted(exploration.problem, finalists, rounds))
    race = exploration.executor.race(
        exploration.problem, list(entrants), rounds, decide_s, hopefuls
    )
    final = Final(exploration, race, default, incumbent, time.monotonic())
    race.add_done_callback(final.stop)
    return final


def _heat_s(hopefuls: Sequence[Trial]) -> float:
    """What a heat of these takes, roughly."""
    count = len(hopefuls)
    if count <= PLACES:
        return 0.0
    samples = HEAT_ROUNDS * 1.5  # of each: half of them run twice as many
    sample_s = max(HEAT_SAMPLE_MS, *(trial.measured.median_ms for trial in hopefuls)) / 1e3
    return _HEAT_LOAD_S + count * (_HOPEFUL_S + samples * sample_s)


def _course(rounds: int, seconds: float) -> tuple[int, float]:
    """How many rounds beside the peers, and how long the fastest go on alone, if that shall take
    `seconds` together."""
    if seconds < _PREPARING_S + rounds * _ROUND_S:
        rounds = min(rounds, _FEW_ROUNDS)
    left = seconds - _PREPARING_S - rounds * _ROUND_S
    return rounds, min(DECIDE_S, max(0.0, left))


def crown(final: Final) -> Record | None:
    """The winner's record once the finals are over, None if none of the finalists came through.

    An incumbent that raced is superseded by the verdict, even when its own, older figure was
    better.
    """
    exploration = final.exploration
    race = credible_race(final.race.result())
    ended = final.ended or time.monotonic()  # whoever waits may be told before we are
    exploration.seconds += Seconds(finals=ended - final.began)
    if not race.entrants:
        for reason in race.dropped.values():
            exploration.reasons[f"{Outcome.CRASHED.value}: {reason}"] += 1
        return None
    return _record(exploration, race, final.default, final.incumbent)


def incumbent_of(exploration: Exploration, records: Iterable[Record]) -> Record | None:
    """The record that stands for the very problem and target, and races against the new ones."""
    target = exploration.executor.target
    key = (exploration.problem, target.hardware.key, target.triton)
    for record in records:
        # A replay never displaces what was measured.
        if record.key == key and record.origin == exploration.executor.origin:
            return record
    return None


def _passed(exploration: Exploration, candidate: Candidate) -> bool:
    trial = exploration.trials.get(candidate)
    return trial is not None and trial.outcome.timed


def _record(
    exploration: Exploration, race: Race, default: Candidate | None, incumbent: Record | None
) -> Record:
    executor, problem = exploration.executor, exploration.problem
    samples_ms = {candidate: race.compared(candidate) for candidate in race.entrants}
    verdict = finals.decide(samples_ms, default, exploration.candidates.rank)
    winner = verdict.winner
    trial = exploration.trials[winner].measurement
    # A record is of times: by its cycles nobody compares it any more.
    measurement = replace(race.entrants[winner], cycles=None)
    if trial is not None:
        measurement = replace(measurement, max_diff=trial.max_diff)
    return Record(
        problem=problem,
        target=executor.target,
        candidate=winner,
        template_version=executor.template_version(problem, winner.template),
        measurement=measurement,
        origin=executor.origin,
        measured_at=now(),
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
                (Rival(name, median(ms), spread(ms)) for name, ms in race.peers.items() if ms),
                key=lambda peer: peer.median_ms,
            )
        ),
        tied=tuple(map(str, verdict.tied)),
        note="; ".join(filter(None, _notes(exploration, race, verdict, default))),
        supersedes=_superseded(exploration, race, incumbent),
    )


def _superseded(exploration: Exploration, race: Race, incumbent: Record | None) -> tuple[str, ...]:
    """What this verdict replaces: the incumbent, if it raced. One of another kernel version, whose
    figure nobody can repeat, is replaced by a search that was not cut short."""
    if incumbent is None:
        return ()
    version = exploration.executor.template_version(
        exploration.problem, incumbent.candidate.template
    )
    stale = incumbent.template_version != version
    if incumbent.candidate in race.entrants or (stale and not exploration.cut_short):
        return (incumbent.uid, *incumbent.supersedes)
    return ()


def _notes(
    exploration: Exploration, race: Race, verdict: finals.Verdict, default: Candidate | None
) -> tuple[str, ...]:
    return (
        MARK if exploration.executor.cold else "",
        _note(verdict, default),
        _throttled(race),
        _cut_short(exploration),
    )


def _note(verdict: finals.Verdict, default: Candidate | None) -> str:
    if verdict.kept_default:
        return "the default is kept: no candidate was faster beyond the noise"
    if verdict.tied:
        return f"tied with {len(verdict.tied)} more"
    if verdict.winner == default:
        return "the default is the fastest"
    return ""


def _throttled(race: Race) -> str:
    return f"clocks were held down by {' and '.join(race.throttles)}" if race.throttles else ""


def _cut_short(exploration: Exploration) -> str:
    if not exploration.cut_short:
        return ""
    made = len(exploration.trials)
    return f"{CUT_SHORT} after {made} of {made + exploration.left} trials"
