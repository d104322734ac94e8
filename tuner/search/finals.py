"""Who wins the interleaved rounds, and whether that is more than noise.

All entrants were timed in the same rounds, so drift and power capping hit all alike: what counts is
the paired ratio within a round, not the absolute figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tuner.evaluate.paired import slower
from tuner.trial import Candidate, Measurement


@dataclass(frozen=True)
class Verdict:
    winner: Candidate
    order: tuple[Candidate, ...]  # all entrants, fastest median first
    tied: tuple[Candidate, ...]  # those the rounds cannot tell from the fastest, without the winner
    margin: float | None  # best median among the others over the winner's, minus 1
    kept_default: bool  # the default won, though it was not the fastest


def decide(
    entrants: Mapping[Candidate, Measurement],
    default: Candidate | None,
    rank: Callable[[Candidate], int],
) -> Verdict:
    """The winner of the finals.

    Among the entrants that are not beaten beyond the noise by the fastest, the default wins, else
    the first by `rank`: so two searches that see the same tie name the same winner.

    Raises:
        ValueError: there are no entrants.
    """
    if not entrants:
        raise ValueError("entrants is empty, but finals need at least one")
    order = tuple(sorted(entrants, key=lambda c: (entrants[c].median_ms, rank(c))))
    fastest = order[0]
    tie = [c for c in order if not slower(entrants[c].samples_ms, entrants[fastest].samples_ms)]
    winner = default if default in tie else min(tie, key=rank)
    assert winner is not None  # the fastest is always in its own tie
    others = [entrants[c].median_ms for c in order if c != winner]
    return Verdict(
        winner=winner,
        order=order,
        tied=tuple(c for c in tie if c != winner),
        margin=min(others) / entrants[winner].median_ms - 1 if others else None,
        kept_default=winner == default and winner != fastest,
    )
