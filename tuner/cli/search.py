"""`tuner search`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import options
from tuner.cli.failure import CommandError
from tuner.cli.options import (
    Batch,
    Causal,
    Database,
    Dtype,
    Gpus,
    Hdim,
    Heads,
    Json,
    Seqlen,
    Spaces,
    Template,
)

if TYPE_CHECKING:
    from kernels.attention.problem import Problem, Specialization
    from tuner.evaluate.executor import Executor, Opening
    from tuner.record import Record
    from tuner.search.events import Seconds
    from tuner.search.options import Options
    from tuner.target import Target
    from tuner.trial import Candidate

# Numpy's and scipy's matrix libraries read these when they load. The sampler's matrices are small,
# and the cores are the compilers': with a thread on each of two cores a proposal took 100 ms, with
# one thread 4.
_MATRIX_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


def search(
    hdim: Hdim = None,
    seqlen: Seqlen = None,
    causal: Causal = None,
    dtype: Dtype = None,
    batch: Batch = None,
    heads: Heads = None,
    trials: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=options.whole_number,
            help="Trials per problem, those of earlier searches included; 60 if not given. The "
            "defaults and the winners for its like are tried in any case.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time for the whole command, such as 60s or 2m."),
    ] = None,
    sampler: Annotated[
        str, typer.Option(metavar="NAME", help="surrogate, tpe, gp, random or exhaustive.")
    ] = "surrogate",
    seed: Annotated[str, typer.Option(metavar="N", help="Seed of the sampler.")] = "0",
    template: Template = None,
    objective: Annotated[
        str,
        typer.Option(
            metavar="throughput|latency",
            help="Many launches, or single ones with a cold L2, which need a --db of their own.",
        ),
    ] = "throughput",
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            metavar=options.FLAG,
            help="Search what has a fresh record, and measure anew.",
        ),
    ] = False,
    backend: Annotated[
        str | None,
        typer.Option(metavar="cuda|replay", help="Measure, or replay; by default what works here."),
    ] = None,
    from_misses: Annotated[
        bool,
        typer.Option(
            "--from-misses",
            metavar=options.FLAG,
            help="What production ran untuned, as noted under TUNER_RECORD_MISSES=1, not the grid.",
        ),
    ] = False,
    spaces: Spaces = None,
    gpus: Gpus = None,
    executor: Annotated[
        str | None,
        typer.Option(metavar="local|ray", help="Where to: this machine, or a Ray cluster."),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="The cluster's; $RAY_ADDRESS, else the one of this machine."
        ),
    ] = None,
    db: Database = None,
    as_json: Json = False,
) -> None:
    """Tune problems: the benchmark grid (seqlens 512 to 16384), narrowed by the options.

    Everything measured is kept as it comes: the same command resumes an interrupted search.
    """
    began = time.monotonic()
    asked = options.shapes(hdim, seqlen, causal, dtype, batch, heads)
    budget_s = options.seconds("--budget", budget)
    sampler_seed = options.seed(seed)
    templates = options.templates(template)
    for name in _MATRIX_THREADS:
        os.environ.setdefault(name, "1")

    from tuner.cli.display import watching
    from tuner.cli.executors import executor_for
    from tuner.cli.interruption import keeping
    from tuner.cli.jsonform import json_form
    from tuner.cli.missed import Missed
    from tuner.device import has_gpu
    from tuner.search import driver, samplers
    from tuner.search.events import Seconds
    from tuner.search.objective import OBJECTIVES, conflict
    from tuner.search.options import Options
    from tuner.store.layers import Layers
    from tuner.store.rows import trial_row

    options.one_of("--sampler", sampler, samplers.NAMES)
    options.one_of("--objective", objective, OBJECTIVES)
    latency = objective == "latency"
    if latency and db is None:
        raise CommandError("--objective is latency, but that needs a --db for its records alone")
    if backend != "replay" and spaces is None and has_gpu():
        samplers.begin_warm_up(sampler)  # while its process starts
    settings = Options(trials, budget_s, sampler, sampler_seed, force, templates)
    first = None if from_misses else _opening(asked.grid(), db, settings)
    with executor_for(backend, spaces, None, gpus, executor, ray_address, latency, first) as opened:
        missed = Missed(asked, opened) if from_misses else None
        problems = asked.grid() if missed is None else missed.problems
        served = _served(opened, problems, templates)
        opened.check(served, trial_row)
        left_out = len(problems) - len(served)
        if asked.seqlens is None:
            problems = served  # nobody named what is refused: the rest of the grid will do
        start = Seconds.opened(time.monotonic() - began)
        settings = settings.after(start.opening)
        with Layers.open(db) as layers, watching(as_json) as watch:
            watch.seconds += start
            if opened.origin == "cuda" and (why := conflict(layers.store, objective)):
                raise CommandError(f"{why}: give another --db")
            watch.say(opened.announce())
            if asked.seqlens is None and left_out:
                watch.say(f"Left out: {left_out} problems that {_cannot(opened)}.")
            for name, count in _untried(opened, served, templates).items():
                watch.say(f"Without {name} in {count} of {len(served)}, where it was not recorded.")
            if missed is not None:
                problems = missed.plan(served, layers.standing())
                watch.say(missed.summary(problems))
            with keeping(watch, layers.store.location) as observer:
                results = driver.search(
                    problems, opened, layers.store, layers.standing(), settings, observer
                )
        records = [record for record in results if record is not None]
        if missed is not None:
            missed.settle(record.problem for record in records)
        if as_json:
            done = {"event": "done", "seconds": watch.seconds, "records": records}
            print(json.dumps(json_form(done)))
        elif records:
            _print(records, opened, watch.seconds)
    if problems and not records:
        raise CommandError(watch.refusal)


def _opening(problems: Sequence[Problem], db: str | None, settings: Options) -> Opening:
    """What a search of `problems` compiles first, by what can be read of `db`; nothing where there
    are trials already, from which it goes on."""

    def first(target: Target) -> list[tuple[Candidate, Specialization]]:
        from tuner.search.opening import opening
        from tuner.store.database import Store
        from tuner.store.errors import StoreError
        from tuner.store.layers import Layers, never_made
        from tuner.store.locations import shipped_database, user_database

        try:
            own = user_database(db)
            new = never_made(own)
            known = Layers.load(shipped_database() if new else db).standing()
            fresh = set() if settings.force else {record.key for record in known}
            here = target.hardware.key, target.triton
            problem = next((each for each in problems if (each, *here) not in fresh), None)
            if problem is None:
                return []
            if not new:
                with Store.read_only(own) as store:
                    if store.trials(problem):
                        return []
        except (StoreError, TypeError, ValueError):  # which opening it for the search will say
            return []
        return opening(problem, known, target, settings)

    return first


def _served(
    executor: Executor, problems: Sequence[Problem], templates: tuple[str, ...] | None
) -> list[Problem]:
    """Those of `problems` that the executor can search.

    Raises:
        CommandError: none.
    """
    from kernels.attention import registry
    from tuner.device import has_gpu
    from tuner.liveness import unserved

    def refusal(problem: Problem) -> str | None:
        names = templates or registry.names()
        if any(executor.template_version(problem, name) for name in names):
            return executor.refuse(problem)
        return executor.refuse(problem) or f"{problem} was not recorded of {' or '.join(names)}"

    refusals = {problem: refusal(problem) for problem in problems}
    served = [problem for problem, why in refusals.items() if why is None]
    if served:
        return served
    first = problems[0]
    elsewhere = unserved(first, executor.target.hardware.capability) is None
    advice = "; there is no GPU here to measure it" if elsewhere and not has_gpu() else ""
    raise CommandError(f"{refusals[first]}{advice}")


def _print(records: Sequence[Record], executor: Executor, seconds: Seconds) -> None:
    """The table of records, and where the time went."""
    from tuner.cli.tables import console, print_line, print_records, time_line

    out = console()
    print_records(out, f"Records on {executor.target.gpu_name}", records)
    if seconds.wall > seconds.opening:  # something was searched
        out.print(time_line(seconds, executor.origin))
    if executor.origin == "replay":
        print_line(
            out,
            "Replayed records displace no measured ones: `tuner show` lists those that stand, "
            "`tuner show --all` these, too.",
        )


def _cannot(executor: Executor) -> str:
    return "were not recorded" if executor.origin == "replay" else "no template serves here"


def _untried(
    executor: Executor, problems: Sequence[Problem], templates: tuple[str, ...] | None
) -> dict[str, int]:
    """How many of `problems` a replay has no recording of a template for that would serve them."""
    from kernels.attention import registry

    if executor.origin != "replay":
        return {}
    capability = executor.target.hardware.capability
    counts = {
        name: sum(
            registry.get(name).supports(problem.specialization, capability) is None
            and not executor.template_version(problem, name)
            for problem in problems
        )
        for name in templates or registry.names()
    }
    return {name: count for name, count in counts.items() if count}
