from __future__ import annotations

import random

import pytest

from kernels.attention.config import Config
from tuner.search.finals import decide
from tuner.trial import Candidate, Measurement

A, B, C = (Candidate("toy", Config(BLOCK_M=m)) for m in (16, 32, 64))
RANK = {A: 0, B: 1, C: 2}.__getitem__


def measurement(*samples: float) -> Measurement:
    return Measurement(sorted(samples)[len(samples) // 2], 0.01, samples, 100.0, 0.0)


def noisy(base: float, noise: float, seed: int, rounds: int = 11) -> Measurement:
    draw = random.Random(seed)
    return measurement(*(base * (1 + draw.gauss(0, noise)) for _ in range(rounds)))


def test_the_clearly_faster_wins_over_the_default() -> None:
    verdict = decide({A: noisy(1.05, 0.003, 1), B: noisy(1.0, 0.003, 2)}, A, RANK)
    assert verdict.winner == B
    assert verdict.margin == pytest.approx(0.05, abs=0.01)
    assert not verdict.tied
    assert not verdict.kept_default


def test_the_default_wins_a_tie_and_says_so() -> None:
    # Slower by less than matters, and behind by rank.
    verdict = decide({A: measurement(*(1.0,) * 11), B: measurement(*(1.001,) * 11)}, B, RANK)
    assert verdict.order == (A, B)
    assert verdict.winner == B
    assert verdict.kept_default
    assert verdict.tied == (A,)


def test_ties_without_the_default_go_to_the_first_by_rank_whatever_the_noise() -> None:
    for seed in range(20):
        entrants = {
            C: noisy(1.2, 0.005, seed),
            B: noisy(1.0, 0.005, seed + 100),
            A: noisy(1.0, 0.005, seed + 200),
        }
        verdict = decide(entrants, C, RANK)
        # One of the two at the top: either the noise told them apart, or the lower rank wins.
        assert verdict.winner in (A, B)
        if verdict.tied:
            assert verdict.winner == A


def test_no_entrants_is_refused() -> None:
    with pytest.raises(ValueError, match="entrants is empty"):
        decide({}, None, RANK)
