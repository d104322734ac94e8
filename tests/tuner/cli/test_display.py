"""What a search shows while it runs."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from tests.tuner.store import samples
from tuner.cli import display
from tuner.search.events import (
    FinalsStarted,
    ProblemEnded,
    ProblemStarted,
    Seconds,
    TimedAgain,
    TrialEnded,
)
from tuner.trial import Outcome

PROBLEM = samples.PROBLEM
STARTED = ProblemStarted(PROBLEM, 0, 2, 400, 90, 0, 60)
# 612 TFLOP/s at 1.5 GHz, whatever it took at the clock of its trial.
COUNTED = replace(samples.measurement(), cycles=1.5e6 * PROBLEM.flops / 612e9)
BEST = samples.trial(measurement=COUNTED)
TOLD = TrialEnded(BEST, 7, 60, BEST, {Outcome.OK: 4, Outcome.PRUNED: 3}, 41.6)

SLOWER = replace(
    samples.trial(1), measurement=replace(samples.measurement(), cycles=3e6 * PROBLEM.flops / 612e9)
)
AGAIN = TimedAgain(
    replace(BEST, outcome=Outcome.WRONG, measurement=None, reason="it was wrong"),
    SLOWER,
    {Outcome.OK: 3, Outcome.WRONG: 1, Outcome.PRUNED: 3},
)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_terminal_sees_how_far_it_is_the_best_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = io.StringIO()
    terminal = Console(file=seen, force_terminal=True, width=150)
    monkeypatch.setattr(display, "Console", lambda stderr: terminal)
    with display.watching(as_json=False) as watch:
        watch._progress.refresh()
        assert "0/?" in plain(seen.getvalue())
        for event, shown in (
            (STARTED, (f"[1/2] {PROBLEM}", "0/60")),
            (TOLD, ("7/60", "best 612 TFLOP/s at 1.5 GHz", "4 ok, 3 pruned", "42 s left")),
            (AGAIN, ("7/60", "best 306 TFLOP/s", "3 ok, 3 pruned, 1 wrong")),
            (FinalsStarted(PROBLEM, 5, 16), ("finals: 5 in 16 or more rounds",)),
        ):
            seen.truncate(0)
            watch.show(event)
            watch._progress.refresh()
            assert all(words in plain(seen.getvalue()) for words in shown)


def test_where_there_is_no_terminal_a_better_trial_is_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch = display.PlainWatch()
    worse = replace(TOLD, trial=samples.trial(1), done=8, eta_s=None)
    again = TimedAgain(BEST, replace(BEST, reason="timed again"), TOLD.counts)
    for event in (STARTED, TOLD, worse, again, worse, replace(worse, done=60, eta_s=0.0)):
        watch.show(event)
    assert capsys.readouterr().err.splitlines() == [
        f"[1/2] {PROBLEM}: 60 trials of 400 feasible configs",
        "  trial 7/60: best 612 TFLOP/s at 1.5 GHz  4 ok, 3 pruned, 42 s left",
        "  trial 60/60: best 612 TFLOP/s at 1.5 GHz  4 ok, 3 pruned, 0 s left",
    ]


def test_where_nothing_succeeded_the_reasons_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reasons = {"wrong: 0.5 off": 12, "spills: 8 bytes": 3}
    ended = ProblemEnded(PROBLEM, None, {Outcome.WRONG: 12}, reasons, Seconds())
    display.PlainWatch().show(ended)
    assert capsys.readouterr().err == (
        f"{PROBLEM}: no candidate succeeded, the default stays in force "
        "(12× wrong: 0.5 off; 3× spills: 8 bytes)\n"
    )
