"""Our search against the other ways to tune the same kernel, on the card at hand.

    python scripts/prove_search.py --budget 25m --output prove.json
    python scripts/prove_search.py --shapes 128 --contestants exhaustive --budget 540s --add

For each headline shape, every contestant starts cold: with an empty database and an empty cache of
Triton. `ours` is `tuner search` as it comes, with a seed a repeat; `exhaustive` tries every
feasible config by the same farm and the same gate; `autotune` is @triton.autotune over the same
tl.* space, which compiles one config after the other; `helion` is Helion's tuner on its attention
kernel, where it is installed (rival_tuners.py). Then all winners that are configs of ours race in
the same interleaved rounds: those rates are what is compared, not what each contestant believed.
Helion's kernel is timed in the rounds of one of ours in its own process, and compared through it.

A contestant that does not fit into what is left of the budget is left out and the table says so;
rivals, which take all the time they get, share it with those after them. The JSON is written after
every contestant, so that whatever was measured is there. With --add, what OUTPUT holds is kept, but
for searches that were cut short, and its winners race too: so all of it can be had in parts, each
as short as its --budget and what a race takes. What rivals print is beside OUTPUT, as NAME.log.
With --spaces, all that an exhaustive search tried of the winner's template is kept, too, as `tuner
record` would write it; configs of others were stopped early against the winner, and say little.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from unittest.mock import patch

# Before numpy loads, as `tuner search` sets them: with a thread on each of two cores a proposal
# takes 100 ms, with one thread 4.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# This folder for its modules: a package called `scripts` may be installed, and hides it.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (makes kernels.attention importable)
from kernels.attention.problem import HEADLINE, Problem
from tuner.cli.failure import CommandError
from tuner.cli.options import seconds as seconds_of
from tuner.device import has_gpu
from tuner.evaluate.executor import Executor, Opening
from tuner.evaluate.wire import candidate_from_json, candidate_to_json
from tuner.moments import now
from tuner.recording import write_spaces
from tuner.search import samplers
from tuner.search.driver import search
from tuner.search.events import Event, ProblemEnded, Seconds, TrialEnded
from tuner.search.opening import opening
from tuner.search.options import Options
from tuner.search.verdict import CUT_SHORT
from tuner.store.database import Store
from tuner.trial import Candidate

if TYPE_CHECKING:
    from scripts import refusals
    from scripts.proof_report import Run, kept, raced, table
else:
    import refusals
    from proof_report import Run, kept, raced, table

HEADLINES = {problem.headdim: problem.seqlen for problem in HEADLINE}
CONTESTANTS = ("ours", "exhaustive", "autotune", "helion")
RIVALS = Path(__file__).with_name("rival_tuners.py")
ROUNDS = 100  # at least, of the race of a shape's winners
RACE_S = 75.0  # kept for that race: a process, their binaries, the rounds
RIVAL_GRACE_S = 20.0  # that a rival may take to notice that its time is up
LEAST_S = 30.0  # less is no use to any contestant

Opener = Callable[[Opening | None], Executor]


@contextmanager
def cold() -> Iterator[Path]:
    """An empty folder, where Triton's cache is until the end."""
    # A worker that is killed may write for a moment more: what it leaves is no reason to fail.
    with (
        tempfile.TemporaryDirectory(prefix="prove-", ignore_cleanup_errors=True) as folder,
        patch.dict(os.environ, TRITON_CACHE_DIR=str(Path(folder) / "triton")),
    ):
        yield Path(folder)


def searched(
    problem: Problem,
    opened: Opener,
    options: Options,
    contestant: str,
    spaces: Path | None = None,
) -> Run:
    """A search of ours from an empty database and an empty cache.

    Args:
        spaces: where all that it tried of the winner's template is written to, if it was not cut
            short.
    """
    run = Run(contestant, options.seed)

    def watch(event: Event) -> None:
        if isinstance(event, TrialEnded):
            run.evaluations += event.trial.outcome.timed
        elif isinstance(event, ProblemEnded):
            run.parts = (start + event.seconds).parts

    with cold() as folder:
        began = time.monotonic()
        samplers.begin_warm_up(options.sampler)
        first = partial(opening, problem, (), options=options)
        with opened(first) as executor, Store.open(folder / "configs.db") as store:
            start = Seconds.opened(time.monotonic() - began)
            options = options.after(start.opening)
            (record,) = search([problem], executor, store, [], options, watch)
            run.seconds = time.monotonic() - began
            run.note = "nothing was recorded" if record is None else record.note
            if spaces is not None and record is not None and CUT_SHORT not in record.note:
                won = (record.candidate.template,)
                try:
                    write_spaces(problem, record, executor, store, spaces, won)
                except OSError as error:  # a full disk: what the search came to is not lost
                    unwritten = f"its space was not written: {error.strerror or error}"
                    run.note = "; ".join(filter(None, (run.note, unwritten)))
    if record is not None:
        run.candidate, run.believed_ms = record.candidate, record.measurement.median_ms
    return run


