"""What a measurement may be, whatever the stopwatch says."""

from __future__ import annotations

import math
import time

import pytest

pytest.importorskip("torch", reason="the laboratory computes by it")

from fake_workers import laboratory

from kernels.attention.config import Config
from kernels.attention.problem import Problem
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
