"""What the contestants of prove_search.py came to: their runs as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from math import exp, log
from statistics import fmean, median
from typing import Any

from kernels.attention import registry
from tuner.evaluate.executor import Race
from tuner.evaluate.paired import slower
from tuner.evaluate.timing import cycle
from tuner.evaluate.wire import candidate_from_json, candidate_to_json
from tuner.search.verdict import CUT_SHORT
from tuner.trial import Candidate


@dataclass
class Run:
    """One contestant's tuning of one shape, from cold."""

    contestant: str
    seed: int = 0
    seconds: float = 0.0  # wall clock, with all that had to be started
    evaluations: int = 0
    candidate: Candidate | None = None  # where its kernel is ours
    believed_ms: float | None = None  # by its own measurement
    tflops: float | None = None  # in the race of all winners
    regret: float | None = None  # its steady ms in that race over the best's
    tied: tuple[str, ...] = ()  # whom that race could not tell from it
    beside: Candidate | None = None  # one of ours, in whose rounds a kernel that is not was timed
    times: float | None = None  # its ms over that one's
    note: str = ""
    parts: dict[str, float] = field(default_factory=dict)  # where its seconds went

    def to_json(self) -> dict[str, Any]:
        form = asdict(replace(self, candidate=None, beside=None))
        for name in ("candidate", "beside"):
            if (candidate := getattr(self, name)) is not None:
                form[name] = candidate_to_json(candidate)
        return form

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Run:
        """
        Raises:
            LookupError, TypeError, ValueError: it is no run.
        """
        run = cls(**{**form, "tied": tuple(form["tied"])})
        figures = [getattr(run, name) for name in ("believed_ms", "tflops", "regret", "times")]
        figures = [figure for figure in figures if figure is not None]
        if not all(map(plausible, [run.seconds, run.evaluations, *figures, *run.parts.values()])):
            raise ValueError("a run has figures that cannot be")
        if not all(isinstance(text, str) for text in (run.contestant, run.note, *run.tied)):
            raise ValueError("a run has words that are none")
        for name in ("candidate", "beside"):
            if form.get(name) is not None:
                candidate = candidate_from_json(form[name])
                if candidate.template not in registry.names():
                    raise ValueError(f"a run has the unknown template {candidate.template!r}")
                setattr(run, name, candidate)
        return run


def plausible(figure: object) -> bool:
    """Whether it may be a count, or a figure of ours."""
    if isinstance(figure, bool) or not isinstance(figure, (int, float)):
        return False
    return 0 <= figure < 1e12


def raced(runs: Sequence[Run], race: Race) -> None:
    """Fill in what the race of all winners says of each run.

    The fastest is chosen by every second cycle of rounds and all are compared with it by the
    others, and the other way about: by the rounds that chose it, it would be too fast by as much
    as the luckiest of so many is. Ten equal kernels whose rounds vary by 1 % come to a regret of
    1 ± 0.001 in 100 rounds, by the least of their medians to 1.002; by 3 %, to 1 ± 0.0035, and to
    1.006.
    """
    samples = {candidate: race.compared(candidate) for candidate in race.entrants}
    if not samples:
        return
    turn = cycle(len(race.entrants) + len(race.peers))  # in parts of which not all are alike

    def half(candidate: Candidate, which: int) -> list[float]:
        rounds = enumerate(samples[candidate])
        return [each for index, each in rounds if index // turn % 2 == which]

    if len(next(iter(samples.values()))) < 2 * turn:
        turn = 1
    halves = [
        (min(samples, key=lambda candidate: median(half(candidate, choose))), judge)
        for choose, judge in ((0, 1), (1, 0))
    ]

    def regret(candidate: Candidate) -> float:
        ratios = [
            log(own / least)
            for fastest, judge in halves
            for own, least in zip(half(candidate, judge), half(fastest, judge))
        ]
        return exp(fmean(ratios))

    for run in runs:
        own, beside = run.candidate, run.beside
        if own is not None and own in race.entrants:
            run.tflops, run.regret = race.entrants[own].tflops, regret(own)
            mine = samples[own]
            run.tied = tuple(
                str(other)
                for other, theirs in samples.items()
                if other != own and not (slower(mine, theirs) or slower(theirs, mine))
            )
        elif own is not None:
            run.tflops, run.regret, run.tied = None, None, ()
            reason = f"did not race: {race.dropped.get(own, 'unknown')}"
            if reason not in run.note:
                run.note = "; ".join(filter(None, (run.note, reason)))
        elif beside is not None and beside in race.entrants and run.times:
            run.tflops = race.entrants[beside].tflops / run.times
            run.regret = regret(beside) * run.times


def table(results: dict[str, list[Run]]) -> str:
    """Markdown."""
    lines = [
        "| shape | contestant | s from cold | evaluations | TFLOP/s | of the best | note |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    below = [
        "Seconds count all processes that had to be started: those of rivals, which are processes, "
        "also their interpreter and imports, which ours have before."
    ]
    for shape, runs in results.items():
        for run in runs:
            name = f"{run.contestant} {run.seed}" if run.contestant == "ours" else run.contestant
            rate = f"{run.tflops:.0f}" if run.tflops else "–"
            share = f"{1 / run.regret:.3f}" if run.regret else "–"
            note = run.note.replace("|", r"\|")
            lines.append(
                f"| {shape} | {name} | {run.seconds:.0f} | {run.evaluations} | {rate} | {share} "
                f"| {note} |"
            )
        ours = [run for run in runs if run.contestant == "ours" and run.regret]
        if len(ours) > 1:
            below.append(f"{shape}: {_summary(ours)}")
    return "\n\n".join(["\n".join(lines), *below])


def kept(report: dict[str, Any]) -> dict[str, list[Run]]:
    """The runs of an earlier report by shape that came to something; the others are made again, as
    are searches of ours that were cut short.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: it is no such report.
    """

    def whole(run: Run) -> bool:
        cut = run.contestant in ("ours", "exhaustive") and CUT_SHORT in run.note
        return bool(run.candidate or run.tflops) and not cut

    return {
        shape: [run for run in map(Run.from_json, runs) if whole(run)]
        for shape, runs in dict(report["runs"]).items()
    }


def _summary(ours: Sequence[Run]) -> str:
    """What several searches of one shape say together."""
    regrets = [run.regret for run in ours if run.regret]
    shares = [run.parts["searching"] / run.parts["wall"] for run in ours if run.parts.get("wall")]
    overhead = f"{max(shares):.1%}" if shares else "an unknown share"
    differ = [
        (one, other)
        for one, other in combinations(ours, 2)
        if one.candidate != other.candidate and str(other.candidate) not in one.tied
    ]
    return (
        f"regret of ours over {len(ours)} runs: {exp(fmean(map(log, regrets))):.4f} (geometric "
        f"mean), {max(regrets):.4f} (worst); {len({run.candidate for run in ours})} winners, "
        f"{len(differ)} pairs that the race tells apart; at most {overhead} of the wall clock went "
        "to searching itself"
    )
