"""What a measurement may be, whatever the stopwatch says."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="the laboratory computes by it")

from fake_workers import laboratory

from kernels.attention.config import Config
from kernels.attention.problem import Problem
from tuner.evaluate.stopwatch import Sample
from tuner.trial import Candidate, Outcome

PROBLEM = Problem(64, 64, True, "fp16", 1, 1)


@pytest.mark.parametrize("ms", [0.0, -1.0, math.inf])
def test_a_time_that_cannot_be_is_an_outcome(ms: float, monkeypatch: pytest.MonkeyPatch) -> None:
    of_this = laboratory()
    of_this._busy_until = time.perf_counter()  # it needs no load first
    monkeypatch.setattr(type(of_this._stopwatch), "__call__", lambda *_: ms)
    ended = of_this.evaluate(PROBLEM, Candidate("fake", Config(kind="right")), None)
    assert (ended.outcome, ended.reason) == (
        Outcome.CRASHED, f"its launches were timed at {ms} ms",
    )  # fmt: skip
    assert ended.measurement is None


def test_candidates_are_measured_and_given_up_by_cycles_where_they_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a clock that falls from 1 GHz: by time every sample is slower than the one before."""
    of_this, candidate = laboratory(), Candidate("fake", Config(kind="right"))
    of_this._busy_until = time.perf_counter()  # it needs little load first
    turns = itertools.count(1)  # every fifth is not counted

    def sample(_: object, launch: Callable[[], object], launches: int) -> Sample:
        launch()
        turn = next(turns)
        return Sample(1.5 + turn / 1e4, None if turn % 5 == 0 else 1.5e6)

    monkeypatch.setattr(type(of_this._stopwatch), "sample", sample)
    kept = of_this.evaluate(PROBLEM, candidate, 0.95)
    assert kept.outcome is Outcome.OK
    assert kept.measurement is not None
    assert kept.measurement.cycles == 1.5e6
    assert kept.measurement.steady_ms == 1.0
    assert kept.measurement.median_ms > 1.5
    assert kept.measurement.sm_clock_mhz == round(1.5e3 / kept.measurement.median_ms)
    given_up = of_this.evaluate(PROBLEM, candidate, 0.7)
    assert given_up.outcome is Outcome.PRUNED
    assert given_up.reason == "1.43 times the best so far"
