"""Our search against the other ways to tune the same kernel, on the card at hand.

    python scripts/prove_search.py --budget 25m --output prove.json
    python scripts/prove_search.py --shapes 128 --contestants exhaustive --budget 150s --add

For each headline shape, every contestant starts cold: with an empty database and an empty cache of
Triton. `ours` is `tuner search` as it comes, with a seed a repeat; `exhaustive` tries every
feasible config by the same farm and the same gate; `autotune` is @triton.autotune over the same
tl.* space, which compiles one config after the other; `helion` is Helion's tuner on its attention
kernel, where it is installed (rival_tuners.py). Then all winners that are configs of ours race in
the same interleaved rounds: those rates are what is compared, not what each contestant believed.

A contestant that does not fit into what is left of the budget is left out and the table says so.
The JSON is written after every contestant, so that whatever was measured is there. With --add, what
OUTPUT holds is kept and its winners race too: so all of it can be had in parts, each as short as
its --budget and what a race takes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from itertools import combinations
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (makes kernels.attention importable)
from kernels.attention.problem import Problem
from tuner.cli.failure import CommandError
from tuner.cli.options import seconds as seconds_of
from tuner.device import has_gpu
from tuner.evaluate.executor import Executor, Race
from tuner.evaluate.wire import candidate_from_json, candidate_to_json
from tuner.search.driver import search
from tuner.search.events import Event, ProblemEnded, TrialEnded
from tuner.search.options import Options
from tuner.store.database import Store
from tuner.trial import Candidate, Outcome

HEADLINES = {64: 4096, 128: 8192, 256: 16384}
CONTESTANTS = ("ours", "exhaustive", "autotune", "helion")
RIVALS = Path(__file__).with_name("rival_tuners.py")
RACE_S = 25.0  # kept for the race of a shape's winners: a process, their binaries, the rounds
RIVAL_GRACE_S = 20.0  # that a rival may take to notice that its time is up
LEAST_S = 20.0  # less is no use to any contestant

Opener = Callable[[], Executor]


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
    regret: float | None = None  # its ms in that race over the least
    tied: tuple[str, ...] = ()  # whom its own finals could not tell from the winner
    note: str = ""
    parts: dict[str, float] = field(default_factory=dict)  # where its seconds went

    def to_json(self) -> dict[str, Any]:
        form = {**asdict(self), "candidate": None}
        if self.candidate is not None:
            form["candidate"] = candidate_to_json(self.candidate)
        return form

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Run:
        run = cls(**{**form, "candidate": None, "tied": tuple(form["tied"])})
        if form["candidate"] is not None:
            run.candidate = candidate_from_json(form["candidate"])
        return run


@contextmanager
def cold() -> Iterator[Path]:
    """An empty folder, where Triton's cache is until the end."""
    before = os.environ.get("TRITON_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="prove-") as folder:
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["TRITON_CACHE_DIR"]
            else:
                os.environ["TRITON_CACHE_DIR"] = before


def searched(problem: Problem, opened: Opener, options: Options, contestant: str) -> Run:
    """A search of ours from an empty database and an empty cache."""
    run = Run(contestant, options.seed)

    def watch(event: Event) -> None:
        if isinstance(event, TrialEnded):
            run.evaluations += event.trial.outcome in (Outcome.OK, Outcome.PRUNED)
        elif isinstance(event, ProblemEnded):
            run.parts = {**asdict(event.seconds), "searching": event.seconds.searching}

    with cold() as folder:
        began = time.monotonic()
        with opened() as executor, Store.open(folder / "configs.db") as store:
            (record,) = search([problem], executor, store, [], options, watch)
            run.seconds = time.monotonic() - began
    if record is None:
        run.note = "nothing was recorded"
    else:
        run.candidate, run.believed_ms = record.candidate, record.measurement.median_ms
        run.note, run.tied = record.note, record.tied
    return run


def rival(problem: Problem, contestant: str, limit_s: float) -> Run:
    """A tuner that is not ours, in a process of its own."""
    run = Run(contestant)
    command = [sys.executable, str(RIVALS), contestant, json.dumps(asdict(problem)), str(limit_s)]
    with cold():
        began = time.monotonic()
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            # It stops itself in time, but for a compilation or a launch that hangs.
            printed, complained = child.communicate(timeout=limit_s + RIVAL_GRACE_S)
        except subprocess.TimeoutExpired:
            # With all that it started, which hold its pipes open.
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            run.seconds, run.note = time.monotonic() - began, "did not end in time"
            return run
        run.seconds = time.monotonic() - began
    lines = printed.strip().splitlines()
    if child.returncode or not lines:
        said = (complained or printed).strip().splitlines()
        run.note = f"failed: {said[-1] if said else 'no message'}"
        return run
    reply = json.loads(lines[-1])
    run.evaluations, run.believed_ms, run.note = (
        reply.get("evaluations", 0), reply.get("ms"), reply.get("note", "")
    )  # fmt: skip
    if reply.get("candidate"):
        run.candidate = candidate_from_json(reply["candidate"])
    elif run.believed_ms:
        run.tflops = problem.flops / run.believed_ms * 1e-9
    return run


def raced(runs: Sequence[Run], race: Race) -> None:
    """Fill in what the race of all winners says of each run."""
    times = {candidate: m.median_ms for candidate, m in race.entrants.items()}
    if not times:
        return
    least = min(times.values())
    for run in runs:
        if run.candidate in race.entrants:
            assert run.candidate is not None
            run.tflops = race.entrants[run.candidate].tflops
            run.regret = times[run.candidate] / least
        elif run.candidate is not None:
            run.note = f"{run.note}; did not race: {race.dropped.get(run.candidate, 'unknown')}"


def prove(
    problem: Problem,
    opened: Opener,
    contestants: Sequence[str],
    repeats: int,
    trials: int | None,
    left: Callable[[], float],
    keep: Callable[[list[Run]], None],
    earlier: Sequence[Run] = (),
    rounds: int = 15,
) -> list[Run]:
    """All contestants on one shape.

    Args:
        repeats: of ours, each with a seed of its own.
        trials: of ours; None: as many as `tuner search` makes.
        left: seconds that may still be spent.
        keep: told what there is after each contestant.
        earlier: runs that are there already. They race, and are not made again.
    """
    runs = list(earlier)
    there = {(run.contestant, run.seed) for run in runs}
    for contestant in contestants:
        for seed in range(repeats if contestant == "ours" else 1):
            if (contestant, seed) in there:
                continue
            limit = left() - RACE_S
            if limit < LEAST_S:
                runs.append(Run(contestant, seed, note="left out: no time was left"))
            elif contestant in ("ours", "exhaustive"):
                sampler = "surrogate" if contestant == "ours" else "exhaustive"
                options = Options(
                    trials if contestant == "ours" else None, limit, sampler, seed, force=True
                )
                runs.append(searched(problem, opened, options, contestant))
            else:
                runs.append(rival(problem, contestant, limit))
            keep(runs)
    winners = list(dict.fromkeys(run.candidate for run in runs if run.candidate is not None))
    if winners:
        with opened() as executor:
            # Side by side, where the race would compile one after the other.
            wait([executor.compile(problem, winner) for winner in winners])
            raced(runs, executor.race(problem, winners, rounds).result())
        keep(runs)
    return runs


def table(results: dict[str, list[Run]]) -> str:
    """Markdown."""
    lines = [
        "| shape | contestant | s from cold | evaluations | TFLOP/s | of the best | note |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for shape, runs in results.items():
        for run in runs:
            name = f"{run.contestant} {run.seed}" if run.contestant == "ours" else run.contestant
            rate = f"{run.tflops:.0f}" if run.tflops else "–"
            share = f"{1 / run.regret:.3f}" if run.regret else "–"
            lines.append(
                f"| {shape} | {name} | {run.seconds:.0f} | {run.evaluations} | {rate} | {share} "
                f"| {run.note} |"
            )
        ours = [run for run in runs if run.contestant == "ours" and run.regret]
        if len(ours) > 1:
            lines.append(f"\n{shape}: {_summary(ours)}\n")
    return "\n".join(lines)


def kept(report: dict[str, Any], target: dict[str, Any]) -> dict[str, list[Run]]:
    """The runs of an earlier report by shape, without those that were left out.

    Raises:
        ValueError: they were made on another target.
    """
    if report["target"] != target:
        raise ValueError(f"the runs there are of {report['target']}, but this is {target}")
    return {
        shape: [run for form in runs if (run := Run.from_json(form)).seconds > 0]
        for shape, runs in report["runs"].items()
    }


def _summary(ours: Sequence[Run]) -> str:
    """What several searches of one shape say together."""
    regrets = [run.regret for run in ours if run.regret]
    shares = [run.parts["searching"] / run.parts["wall"] for run in ours if run.parts.get("wall")]
    overhead = f"{max(shares):.1%}" if shares else "an unknown share"
    return (
        f"regret of ours over {len(ours)} runs: {exp(fmean(map(log, regrets))):.4f} (geometric "
        f"mean), {max(regrets):.4f} (worst); {len({run.candidate for run in ours})} winners, "
        f"{len(_disagreeing(ours))} pairs that differ and name no tie; at most {overhead} of the "
        "wall clock went to searching itself"
    )


def _disagreeing(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """The pairs with different winners of which either does not name the other's as tied."""
    return [
        (one, other)
        for one, other in combinations(runs, 2)
        if one.candidate != other.candidate
        and not (str(other.candidate) in one.tied and str(one.candidate) in other.tied)
    ]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="64,128,256", help="headdims of headline shapes")
    parser.add_argument("--full", action="store_true", help="without the causal mask")
    parser.add_argument("--dtype", default="fp16", choices=("fp16", "bf16"))
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--repeats", type=int, default=1, help="of ours, by seed")
    parser.add_argument("--trials", type=int, help="of ours; as many as `tuner search` makes")
    parser.add_argument("--budget", default="25m", help="time for all of it")
    parser.add_argument("--add", action="store_true", help="to what OUTPUT holds already")
    parser.add_argument("--output", type=Path, default=Path("prove.json"))
    arguments = parser.parse_args(words)
    for option, number in (("--repeats", arguments.repeats), ("--trials", arguments.trials)):
        if number is not None and number < 1:
            parser.error(f"{option} is {number}, but must be a whole number of at least 1")
    contestants = arguments.contestants.split(",")
    if unknown := [name for name in contestants if name not in CONTESTANTS]:
        parser.error(f"contestant is {unknown[0]!r}, but must be one of {', '.join(CONTESTANTS)}")
    try:
        budget_s = seconds_of("--budget", arguments.budget)
    except CommandError as error:
        parser.error(str(error))
    assert budget_s is not None
    end = time.monotonic() + budget_s

    if shapes := set(arguments.shapes.split(",")) - set(map(str, HEADLINES)):
        parser.error(
            f"--shapes has {min(shapes)!r}, but must be some of {', '.join(map(str, HEADLINES))}"
        )
    if not has_gpu():
        parser.error("this measures, but there is no NVIDIA GPU here")

    from tuner.evaluate.local import LocalExecutor

    with LocalExecutor() as executor:
        target = asdict(executor.target)
    results: dict[str, list[Run]] = {}
    if arguments.add and arguments.output.exists():
        results = kept(json.loads(arguments.output.read_text()), target)
    problems = [
        Problem.on_grid(int(name), HEADLINES[int(name)], not arguments.full, arguments.dtype)
        for name in arguments.shapes.split(",")
    ]

    def write() -> None:
        report = {
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "target": target,
            "runs": {shape: [run.to_json() for run in runs] for shape, runs in results.items()},
        }
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")

    for number, problem in enumerate(problems):
        until = time.monotonic() + (end - time.monotonic()) / (len(problems) - number)

        def left(until: float = until) -> float:
            return until - time.monotonic()

        def keep(runs: list[Run], problem: Problem = problem) -> None:
            results[str(problem)] = runs
            write()
            run = runs[-1]
            print(f"{problem}: {run.contestant} {run.seconds:.0f} s {run.note}", file=sys.stderr)

        prove(
            problem, LocalExecutor, contestants, arguments.repeats, arguments.trials,
            left, keep, results.get(str(problem), ()),
        )  # fmt: skip
    print(table(results))


if __name__ == "__main__":
    main()
