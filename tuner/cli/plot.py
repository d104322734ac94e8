"""`tuner plot`, and the trials that are drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner import extras
from tuner.cli import options, places
from tuner.cli.failure import CommandError, warn
from tuner.cli.options import Batch, Causal, Database, Dtype, Heads, NeededHdim, NeededSeqlen
from tuner.cli.saying import say

if TYPE_CHECKING:
    from kernels.attention.problem import Problem
    from tuner.trial import Trial

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
    wanted = "svg" if suffix is None else suffix
    suffix = options.one_of("--format", wanted, ("svg", "png", "pdf"))
    if output is not None:
        places.writable_folder("--output", output)

    from tuner.search import pictures
    from tuner.search.study import study_of

    kinds = options.several("--kind", kind, pictures.KINDS) or pictures.KINDS
    drawn = 0
    for problem in problems:
        trials = trials_of(problem, spaces, db)
        if not any(trial.outcome.timed for trial in trials):
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
                        f"--output, or {extras.command('plotext')}"
                    ) from None
            else:
                path = output / f"{str(problem).replace(' ', '-')}.{name}.{suffix}"
                try:
                    pictures.save(study, name, path)
                except ImportError:
                    raise CommandError(
                        "files need matplotlib, which is not installed: "
                        f"{extras.command('matplotlib')}"
                    ) from None
                except OSError as error:
                    raise CommandError(
                        f"--output is {places.named(output)}, but must be a folder that can be "
                        f"written: {path.name}: {error.strerror or error}"
                    ) from None
                say(str(path))
            drawn += 1
    if not drawn:
        raise CommandError("nothing was drawn; `tuner search` makes trials")


def trials_of(problem: Problem, spaces: Path | None, db: str | None) -> list[Trial]:
    """The comparable trials of `problem`, of a recorded space or of the user's database."""
    from tuner.search.study import together

    if spaces is not None:
        from tuner.evaluate.space_file import read_folder
        from tuner.store.rows import trial_row

        held = read_folder(places.folder_of_spaces("--spaces", spaces))
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
