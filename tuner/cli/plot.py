"""`tuner plot` and `tuner dashboard`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import options
from tuner.cli.failure import CommandError, warn
from tuner.cli.options import Batch, Causal, Database, Dtype, Heads, NeededHdim, NeededSeqlen
from tuner.cli.saying import say

if TYPE_CHECKING:
    from kernels.attention.problem import Problem
    from tuner.trial import Trial

_GREATEST_PORT = 65535

Drawn = Annotated[
    Path | None,
    typer.Option(
        "--spaces",
        metavar="DIR",
        parser=options.path,
        help="Draw the recorded spaces in this folder instead of your trials.",
    ),
]


def plot(
    hdim: NeededHdim = None,
    seqlen: NeededSeqlen = None,
    causal: Causal = None,
    dtype: Dtype = None,
    batch: Batch = None,
    heads: Heads = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="NAME",
            help="history, importances, slices or distribution; repeat, or separate by commas; all "
            "if not given.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            parser=options.path,
            help="Save files here; else draw in the terminal.",
        ),
    ] = None,
    suffix: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="NAME", help="Of the files: svg, png or pdf; svg if not given."
        ),
    ] = None,
    spaces: Drawn = None,
    db: Database = None,
) -> None:
    """Draw the trials of problems: their history, which parameters matter, slices, distribution."""
    problems = options.shapes(hdim, seqlen, causal, dtype, batch, heads).named()
    if suffix is not None and output is None:
        raise CommandError("--format is given, but goes with --output only")
    suffix = options.one_of("--format", suffix or "svg", ("svg", "png", "pdf"))
    if output is not None:
        options.writable_folder("--output", output)

    from tuner.search import pictures
    from tuner.search.study import study_of

    kinds = options.several("--kind", kind, pictures.KINDS) or pictures.KINDS
    drawn = 0
    for problem in problems:
        trials = _trials(problem, spaces, db)
        if not any(trial.measurement for trial in trials):
            warn(f"{problem} has no trial that succeeded, so there is nothing to draw")
            continue
        study = study_of(trials, str(problem))
        for name in kinds:
            if output is None:
                try:
                    print(pictures.show(study, name))
                except ImportError:
                    raise CommandError(
                        "drawing in the terminal needs plotext 5, which is not installed: give "
                        "--output, or pip install 'attention-tuner[plot]'"
                    ) from None
            else:
                path = output / f"{str(problem).replace(' ', '-')}.{name}.{suffix}"
                try:
                    pictures.save(study, name, path)
                except ImportError:
                    raise CommandError(
                        "files need matplotlib, which is not installed: pip install "
                        "'attention-tuner[plot]'"
                    ) from None
                say(str(path))
            drawn += 1
    if not drawn:
        raise CommandError("nothing was drawn; `tuner search` makes trials")


def dashboard(
    hdim: NeededHdim = None,
    seqlen: NeededSeqlen = None,
    causal: Causal = None,
    dtype: Dtype = None,
    batch: Batch = None,
    heads: Heads = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            parser=options.path,
            help="Optuna storage to write, anew.",
        ),
    ] = Path("studies.db"),
    export_only: Annotated[
        bool,
        typer.Option(
            "--export-only", metavar=options.FLAG, help="Write the file and open nothing."
        ),
    ] = False,
    host: Annotated[
        str, typer.Option(metavar="NAME", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", parser=options.whole_number, help="The port to listen on.")
    ] = 8080,
    spaces: Drawn = None,
    db: Database = None,
) -> None:
    """Export the trials of problems as Optuna studies and open optuna-dashboard on them.

    The file is Optuna's alone, and a copy: no search reads it.
    """
    problems = options.shapes(hdim, seqlen, causal, dtype, batch, heads).named()
    options.new_file("--output", output)
    if port > _GREATEST_PORT:
        raise CommandError(
            f"--port is {port}, but must be a whole number from 1 to {_GREATEST_PORT}"
        )

    from tuner.search.study import study_of

    found = {problem: _trials(problem, spaces, db) for problem in problems}
    found = {problem: trials for problem, trials in found.items() if trials}
    if not found:
        raise CommandError("there are no trials to export; `tuner search` makes some")

    import optuna
    from sqlalchemy import URL
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        storage = optuna.storages.RDBStorage(
            # Not pasted together: a question mark in the name would lead to another file.
            URL.create("sqlite", database=str(output)).render_as_string()
        )
        for problem, trials in found.items():
            study_of(trials, str(problem), storage)
    except (SQLAlchemyError, UnicodeError, optuna.exceptions.StorageInternalError) as error:
        output.unlink(missing_ok=True)  # it was not there before
        why = str(getattr(error, "orig", None) or error).partition("\n")[0]
        raise CommandError(
            f"--output is '{output}', but must be a file that SQLite can write: {why}"
        ) from None
    for problem, trials in found.items():
        say(f"{len(trials)} trials of {problem} in {output}")
    if export_only:
        return
    try:
        from optuna_dashboard import run_server
    except ImportError:
        raise CommandError(
            f"{output} is written, but optuna-dashboard is not installed to open it: pip install "
            "'attention-tuner[dashboard]'"
        ) from None
    say(f"http://{host}:{port} until Ctrl-C")
    run_server(storage, host=host, port=port)


def _trials(problem: Problem, spaces: Path | None, db: str | None) -> list[Trial]:
    """The comparable trials of `problem`, of a recorded space or of the user's database."""
    from tuner.search.study import together

    if spaces is not None:
        from tuner.evaluate.space_file import read_folder
        from tuner.store.rows import trial_row

        held = read_folder(options.folder_of_spaces("--spaces", spaces))
        files = [space for space in held if space.header.problem == problem]
        for space in files:
            space.check(trial_row)
        return together(trial for space in files for trial in space.trials.values())
    from tuner.store.database import Store
    from tuner.store.layers import never_made
    from tuner.store.locations import user_database

    if db is None and never_made(user_database()):
        return []
    with Store.read_only(user_database(db)) as store:
        return together(store.trials(problem=problem))
