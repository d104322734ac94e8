"""Score samplers by replay of spaces that were recorded whole.

    python scripts/score_samplers.py --output docs/samplers.json
    python scripts/score_samplers.py --spaces ../shared/spaces --batch 1 --output \
        docs/samplers-published.json

Every sampler goes through the very proposals of `tuner search`, with many seeds, and is told the
recorded medians, by cycles where those were counted. It starts cold, from the templates' defaults
(the default sampler also from what is beside them, as a search does that knows of no other
problem), or from the defaults, the winners of neighbouring problems and what the surrogate learned
in 60 trials of the nearest seqlen. It is told of each evaluation before it proposes the next, and
the default sampler also of eight and of sixteen at once: a search has eight proposals under way at
first, and later as many as there are cores.

draw_samplers.py draws and tabulates what is written. A run ends when it has found the optimum: the
rest of its curve is known.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

# This folder for its modules: a package called `scripts` may be installed, and hides it.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (makes kernels.attention importable)
from tuner.moments import now
from tuner.search import samplers
from tuner.search.neighbours import expected
from tuner.search.opening import around
from tuner.search.options import DEFAULT_TRIALS
from tuner.search.proposals import Proposals
from tuner.search.score import Runs
from tuner.trial import Candidate

if TYPE_CHECKING:
    from scripts import refusals
    from scripts.recorded_cases import Case, cases, nearest, neighbours, summary
    from scripts.scores import BUDGETS, STARTS, checked
else:
    import refusals
    from recorded_cases import Case, cases, nearest, neighbours, summary
    from scores import BUDGETS, STARTS, checked

OURS = Path(__file__).resolve().parent.parent / "tuner" / "spaces"
# Proposals under way at once: on few cores, on many, and on these where compiling takes long.
_MANY = samplers.PATIENCE[samplers.DEFAULT]
AHEAD = (8, _MANY, 2 * _MANY - 1)


@dataclass(frozen=True)
class Task:
    """All runs of one sampler on one space from one start."""

    folders: tuple[str, ...]
    case: str
    sampler: str
    start: str
    seeds: int
    evaluations: int
    batch: int


@dataclass(frozen=True)
class Result:
    space: str
    sampler: str
    start: str
    batch: int
    seeds: int
    evaluations: int  # most of a run; the score is of no more
    to_5_percent: float | None  # median evaluations; None where most runs never are
    to_2_percent: float | None
    share: dict[int, float]  # mean of optimum / best, by evaluations
    score: float
    score_of_mean: float
    repeats: int
    ms_per_proposal: float  # of the processor
    curve: tuple[float, ...]  # mean of optimum / best after 1, 2, … evaluations


def main(words: Sequence[str] | None = None) -> None:
    parser = refusals.Parser(__doc__)
    parser.add_argument("--spaces", type=Path, action="append", help="folder of T4 files; ours")
    parser.add_argument("--samplers", default="random,tpe,surrogate")
    parser.add_argument("--starts", default=",".join(STARTS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--evaluations", type=int, default=100, help="most of a run")
    parser.add_argument(
        "--batch", type=int,
        help="proposals under way at once; 1, and for the default sampler 8, 16 and 31 too",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--add", action="store_true", help="to what OUTPUT holds already")
    parser.add_argument("--output", type=Path, required=True, help="a JSON file")
    arguments = parser.parse_args(words)
    refusals.at_least(
        parser, 1, seeds=arguments.seeds, evaluations=arguments.evaluations,
        batch=arguments.batch, jobs=arguments.jobs,
    )  # fmt: skip
    asked = refusals.one_of(parser, "--samplers", arguments.samplers, samplers.NAMES)
    starts = refusals.one_of(parser, "--starts", arguments.starts, STARTS)
    refusals.folders(parser, "--spaces", arguments.spaces or ())
    refusals.output(parser, arguments.output)
    folders = tuple(map(str, arguments.spaces or sorted(p for p in OURS.iterdir() if p.is_dir())))
    there = None
    if arguments.add:
        there = refusals.written(parser, "--output", arguments.output, checked, "this script")
    try:
        known = cases(folders)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    tasks = [
        Task(folders, name, sampler, start, arguments.seeds, arguments.evaluations, batch)
        for sampler in asked
        for batch in batches(sampler, arguments.batch)
        for start in starts
        for name, case in known.items()
        if start == "cold" or case.defaults
    ]
    if not tasks:
        parser.error(f"{', '.join(folders)} holds no recorded space for {', '.join(starts)}")
    began, before = time.monotonic(), 0
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # a process per core, each of one thread
    # Spawned: a forked child of a process with BLAS threads may hang.
    jobs = min(arguments.jobs, len(tasks))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        results = list(pool.map(run, tasks))
    if there is not None:
        earlier, before = there["results"], there["seconds"]
        new = {(r.space, r.sampler, r.start, r.batch) for r in results}
        results += [r for r in map(result_from, earlier)
                    if (r.space, r.sampler, r.start, r.batch) not in new]  # fmt: skip
    report = {
        "date": now(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("optuna", "numpy", "scipy")},
        },
        "seconds": before + round(time.monotonic() - began),
        "seeds": arguments.seeds,
        "spaces": {name: summary(case) for name, case in known.items()},
        "results": [asdict(result) for result in results],
    }
    text = compact(report)
    refusals.write(parser, arguments.output, text, text)


def batches(sampler: str, asked: int | None) -> tuple[int, ...]:
    """How many proposals are under way at once, in turn."""
    if asked is not None:
        return (asked,)
    return (1, *AHEAD) if sampler == samplers.DEFAULT else (1,)


def beginning(case: Case) -> list[Candidate]:
    """What the default search tries first where it knows of no neighbour."""
    return [*case.defaults, *around(case.defaults, case.space.candidates, DEFAULT_TRIALS)]


def learned(case: Case, near: Case, task: Task, seed: int) -> Any:
    """The prior that a search of `near` leaves for `case`."""
    index = {trial.candidate: number for number, trial in enumerate(near.trials)}
    proposals = Proposals(near.space, "surrogate", seed + 1000, seeds=beginning(near))
    once = replace(task, evaluations=DEFAULT_TRIALS, batch=1)
    tried = [near.trials[number] for number in replayed(proposals, near, index, once, False)]
    return expected([t for t in tried if t.candidate in case.space.candidates], case.space)


def run(task: Task) -> Result:
    known = cases(task.folders)
    case = known[task.case]
    seeds: list[Candidate] = []
    winners = neighbours(case, known.values()) if task.start == "neighbours" else []
    if task.start != "cold":
        beside = not winners and task.sampler == "surrogate"
        seeds += [*(beginning(case) if beside else case.defaults), *winners]
    index = {trial.candidate: number for number, trial in enumerate(case.trials)}
    spent = 0.0
    orders: list[list[int]] = []
    near = nearest(case, known.values()) if task.start == "neighbours" else None
    for seed in range(task.seeds):
        prior = learned(case, near, task, seed) if near and task.sampler == "surrogate" else None
        began = time.process_time()
        proposals = Proposals(case.space, task.sampler, seed, seeds=seeds, prior=prior)
        orders.append(list(replayed(proposals, case, index, task)))
        spent += time.process_time() - began
    runs = Runs(case.landscape, orders)
    means = np.mean(case.landscape.optimum / padded(runs, task.evaluations), axis=0)
    return Result(
        space=task.case,
        sampler=task.sampler,
        start=task.start,
        batch=task.batch,
        seeds=task.seeds,
        evaluations=task.evaluations,
        to_5_percent=finite(runs.evaluations_to(0.05)),
        to_2_percent=finite(runs.evaluations_to(0.02)),
        share={n: float(means[min(n, len(means)) - 1]) for n in BUDGETS},
        score=runs.score(most=task.evaluations),
        score_of_mean=runs.score(True, task.evaluations),
        repeats=runs.repeats(),
        ms_per_proposal=1e3 * spent / sum(map(len, orders)),
        curve=tuple(map(float, means)),
    )


def result_from(form: dict[str, Any]) -> Result:
    share = {int(n): value for n, value in form.pop("share").items()}
    return Result(**{**form, "share": share, "curve": tuple(form["curve"])})


def finite(count: float) -> float | None:
    return None if np.isinf(count) else count


def replayed(
    proposals: Proposals,
    case: Case,
    index: dict[Candidate, int],
    task: Task,
    stop: bool = True,
) -> Iterable[int]:
    """The candidates of one run, by index, in the order in which they are told; `stop` at the
    optimum."""
    winner, told = index[case.winner], 0
    while told < task.evaluations:
        batch = []
        for _ in range(min(task.batch, task.evaluations - told)):
            candidate = proposals.next()
            if candidate is None:
                break
            batch.append(index[candidate])
        if not batch:
            return
        for number in batch:
            proposals.tell(case.trials[number])
            told += 1
            yield number
        if stop and winner in batch:
            return


def padded(runs: Runs, length: int) -> Any:
    return runs.curves[:, np.minimum(np.arange(length), runs.curves.shape[1] - 1)]


def compact(report: dict[str, Any]) -> str:
    """JSON with four digits, a result a line, so that it diffs well."""
    rounded = json.loads(json.dumps(report), parse_float=lambda text: float(f"{float(text):.4g}"))
    rows = ",\n".join("  " + json.dumps(row) for row in rounded.pop("results"))
    head = json.dumps(rounded, indent=1)[:-2]
    return f'{head},\n "results": [\n{rows}\n ]\n}}\n'


if __name__ == "__main__":
    main()
