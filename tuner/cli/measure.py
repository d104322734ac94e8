"""Commands that need a GPU: `tuner bench`, `tuner record`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli import options, places
from tuner.cli.failure import CommandError, warn
from tuner.cli.options import (
    Batch,
    Causal,
    Database,
    Dtype,
    Gpus,
    Hdim,
    Heads,
    Jobs,
    Json,
    NeededHdim,
    NeededSeqlen,
    Seqlen,
    Template,
)


def bench(
    hdim: Hdim = None,
    seqlen: Seqlen = None,
    causal: Causal = None,
    dtype: Dtype = None,
    batch: Batch = None,
    heads: Heads = None,
    rounds: Annotated[
        int,
        typer.Option(
            metavar="N", parser=options.whole_number, help="Interleaved rounds of us and peers."
        ),
    ] = 7,
    db: Database = None,
    as_json: Json = False,
) -> None:
    """Measure attention as callers get it beside SDPA: the headline shapes, or those named."""
    asked = options.shapes(hdim, seqlen, causal, dtype, batch, heads)

    from tuner.cli.executors import needs_gpu

    needs_gpu("bench")

    from kernels.attention.problem import HEADLINE
    from tuner import bench as benchmark
    from tuner.control import use

    if asked.headdims and asked.seqlens:
        problems = asked.named()
    else:
        problems = asked.variants(HEADLINE)
    if db is not None:
        use(db)
    report = benchmark.bench(problems=problems, rounds=rounds)
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        from tuner.cli.bench_table import print_bench
        from tuner.cli.tables import console

        print_bench(console(), report)
    if not all(row.correct for row in report.rows):
        warn("a result differs from SDPA by more than rounding explains")
        raise typer.Exit(1)


def record(
    hdim: NeededHdim = None,
    seqlen: NeededSeqlen = None,
    causal: Causal = None,
    dtype: Dtype = None,
    batch: Batch = None,
    heads: Heads = None,
    template: Template = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", parser=options.path, help="Folder for the files."
        ),
    ] = Path(),
    jobs: Jobs = None,
    gpus: Gpus = None,
    db: Database = None,
    as_json: Json = False,
) -> None:
    """Measure every feasible config of problems, and write the spaces as files to replay.

    Everything measured is kept in the database as it comes: the same command resumes. Use a --db of
    its own: configs that a search knows already were stopped early against the best of all.
    """
    asked = options.shapes(hdim, seqlen, causal, dtype, batch, heads)
    problems = asked.named()
    templates = options.templates(template)
    places.writable_folder("--output", output)  # before hours of measuring, not after

    from tuner.cli.display import watching
    from tuner.cli.executors import executor_for, needs_gpu
    from tuner.cli.interruption import keeping
    from tuner.recording import record_spaces
    from tuner.store.database import Store
    from tuner.store.locations import user_database

    needs_gpu("record")
    with (
        executor_for("cuda", None, jobs, gpus) as executor,
        watching(as_json) as watch,
    ):
        refusals = [executor.refuse(problem) for problem in problems]
        if all(refusals):
            raise CommandError(f"{refusals[0]}, so there is nothing to record")
        with Store.open(user_database(db)) as store:
            watch.say(executor.announce())
            with keeping(watch, store.location) as observer:
                paths = record_spaces(problems, executor, store, output, templates, observer)
        for path in paths:
            watch.say(f"Wrote {path}.")
    if not paths:
        raise CommandError(watch.refusal)
