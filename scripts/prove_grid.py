"""How near the winners of a grid are to the best that is known for the same kernels.

    tuner search --db grid.db --budget 15m
    python scripts/prove_grid.py grid.db --budget 540s --output grid.json

An exhaustive search of every problem of the grid would take a card for hours. Instead each record
races the fastest that is known of its headdim and mask, that of its dtype and nearest seqlens
first: of the recorded spaces (tuner/spaces), of the exhaustive winners of prove_search.py where
--proof names its JSON, and the grid's other records. `own` are the problems that have a space of
their very own, recorded whole though by an earlier kernel; for `near` ones what is best elsewhere
stands in, and nothing is known of problems that have neither. So the regret is of the best of those
that raced: a lower bound. It is measured by other rounds than those that chose the best (see
proof_report), so that by chance it may be below one.

Goes on where OUTPUT ends when time was up. Prints a table and the geometric means.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import asdict
from math import exp, log, log2
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

# This folder for its modules: a package called `scripts` may be installed, and hides it.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (makes kernels.attention importable)
from kernels.attention.problem import Problem
from tuner.cli.failure import CommandError
from tuner.cli.options import seconds as seconds_of
from tuner.device import has_gpu
from tuner.evaluate.executor import Executor
from tuner.evaluate.space_file import RecordedSpace, read_folder, together
from tuner.moments import now
from tuner.record import Record
from tuner.standing import standing
from tuner.store.database import Store
from tuner.store.errors import StoreError
from tuner.store.files import write_atomically
from tuner.target import Hardware
from tuner.trial import Candidate

if TYPE_CHECKING:
    from scripts import refusals
    from scripts.proof_report import Run, kept, plausible, raced
else:
    import refusals
    from proof_report import Run, kept, plausible, raced

SPACES = Path(__file__).resolve().parent.parent / "tuner" / "spaces"
BEST_OF_SPACES = 6  # of one problem
MOST = 10  # rivals of a record
ROUNDS = 24
RACE_S = 20.0  # kept for the race of one problem

Row = dict[str, Any]


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
    problem: Problem,
    spaces: Iterable[RecordedSpace],
    proven: Mapping[Problem, Sequence[Candidate]],
    records: Sequence[Record] = (),
) -> tuple[str, list[Candidate]]:
    """Whether there is something of the very problem (`own`) or of its like (`near`), and the
    fastest there, nearest first; empty where there is nothing.

    Args:
        spaces: of which those that come first are asked first, if they are as near.
        records: of the grid, whose winners are rivals, but for the problem's own.
    """
    recorded: dict[tuple[Problem, Hardware], list[RecordedSpace]] = {}
    for space in spaces:
        header = space.header
        recorded.setdefault((header.problem, header.target.hardware), []).append(space)
    known = [(of, list(winners)) for of, winners in proven.items()]
    known += [(of, fastest(measured)) for (of, _), measured in recorded.items()]
    own = any(of == problem and winners for of, winners in known)
    known += [
        (record.problem, [record.candidate]) for record in records if record.problem != problem
    ]

    def distance(of: Problem) -> tuple[bool, float]:
        return of.dtype != problem.dtype, abs(log2(of.seqlen / problem.seqlen))

    like = (problem.headdim, problem.causal)
    alike = [each for each in known if (each[0].headdim, each[0].causal) == like]
    alike.sort(key=lambda each: distance(each[0]))
    found = dict.fromkeys(candidate for _, winners in alike for candidate in winners)
    kind = "own" if own else "near"
    return (kind if found else "none"), list(found)[:MOST]


def measure(problem: Problem, record: Record, kind: str, others: Sequence[Candidate],
            executor: Executor) -> Row:  # fmt: skip
    """The record against the others, in the same rounds."""
    runs = [Run("record", candidate=record.candidate)]
    runs += [Run("known", candidate=other) for other in others if other != record.candidate]
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
    which most is known first."""
    there = {row["problem"] for row in rows}
    due = [
        (record, *rivals(record.problem, spaces, proven, records))
        for record in records
        if str(record.problem) not in there
    ]
    for record, kind, others in sorted(due, key=lambda each: each[1] != "own"):
        if others and left() > RACE_S:
            rows.append(measure(record.problem, record, kind, others, executor))
            keep()


def table(rows: Sequence[Row], records: int) -> str:
    """Markdown."""
    lines = ["| problem | known | of the best | TFLOP/s | raced | note |", "| --- " * 6 + "|"]
    for row in rows:
        share = f"{1 / row['regret']:.3f}" if row["regret"] else "–"
        rate = f"{row['tflops']:.0f}" if row["tflops"] else "–"
        note = row["note"].replace("|", r"\|")
        cells = (row["problem"], row["kind"], share, rate, str(row["raced"]), note)
        lines.append(f"| {' | '.join(cells)} |")
    below = []
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


def rows_of(report: dict[str, Any]) -> tuple[dict[str, Any], list[Row]]:
    """The target and the rows that this script wrote.

    Raises:
        LookupError, TypeError, ValueError: it wrote no such thing.
    """
    rows: list[Row] = list(report["rows"])
    for row in rows:
        texts = (row[name] for name in ("problem", "kind", "note", "record", "best"))
        if not all(isinstance(text, str) for text in texts) or row["kind"] not in ("own", "near"):
            raise ValueError("a row names no problem")
        figures = [row[name] for name in ("regret", "tflops") if row[name] is not None]
        if not all(map(plausible, [*figures, row["raced"]])) or 0 in figures:
            raise ValueError("a row has figures that cannot be")
    return dict(report["target"]), rows


def main(words: Sequence[str] | None = None) -> None:
    parser = refusals.Parser(__doc__)
    parser.add_argument("database", type=Path, help="with the records of a grid")
    parser.add_argument("--proof", type=Path, help="what prove_search.py wrote")
    parser.add_argument("--budget", default="540s", help="time for all of it")
    parser.add_argument("--output", type=Path, default=Path("grid.json"))
    arguments = parser.parse_args(words)
    try:
        budget_s = seconds_of("--budget", arguments.budget)
    except CommandError as error:
        parser.error(str(error))
    assert budget_s is not None
    end = time.monotonic() + budget_s
    try:
        with Store.read_only(arguments.database) as store:
            held = store.records()
    except StoreError as error:
        parser.error(str(error))
    refusals.output(parser, arguments.output)
    made_on: dict[str, Any] | None = None
    rows: list[Row] = []
    if arguments.output.exists():
        made_on, rows = refusals.written(
            parser, "--output", arguments.output, rows_of, "this script"
        )
    proven: dict[Problem, list[Candidate]] = {}
    if arguments.proof is not None:
        proven = refusals.written(parser, "--proof", arguments.proof, proven_by, "prove_search.py")
    if not has_gpu():
        parser.error("this measures, but there is no NVIDIA GPU here")

    from tuner.evaluate.local import LocalExecutor

    with LocalExecutor() as executor:
        target = asdict(executor.target)
        refusals.elsewhere(parser, arguments.output, made_on, target)

        def keep() -> None:
            report = {"date": now(), "target": target, "rows": rows}
            write_atomically(arguments.output, json.dumps(report, indent=1) + "\n")
            print(f"{rows[-1]['problem']}: {rows[-1]['regret']}", file=sys.stderr)

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
        spaces.sort(key=lambda space: space.header.target.hardware != hardware)
        prove(
            records, spaces, proven, executor, lambda: end - time.monotonic(), rows, keep,
        )  # fmt: skip
    print(table(rows, len(records)))


if __name__ == "__main__":
    main()
