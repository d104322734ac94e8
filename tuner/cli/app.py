"""The application: its commands, its global options, and what becomes of an error.

Commands import what they need when they run, so that help and the database commands answer at once
and work where neither torch nor Triton can be installed.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tuner.cli import compile as compile_command
from tuner.cli import dashboard, database, doctor, lookup, measure, merge, plot, search
from tuner.cli.failure import INTERRUPTED, Failure, explain, warn
from tuner.cli.options import FLAG
from tuner.cli.remarks import said_as_remarks
from tuner.store.interrupts import noting_interrupts


class Command(TyperCommand):
    """Shows its help option as any other flag."""

    def get_help_option(self, ctx: Any) -> Any:
        return _flag(super().get_help_option(ctx))


class Commands(TyperGroup):
    """Turns every error into one sentence on stderr and an exit code."""

    def get_help_option(self, ctx: Any) -> Any:
        return _flag(super().get_help_option(ctx))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "tuner",
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        _mend_streams()
        _mend_sizes()
        words = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in words  # wherever it stands
        words = [word for word in words if word != "--debug"]
        status: Any
        with noting_interrupts() as interrupted, said_as_remarks():
            try:
                status = super().main(
                    words, prog_name, complete_var, False, windows_expand_args, **extra
                )
                if status == INTERRUPTED:  # newer releases of Typer catch it themselves
                    warn("interrupted")
            except (typer.Abort, KeyboardInterrupt):
                warn("interrupted")
                status = INTERRUPTED
            except BrokenPipeError:  # as in `tuner export | head`
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                status = 1
            except Exception as error:
                if debug:
                    raise
                failure = explain(error)
                if interrupted() and failure.status != INTERRUPTED:
                    failure = Failure("interrupted", INTERRUPTED)
                warn(failure.sentence)
                status = failure.status
        if standalone_mode:
            sys.exit(status if isinstance(status, int) else 0)
        return status


def _flag(option: Any) -> Any:
    if option is not None:
        option.metavar = FLAG
    return option


def _mend_streams() -> None:
    """Let nothing fail for a stream that is closed or cannot spell a character such as ×."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 – stays
        elif stream.errors in ("strict", "surrogateescape") and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _mend_sizes() -> None:
    """Leave out a size of the terminal such as ², which Rich takes for a number and fails on."""
    for name in ("COLUMNS", "LINES"):
        size = os.environ.get(name, "")
        if not (size.isascii() and size.isdigit()):
            os.environ.pop(name, None)


app = typer.Typer(
    cls=Commands,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Tune fused self-attention kernels, keep the winners in a database, and look them up.",
)


def _print_version(asked: bool) -> None:
    if asked:
        from tuner.version import __version__

        typer.echo(f"tuner {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", metavar=FLAG, help="Show tracebacks of errors.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            metavar=FLAG,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Global options; `--debug` is read in `Commands.main`, `--version` in its callback."""
    del debug, version
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_COMMANDS: dict[str, Callable[..., None]] = {
    "search": search.search,
    "show": database.show,
    "lookup": lookup.lookup,
    "stale": database.stale,
    "compile": compile_command.compile_space,
    "export": database.export,
    "import": database.import_files,
    "merge": merge.merge,
    "bench": measure.bench,
    "plot": plot.plot,
    "dashboard": dashboard.dashboard,
    "record": measure.record,
    "doctor": doctor.doctor,
}


def _help(command: Callable[..., None]) -> str:
    """What the docstring says, a line a paragraph: Typer breaks its lines anew, and newer releases
    also where the source does."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


for name, command in _COMMANDS.items():
    app.command(name, cls=Command, help=_help(command))(command)


def main() -> None:
    """Entry point of the `tuner` command."""
    app()
