"""Commands that need a GPU: `tuner bench`, `tuner record`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli import options
from tuner.cli.failure import warn
from tuner.cli.options import (
    Batch,
    Causal,
    Database,
    Dtype,
    Hdim,
    Heads,
    Jobs,
    Json,
    Seqlen,
    Template,
)


def bench() -> None:
    """Compare with SDPA."""


def record(
    hdim: Hdim = None,
    seqlen: Seqlen = None,
    causal: Causal = None,
    dtype: Dtype = None,
    batch: Batch = None,
    heads: Heads = None,
    template: Template = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the files.")
    ] = Path(),
    jobs: Jobs = None,
    db: Database = None,
    as_json: Json = False,
) -> None:
    """Measure every feasible config of problems, and write the spaces as files to replay.

    Everything measured is kept in the database as it comes: the same command resumes.
    """
    asked = options.shapes(hdim, seqlen, causal, dtype, batch, heads)
    problems = asked.named()
    templates = options.templates(template)

    from tuner.cli.display import watching
    from tuner.cli.executors import executor_for, needs_gpu
    from tuner.recording import record_spaces
    from tuner.store.database import Store
    from tuner.store.locations import user_database

    needs_gpu("record")
    with (
        executor_for("cuda", None, jobs) as executor,
        Store.open(user_database(db)) as store,
        watching(as_json) as watch,
    ):
        watch.say(executor.announce())
        try:
            paths = record_spaces(problems, executor, store, output, templates, watch)
        except KeyboardInterrupt:
            kept = f"{watch.trials} new trials are kept in {store.location}"
            warn(f"interrupted; {kept}, and the same command resumes")
            raise typer.Exit(130) from None
        for path in paths:
            watch.say(f"Wrote {path}.")
