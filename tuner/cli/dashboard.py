"""`tuner dashboard`."""

from __future__ import annotations

import errno
import socket
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from kernels.attention.printable import shown
from tuner import extras
from tuner.cli import options, places
from tuner.cli.failure import CommandError
from tuner.cli.options import Batch, Causal, Database, Dtype, Heads, NeededHdim, NeededSeqlen
from tuner.cli.plot import Drawn, trials_of
from tuner.cli.saying import say

_GREATEST_PORT = 65535


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
            help="Optuna storage to write; an earlier export of the same is replaced.",
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
    from tuner.search import study_file

    problems = options.shapes(hdim, seqlen, causal, dtype, batch, heads).named()
    check_output = partial(_check_output, output, {str(problem) for problem in problems})
    check_output()
    if port > _GREATEST_PORT:
        raise CommandError(
            f"--port is {port}, but must be a whole number from 1 to {_GREATEST_PORT}"
        )
    if not export_only:
        try:
            from optuna_dashboard import run_server
        except ImportError:
            raise CommandError(
                "optuna-dashboard is not installed: give --export-only, or "
                f"{extras.command('dashboard')}"
            ) from None
        _check_address(host, port)

    from tuner.cli.tables import error_console

    found = {str(problem): trials_of(problem, spaces, db) for problem in problems}
    found = {problem: trials for problem, trials in found.items() if trials}
    if not found:
        raise CommandError("there are no trials to export; `tuner search` makes some")
    count = sum(map(len, found.values()))
    try:
        with error_console().status(f"exporting {count} trials"):  # some 20 s for a whole space
            study_file.write(found, output, check_output)
    except CommandError:  # of `check_output`
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise CommandError(
            f"--output is {places.named(output)}, but must be a file that SQLite can write: {why}"
        ) from None
    for problem, trials in found.items():
        say(f"{len(trials)} trials of {problem} in {output}")
    if not export_only:
        say(f"http://{f'[{host}]' if ':' in host else host}:{port} until Ctrl-C")
        run_server(study_file.storage_of(output), host=host, port=port)


def _check_output(output: Path, names: set[str]) -> None:
    """Refuse a file that holds more than studies called one of `names`, or beside which the log of
    another lies."""
    from tuner.search import study_file
    from tuner.store.sqlite import log_beside

    if not study_file.can_be_made_anew(output, names):
        places.new_file("--output", output)
    if log := log_beside(output):
        raise CommandError(
            f"--output is {places.named(output)}, but must be no file for whose log SQLite would "
            f"take {places.named(log)}: name a new file"
        )


def _check_address(host: str, port: int) -> None:
    """Refuse what the server could not listen on, before anything is exported."""
    accepted = (
        "a name or an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all its interfaces"
    )
    refused = CommandError(f"--host is {shown(host)}, but must be {accepted}")
    if not host.strip() or not host.isprintable():  # with the empty name it listens on all
        raise refused
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, UnicodeError) as error:
        if getattr(error, "errno", None) not in (errno.EADDRINUSE, errno.EACCES):
            raise refused from None
        raise CommandError(
            f"--port is {port}, but must be one that is free and that you may listen on"
        ) from None
