"""Who wins the interleaved rounds, and whether that is more than noise.

All entrants were timed in the same rounds, so drift and power capping hit all alike: what counts is
the paired ratio within a round, not the absolute figure. Those that were beaten early have fewer
rounds than the others, the first ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tuner.evaluate.paired import beaten, ratio, slower
from tuner.trial import Candidate

# What is slower by so many standard errors is not chosen. It takes more to tell two apart; but of
# those that are not, the default wins, which then often would if it were 1 % slower.
_ERRORS = 1.5


@dataclass(frozen=True)
class Verdict:
    winner: Candidate
    order: tuple[Candidate, ...]  # all entrants, fastest first
    # whom another search might crown: those that are not beaten by a margin
    tied: tuple[Candidate, ...]
    margin: float | None  # by which the fastest of the others is slower than the winner
    kept_default: bool  # the default won, though it was not the fastest


def decide(
    samples_ms: Mapping[Candidate, Sequence[float]],
    default: Candidate | None,
    rank: Callable[[Candidate], int],
) -> Verdict:
    """The winner of the finals.

    Among the entrants that are hardly slower than the fastest, the default wins, else the first by
    `rank`: so two searches that see the same tie mostly name the same winner.

    Args:
        samples_ms: of every entrant, by round.

    Raises:
        ValueError: there are no entrants.
    """
    if not samples_ms:
        raise ValueError("samples_ms is empty, but finals need at least one entrant")
    most = max(map(len, samples_ms.values()))
    last = [c for c, own in samples_ms.items() if len(own) == most]
    fastest = min(last, key=lambda c: (median(samples_ms[c]), rank(c)))
    tie = [c for c in last if not slower(samples_ms[c], samples_ms[fastest], _ERRORS)]
    winner = default if default in tie else min(tie, key=rank)
    assert winner is not None  # the fastest is always in its own tie
    ratios = {c: ratio(own, samples_ms[winner]) for c, own in samples_ms.items()}
    order = tuple(sorted(samples_ms, key=lambda c: (ratios[c], rank(c))))
    others = [c for c in order if c != winner]
    return Verdict(
        winner=winner,
        order=order,
        tied=tuple(
            c
            for c in others
            if not any(beaten(samples_ms[c], samples_ms[by]) for by in (winner, fastest))
        ),
        margin=ratios[others[0]] - 1 if others else None,
        kept_default=winner == default and winner != fastest,
    )
