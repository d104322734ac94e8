"""Progress of a search as it happens: a live display, plain lines, or JSON lines.

Progress goes to stderr, except for JSON lines, which are the output.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from kernels.attention.printable import printable, printable_sentence
from tuner.cli.jsonform import json_form
from tuner.search.events import (
    Event,
    FinalsStarted,
    ProblemEnded,
    ProblemSkipped,
    ProblemStarted,
    Seconds,
    TimedAgain,
    TrialEnded,
)
from tuner.trial import Candidate, Outcome, Trial

_NAMES: dict[type[Event], str] = {
    ProblemSkipped: "skipped",
    ProblemStarted: "started",
    TrialEnded: "trial",
    TimedAgain: "again",
    FinalsStarted: "finals",
    ProblemEnded: "ended",
}
_CUT_SHORT = "time was up before its defaults and its neighbours' winners were tried"


class Watch:
    """Counts what happened and passes it on; subclasses show it."""

    def __init__(self) -> None:
        self.trials = 0  # new ones
        self._refusal = ""  # why a problem was not searched that has no record either
        self._failures: Counter[str] = Counter()  # of problems that ended without a record
        self._cut_short = False  # such a one was
        self.seconds = Seconds()

    def __call__(self, event: Event) -> None:
        if isinstance(event, TrialEnded):
            self.trials += 1
        elif isinstance(event, ProblemEnded):
            self.seconds += event.seconds
            if event.record is None:
                self._failures.update(event.reasons)
                self._cut_short |= event.cut_short
        elif isinstance(event, ProblemSkipped) and event.record is None:
            self._refusal = event.reason
        self.show(event)

    @property
    def refusal(self) -> str:
        """Why there is no record, where none came of anything; one sentence."""
        if self._refusal:
            return self._refusal
        if self._cut_short:
            return f"{_CUT_SHORT}, so nothing was recorded"
        said = "no candidate succeeded, so nothing was recorded"
        for reason, _ in self._failures.most_common(1):
            said += f": {reason.removeprefix(f'{Outcome.REJECTED.value}: ')}"
        return said

    def say(self, sentence: str) -> None:
        """One sentence for the user that is not about a problem. Texts of files are in it."""

    def show(self, event: Event) -> None:
        """Show one event."""


class JsonWatch(Watch):
    """One JSON object a line on stdout."""

    def say(self, sentence: str) -> None:
        self._print({"event": "note", "text": sentence})

    def show(self, event: Event) -> None:
        self._print({"event": _NAMES[type(event)], **json_form(event)})

    def _print(self, form: Mapping[str, Any]) -> None:
        print(json.dumps(form, separators=(",", ":")), flush=True)


class PlainWatch(Watch):
    """Lines on stderr, for logs: when a problem starts or ends, and at every better trial."""

    def __init__(self) -> None:
        super().__init__()
        self._best: Trial | None = None

    def say(self, sentence: str) -> None:
        print(printable_sentence(sentence), file=sys.stderr, flush=True)

    def show(self, event: Event) -> None:
        if isinstance(event, ProblemStarted):
            self._best = None
        if isinstance(event, TimedAgain):
            self._best = event.best
            return
        if isinstance(event, TrialEnded):
            better = _config(event.best) not in (None, _config(self._best))
            self._best = event.best
            if not better and event.done != event.trials:
                return
        self.say(_line(event))


class LiveWatch(Watch):
    """A bar over the trials of the current problem, with the best so far and an ETA."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress
        self._task = progress.add_task("", total=None, detail="")

    def say(self, sentence: str) -> None:
        self._progress.console.print(escape(printable_sentence(sentence)), highlight=False)

    def show(self, event: Event) -> None:
        update = self._progress.update
        if isinstance(event, ProblemStarted):
            self._progress.reset(self._task, total=event.trials or None)
            update(self._task, description=_heading(event), detail="")
        elif isinstance(event, TrialEnded):
            update(
                self._task,
                completed=event.done,
                detail=f"{_best(event.best)}  {_counts(event.counts)}{_eta(event.eta_s)}",
            )
        elif isinstance(event, TimedAgain):
            update(self._task, detail=f"{_best(event.best)}  {_counts(event.counts)}")
        elif isinstance(event, FinalsStarted):
            update(self._task, detail=f"finals: {event.finalists} in {event.rounds} or more rounds")
        else:
            self.say(_line(event))


@contextmanager
def watching(as_json: bool) -> Iterator[Watch]:
    """The display that fits where the output goes."""
    console = Console(stderr=True)
    if as_json:
        yield JsonWatch()
    elif not console.is_terminal:
        yield PlainWatch()
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}", table_column=Column(ratio=1, no_wrap=True)),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, transient=True, expand=True) as progress:
            yield LiveWatch(progress)


def _heading(event: ProblemStarted) -> str:
    return f"[{event.index + 1}/{event.count}] {event.problem}".replace("[", r"\[")


def _config(trial: Trial | None) -> Candidate | None:
    return None if trial is None else trial.candidate


def _line(
    event: ProblemSkipped | ProblemStarted | TrialEnded | FinalsStarted | ProblemEnded,
) -> str:
    if isinstance(event, ProblemSkipped):
        reason = printable(event.reason.removeprefix(f"{event.problem} "))
        return f"[{event.index + 1}/{event.count}] {event.problem}: {reason}"
    if isinstance(event, ProblemStarted):
        known = f", {event.known} known" if event.known else ""
        return (
            f"[{event.index + 1}/{event.count}] {event.problem}: {event.trials} trials of "
            f"{event.feasible} feasible configs{known}"
        )
    if isinstance(event, TrialEnded):
        return (
            f"  trial {event.done}/{event.trials}: {_best(event.best)}  "
            f"{_counts(event.counts)}{_eta(event.eta_s)}"
        )
    if isinstance(event, FinalsStarted):
        return (
            f"  finals: {event.finalists} candidates in {event.rounds} or more interleaved rounds"
        )
    record = event.record
    if record is None and event.cut_short:
        return f"{event.problem}: {_CUT_SHORT}, so nothing is recorded"
    if record is None:
        reasons = "; ".join(
            f"{n}× {printable(r)}" for r, n in Counter(event.reasons).most_common(3)
        )
        why = f" ({reasons})" if reasons else ""
        return f"{event.problem}: no candidate succeeded, the default stays in force{why}"
    note = f" ({printable(record.note)})" if record.note else ""
    return f"{event.problem}: {record.measurement.tflops:.0f} TFLOP/s with {record.candidate}{note}"


def _best(best: Trial | None) -> str:
    if best is None or best.measurement is None:
        return "nothing right yet"
    clock = "" if best.measurement.cycles is None else " at 1.5 GHz"
    return f"best {best.steady_tflops:.0f} TFLOP/s{clock}"


def _counts(counts: Mapping[Outcome, int]) -> str:
    return ", ".join(f"{n} {outcome.value}" for outcome, n in sorted(counts.items()) if n)


def _eta(seconds: float | None) -> str:
    return "" if seconds is None else f", {seconds:.0f} s left"