def rival(
    problem: Problem,
    contestant: str,
    limit_s: float,
    log: IO[str] | None = None,
    beside: Candidate | None = None,
) -> Run:
    """A tuner that is not ours, in a process of its own.

    Args:
        log: where its complaints go.
        beside: to time a kernel that is not ours with.
    """
    run = Run(contestant)
    command = [sys.executable, str(RIVALS), contestant, json.dumps(asdict(problem)), str(limit_s)]
    if beside is not None:
        command.append(json.dumps(candidate_to_json(beside)))
    with (
        cold() as folder,
        (folder / "replies").open("w+", errors="replace") as replies,
        log or (folder / "log").open("w+", errors="replace") as complaints,
    ):
        before = complaints.seek(0, os.SEEK_END)
        began = time.monotonic()
        # Files, not pipes, which whatever it started may hold open.
        child = subprocess.Popen(command, stdout=replies, stderr=complaints, start_new_session=True)
        try:
            # It stops itself in time, but for a compilation or a launch that hangs.
            child.wait(limit_s + RIVAL_GRACE_S)
        except subprocess.TimeoutExpired:
            run.note = "did not end in time"
        run.seconds = time.monotonic() - began
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # with all that it started
        child.wait()
        replies.seek(0)
        complaints.seek(before)
        printed, said = replies.read(), complaints.read().strip().splitlines()
    if child.returncode and not run.note:
        run.note = f"failed: {said[-1] if said else 'no message'}"
    reply = _last_reply(printed)
    if reply is None:
        run.note = run.note or "failed: no reply"
        return run
    run.evaluations, run.believed_ms = reply.get("evaluations", 0), reply.get("ms")
    run.note = "; ".join(filter(None, (reply.get("note"), run.note)))
    run.times = reply.get("times")
    if reply.get("candidate"):
        run.candidate = candidate_from_json(reply["candidate"])
    elif run.believed_ms:
        run.tflops = problem.tflops(run.believed_ms)
    if reply.get("beside"):
        run.beside = candidate_from_json(reply["beside"])
    return run


def _last_reply(printed: str) -> dict[str, Any] | None:
    """The last line that is a whole reply: the last of all may be half of one."""
    for line in reversed(printed.splitlines()):
        try:
            reply = json.loads(line)
        except ValueError:
            continue
        if isinstance(reply, dict):
            return reply
    return None


def prove(
    problem: Problem,
    opened: Opener,
    contestants: Sequence[str],
    repeats: int,
    trials: int | None,
    left: Callable[[], float],
    keep: Callable[[list[Run]], None],
    earlier: Sequence[Run] = (),
    logs: Callable[[str], IO[str]] | None = None,
    spaces: Path | None = None,
) -> list[Run]:
    """All contestants on one shape.

    Args:
        repeats: of ours, each with a seed of its own.
        trials: of ours; None: as many as `tuner search` makes.
        left: seconds that may still be spent.
        keep: told what there is after each contestant.
        earlier: runs that are there already. They race, and are not made again.
        logs: opens the file for what a rival complains of.
        spaces: where what the exhaustive search tried is written to.
    """
    runs = list(earlier)
    there = {(run.contestant, run.seed) for run in runs}
    due = [
        (contestant, seed)
        for contestant in contestants
        for seed in range(repeats if contestant == "ours" else 1)
        if (contestant, seed) not in there
    ]
    for number, (contestant, seed) in enumerate(due):
        limit = left() - RACE_S
        ours = contestant in ("ours", "exhaustive")
        if not ours:
            limit = limit / (len(due) - number) - RIVAL_GRACE_S
        if limit < LEAST_S:
            runs.append(Run(contestant, seed, note="left out: no time was left"))
        elif ours:
            sampler = "surrogate" if contestant == "ours" else "exhaustive"
            options = Options(
                trials if contestant == "ours" else None, limit, sampler, seed, force=True
            )
            into = spaces if contestant == "exhaustive" else None
            runs.append(searched(problem, opened, options, contestant, into))
        else:
            log = logs(contestant) if logs else None
            beside = _best(runs) if contestant == "helion" else None
            runs.append(rival(problem, contestant, limit, log, beside))
        keep(runs)
    winners = list(dict.fromkeys(run.candidate for run in runs if run.candidate is not None))
    if winners:
        with opened(None) as executor:
            # Side by side, where the race would compile one after the other.
            wait([executor.compile(problem, winner) for winner in winners])
            raced(runs, executor.race(problem, winners, ROUNDS, decide_s=0.0).result())
        keep(runs)
    return runs


