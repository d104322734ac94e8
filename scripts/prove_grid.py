"""How long the search of a grid takes, and how near its winners are to the best that is known.

    python scripts/prove_grid.py grid.db --search 9m --dtype fp16 --output grid.json
    python scripts/prove_grid.py grid.db --budget 540s --proof prove.json --output grid.json

With --search, the 36 problems of the grid in one dtype are searched as `tuner search` does it, but
from cold: with an empty cache of Triton and into a DATABASE that is new, without any record before.

Then each record on this card races the fastest that is known of its headdim and mask, that of its
dtype and nearest seqlens first: of the recorded spaces (tuner/spaces), of the exhaustive winners of
prove_search.py where --proof names its JSON, and the grid's other records. An exhaustive search of
every problem would take a card for hours. `own` are the problems of which all configs of the
record's template were tried, if by an earlier kernel; for `near` ones what is best elsewhere stands
in, and nothing is known of problems that have neither. So the regret is of the best of those that
raced: a lower bound. It is measured by other rounds than those that chose the best (see
proof_report), so that by chance it may be below one; where rounds vary by 0.3 %, as cycles do, by
some 0.06 %.

Goes on where OUTPUT ends when time was up. Prints a table and the geometric means.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from math import exp, log, log2
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

# This folder for its modules: a package called `scripts` may be installed, and hides it.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (makes kernels.attention importable)
from kernels.attention.printable import printable, shown
from kernels.attention.problem import DTYPES, Problem
from tuner.cli.failure import CommandError
from tuner.cli.options import seconds as seconds_of
from tuner.device import has_gpu
from tuner.evaluate.comparable import together
from tuner.evaluate.executor import Executor
from tuner.evaluate.space_file import RecordedSpace, read_folder
from tuner.moments import now
from tuner.record import Record
from tuner.search import samplers
from tuner.search.driver import search
from tuner.search.events import Event, ProblemEnded, Seconds, TrialEnded
from tuner.search.opening import opening
from tuner.search.options import Options
from tuner.search.plan import plan
from tuner.standing import standing
from tuner.store.database import Store
from tuner.store.errors import StoreError
from tuner.target import Hardware
from tuner.trial import Candidate

if TYPE_CHECKING:
    from scripts import refusals
    from scripts.proof_report import Run, kept, plausible, raced
    from scripts.prove_search import Opener, cold
else:
    import refusals
    from proof_report import Run, kept, plausible, raced
    from prove_search import Opener, cold

SPACES = Path(__file__).resolve().parent.parent / "tuner" / "spaces"
BEST_OF_SPACES = 6  # of one problem
MOST = 10  # rivals of a record
ROUNDS = 24
RACE_S = 20.0  # kept for the race of one problem

Row = dict[str, Any]


@dataclass
class Report:
    """What this script writes."""

    target: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    search: dict[str, Any] | None = None  # what `searched` says, if the records are of such a one

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Report:
        """
        Raises:
            LookupError, TypeError, ValueError: this script wrote no such thing.
        """
        report = cls(dict(form["target"]), list(form["rows"]), form.get("search"))
        for row in report.rows:
            texts = [row[name] for name in ("problem", "kind", "note", "record", "best")]
            if not _are_texts(texts) or row["kind"] not in ("own", "near"):
                raise ValueError("a row names no problem")
            figures = [row[name] for name in ("regret", "tflops") if row[name] is not None]
            if not all(map(plausible, [*figures, row["raced"]])) or 0 in figures:
                raise ValueError("a row has figures that cannot be")
        if (made := report.search) is not None:
            figures = [made[name] for name in ("budget_s", "seconds", "trials", "records")]
            figures += made["parts"].values()
            if not all(map(plausible, figures)) or not _are_texts(made["cut_short"]):
                raise ValueError("its search has figures that cannot be")
        return report


def fastest(spaces: Iterable[RecordedSpace]) -> list[Candidate]:
    """Of the spaces of one problem on one card, whose templates compete for the places."""
    right = [
        (trial.measurement.steady_ms, candidate)
        for candidate, trial in together(spaces).items()
        if trial.measurement
    ]
    right.sort(key=lambda each: each[0])
    return [candidate for _, candidate in right[:BEST_OF_SPACES]]


def rivals(
    record: Record,
    spaces: Sequence[RecordedSpace],
    proven: Mapping[Problem, Sequence[Candidate]],
    records: Sequence[Record] = (),
) -> tuple[str, list[Candidate]]:
    """Whether there is something of the record's very problem (`own`) or of its like (`near`), and
    the fastest there but for its own, nearest first; `none` where nothing is known.

    Args:
        spaces: of which those that come first are asked first, if they are as near.
        records: of the grid, whose winners are rivals, but for the problem's own.
    """
    problem, winner = record.problem, record.candidate
    recorded: dict[tuple[Problem, Hardware], list[RecordedSpace]] = {}
    for space in spaces:
        header = space.header
        recorded.setdefault((header.problem, header.target.hardware), []).append(space)
    known = [(of, list(winners)) for of, winners in proven.items()]
    known += [(of, fastest(measured)) for (of, _), measured in recorded.items()]
    own = any(
        (space.header.problem, space.header.template) == (problem, winner.template)
        for space in spaces
    )
    own |= any(found.template == winner.template for found in proven.get(problem, ()))
    known += [(other.problem, [other.candidate]) for other in records if other.problem != problem]

    def distance(of: Problem) -> tuple[bool, float]:
        return of.dtype != problem.dtype, abs(log2(of.seqlen / problem.seqlen))

    like = (problem.headdim, problem.causal)
    alike = [each for each in known if (each[0].headdim, each[0].causal) == like]
    alike.sort(key=lambda each: distance(each[0]))
    found = dict.fromkeys(candidate for _, winners in alike for candidate in winners)
    kind = "own" if own else "near" if found else "none"
    return kind, [candidate for candidate in found if candidate != winner][:MOST]


def measure(record: Record, kind: str, others: Sequence[Candidate], executor: Executor) -> Row:
    """The record against the others, in the same rounds."""
    problem = record.problem
    runs = [Run("record", candidate=record.candidate)]
    runs += [Run("known", candidate=other) for other in others]
    entrants = [run.candidate for run in runs if run.candidate is not None]
    wait([executor.compile(problem, entrant) for entrant in entrants])
    raced(runs, executor.race(problem, entrants, ROUNDS, decide_s=0.0).result())
    best = min(runs, key=lambda run: run.regret or float("inf"))
    return {
        "problem": str(problem),
        "kind": kind,
        "regret": runs[0].regret,
        "tflops": runs[0].tflops,
        "record": str(record.candidate),
        "best": str(best.candidate),
        "raced": sum(run.regret is not None for run in runs),
        "note": runs[0].note,
    }


def prove(
    records: Sequence[Record],
    spaces: Sequence[RecordedSpace],
    proven: Mapping[Problem, Sequence[Candidate]],
    executor: Executor,
    left: Callable[[], float],
    rows: list[Row],
    keep: Callable[[], object],
) -> None:
    """Append a row for each record that has none and of whose like something is known; those of
    which most is known first. Spaces of this very card have the first say."""
    there = {row["problem"] for row in rows}
    hardware = executor.target.hardware
    spaces = sorted(spaces, key=lambda space: space.header.target.hardware != hardware)
    due = [
        (record, *rivals(record, spaces, proven, records))
        for record in records
        if str(record.problem) not in there
    ]
    for record, kind, others in sorted(due, key=lambda each: each[1] != "own"):
        if kind != "none" and left() > RACE_S:
            rows.append(measure(record, kind, others, executor))
            keep()


def table(report: Report, records: int) -> str:
    """Markdown."""
    rows = report.rows
    lines = ["| problem | known | of the best | TFLOP/s | raced | note |", "| --- " * 6 + "|"]
    for row in rows:
        share = f"{1 / row['regret']:.3f}" if row["regret"] else "–"
        rate = f"{row['tflops']:.0f}" if row["tflops"] else "–"
        note = printable(row["note"]).replace("|", r"\|")
        cells = (printable(row["problem"]), row["kind"], share, rate, str(row["raced"]), note)
        lines.append(f"| {' | '.join(cells)} |")
    below = []
    if (made := report.search) is not None:
        parts = printable(
            ", ".join(f"{name} {seconds:.0f} s" for name, seconds in made["parts"].items())
        )
        short = printable(", ".join(made["cut_short"]), 3000) or "none"
        below.append(
            f"searched from cold in {made['seconds']:.0f} s ({parts}): {made['trials']} trials, "
            f"{made['records']} records; cut short: {short}"
        )
    for kind in ("own", "near"):
        regrets = [row["regret"] for row in rows if row["kind"] == kind and row["regret"]]
        if regrets:
            mean, worst = 1 / exp(fmean(map(log, regrets))), 1 / max(regrets)
            below.append(
                f"{kind}: {mean:.4f} of the best known (geometric mean of {len(regrets)} of "
                f"{records} problems), {worst:.4f} (worst)"
            )
    return "\n\n".join(["\n".join(lines), *below])


def proven_by(report: dict[str, Any]) -> dict[Problem, list[Candidate]]:
    """The winners of whole exhaustive searches, by what prove_search.py wrote.

    Raises:
        LookupError, TypeError, ValueError: it wrote no such thing.
    """
    found: dict[Problem, list[Candidate]] = {}
    for name, runs in kept(report).items():
        words = name.split()
        problem = Problem.on_grid(
            int(words[0][1:]), int(words[1][1:]), words[2] == "causal", words[3]
        )
        found[problem] = [
            run.candidate
            for run in runs
            if run.contestant == "exhaustive" and run.candidate is not None
        ]
    return found


def searched(
    problems: Sequence[Problem], opened: Opener, database: Path, budget_s: float
) -> Report:
    """Search `problems` from cold into a new `database`: what that took, and of which problems
    fewer trials were made than were asked for."""
    began = time.monotonic()
    seconds, trials = Seconds(), 0
    short: dict[Problem, bool] = {}

    def watch(event: Event) -> None:
        nonlocal seconds, trials
        if isinstance(event, TrialEnded):
            trials += 1
        elif isinstance(event, ProblemEnded):
            seconds += event.seconds
            short[event.problem] = event.cut_short
            print(f"{event.problem}: {event.record and event.record.candidate}", file=sys.stderr)

    samplers.begin_warm_up(samplers.DEFAULT)
    options = Options(budget_s=budget_s)
    first = partial(opening, problems[0], (), options=options)
    with opened(first) as executor, Store.open(database) as store:
        seconds = Seconds.opened(time.monotonic() - began)
        options = options.after(seconds.opening)
        records = search(problems, executor, store, [], options, watch)
        target = asdict(executor.target)
    made = {
        "budget_s": budget_s,
        "seconds": time.monotonic() - began,
        "parts": seconds.parts,
        "trials": trials,
        "records": sum(record is not None for record in records),
        "cut_short": [str(problem) for problem in problems if short.get(problem, True)],
    }
    return Report(target, search=made)


def _are_texts(values: Sequence[Any]) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def main(words: Sequence[str] | None = None) -> None:
    parser = refusals.Parser(__doc__)
    parser.add_argument("database", type=Path, help="with the records of a grid")
    parser.add_argument("--search", metavar="TIME", help="fill a new DATABASE first, from cold")
    parser.add_argument("--dtype", default="fp16", choices=DTYPES, help="of that search")
    parser.add_argument("--proof", type=Path, help="what prove_search.py wrote")
    parser.add_argument("--budget", default="540s", help="time for all races")
    parser.add_argument("--output", type=Path, default=Path("grid.json"))
    arguments = parser.parse_args(words)
    try:
        budget_s = seconds_of("--budget", arguments.budget)
        search_s = seconds_of("--search", arguments.search)
    except CommandError as error:
        parser.error(str(error))
    assert budget_s is not None
    refusals.output(parser, arguments.output)
    if search_s is None:
        held = records_of(parser, arguments.database)
    else:
        refusals.output(parser, arguments.database, option="DATABASE", database=True)
        for named, path in (("DATABASE", arguments.database), ("--output", arguments.output)):
            if path.exists():
                parser.error(
                    f"{named} is {shown(str(path), 300)}, but must be a new file with --search"
                )
    report: Report | None = None
    if arguments.output.exists():
        report = refusals.written(
            parser, "--output", arguments.output, Report.from_json, "this script"
        )
    proven: dict[Problem, list[Candidate]] = {}
    if arguments.proof is not None:
        proven = refusals.written(parser, "--proof", arguments.proof, proven_by, "prove_search.py")
    if not has_gpu():
        parser.error("this measures, but there is no NVIDIA GPU here")

    from tuner.evaluate.local import LocalExecutor

    records: list[Record] = []

    def keep() -> None:
        assert report is not None
        form = {"date": now(), **asdict(report)}
        text = json.dumps(form, indent=1) + "\n"
        refusals.write(parser, arguments.output, text, table(report, len(records)))
        if report.rows:
            print(f"{report.rows[-1]['problem']}: {report.rows[-1]['regret']}", file=sys.stderr)

    with cold() if search_s is not None else nullcontext():
        if search_s is not None:
            problems = plan(dtypes=(arguments.dtype,))
            try:
                report = searched(
                    problems, lambda first: LocalExecutor(first=first), arguments.database, search_s
                )
            except StoreError as error:
                parser.error(str(error))
            keep()
            held = records_of(parser, arguments.database)
        end = time.monotonic() + budget_s
        with LocalExecutor() as executor:
            target = asdict(executor.target)
            there = report.target if report else None
            refusals.elsewhere(parser, arguments.output, there, target)
            report = report or Report(target)
            hardware = executor.target.hardware
            records = [
                record
                for record in standing(held).values()
                if record.target.hardware == hardware
                and record.target.triton == executor.target.triton
                and record.origin == "cuda"
            ]
            spaces = [
                space
                for folder in sorted(path for path in SPACES.iterdir() if path.is_dir())
                for space in read_folder(folder)
                if space.header.target.hardware.capability == hardware.capability
            ]
            prove(
                records, spaces, proven, executor, lambda: end - time.monotonic(),
                report.rows, keep,
            )  # fmt: skip
    print(table(report, len(records)))


def records_of(parser: refusals.Parser, database: Path) -> list[Record]:
    try:
        with Store.read_only(database) as store:
            return store.records()
    except StoreError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