def _best(runs: Sequence[Run]) -> Candidate | None:
    """The winner that is fastest by what is known so far."""
    won = [run for run in runs if run.candidate is not None]
    best = min(won, key=lambda run: (run.regret or 2.0, run.believed_ms or 0.0), default=None)
    return best.candidate if best else None


def runs_of(report: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[Run]]]:
    """The target, and the runs to keep, of what this script wrote before."""
    return dict(report["target"]), kept(report)


def main(words: Sequence[str] | None = None) -> None:
    parser = refusals.Parser(__doc__)
    parser.add_argument("--shapes", default="64,128,256", help="headdims of headline shapes")
    parser.add_argument("--full", action="store_true", help="without the causal mask")
    parser.add_argument("--dtype", default="fp16", choices=("fp16", "bf16"))
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--repeats", type=int, default=1, help="of ours, by seed")
    parser.add_argument("--trials", type=int, help="of ours; as many as `tuner search` makes")
    parser.add_argument("--budget", default="25m", help="time for all of it")
    parser.add_argument("--add", action="store_true", help="to what OUTPUT holds already")
    parser.add_argument("--output", type=Path, default=Path("prove.json"))
    parser.add_argument("--spaces", type=Path, help="folder for the exhaustive winners' templates")
    arguments = parser.parse_args(words)
    refusals.at_least(parser, 1, repeats=arguments.repeats, trials=arguments.trials)
    refusals.output(parser, arguments.output)
    if arguments.spaces is not None:
        refusals.folders(parser, "--spaces", [arguments.spaces])
    contestants = refusals.one_of(parser, "--contestants", arguments.contestants, CONTESTANTS)
    headdims = refusals.one_of(parser, "--shapes", arguments.shapes, [*map(str, HEADLINES)])
    try:
        budget_s = seconds_of("--budget", arguments.budget)
    except CommandError as error:
        parser.error(str(error))
    assert budget_s is not None
    end = time.monotonic() + budget_s
    made_on: dict[str, Any] | None = None
    results: dict[str, list[Run]] = {}
    if arguments.add and arguments.output.exists():
        made_on, results = refusals.written(
            parser, "--output", arguments.output, runs_of, "this script"
        )
    if not has_gpu():
        parser.error("this measures, but there is no NVIDIA GPU here")

    from tuner.evaluate.local import LocalExecutor

    def opened(first: Opening | None) -> Executor:
        return LocalExecutor(first=first)

    with opened(None) as executor:
        target = asdict(executor.target)
    refusals.elsewhere(parser, arguments.output, made_on, target)
    problems = [
        Problem.on_grid(int(name), HEADLINES[int(name)], not arguments.full, arguments.dtype)
        for name in headdims
    ]

    def write() -> None:
        report = {
            "date": now(),
            "target": target,
            "runs": {shape: [run.to_json() for run in runs] for shape, runs in results.items()},
        }
        text = json.dumps(report, indent=1) + "\n"
        refusals.write(parser, arguments.output, text, table(results))

    def logs(contestant: str) -> IO[str]:
        path: Path = arguments.output.with_suffix(f".{contestant}.log")
        try:
            return path.open("a+", errors="replace")
        except OSError as error:
            parser.error(f"{path} cannot be written: {error.strerror or error}")

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
            problem, opened, contestants, arguments.repeats, arguments.trials,
            left, keep, results.get(str(problem), ()), logs, arguments.spaces,
        )  # fmt: skip
    print(table(results))


if __name__ == "__main__":
    main()
