"""Commands on the records: `tuner show`, `stale`, `export`, `import`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import options, standalone
from tuner.cli.failure import CommandError, warn
from tuner.cli.options import (
    Causal,
    Database,
    Hdim,
    Json,
    OnlyBatch,
    OnlyDtype,
    OnlyHeads,
    Seqlen,
    Target,
)
from tuner.cli.saying import say

if TYPE_CHECKING:
    from tuner.record import Record
    from tuner.store.layers import Layers

FORMS = ("json", "python")

All = Annotated[
    bool,
    typer.Option(
        "--all",
        metavar=options.FLAG,
        help="Also records that another has replaced: the history.",
    ),
]


def show(
    hdim: Hdim = None,
    seqlen: Seqlen = None,
    causal: Causal = None,
    dtype: OnlyDtype = None,
    batch: OnlyBatch = None,
    heads: OnlyHeads = None,
    history: All = False,
    db: Database = None,
    as_json: Json = False,
) -> None:
    """List the records that stand, yours over the shipped ones.

    The runner-up is the second of the finals; `tied` says that another race might crown another: of
    those that the rounds cannot tell from the fastest the default wins, else the first in a fixed
    order.
    """
    asked = options.shapes(hdim, seqlen, causal, dtype, batch, heads)
    layers = _layers(db)
    records = _asked(asked, layers, history)
    if as_json:
        from tuner.store.wire import encode

        print(json.dumps([encode(record) for record in records]))
        return

    from tuner.cli.tables import console, print_records

    out = console()
    by_target: dict[str, list[Record]] = {}
    for record in records:
        by_target.setdefault(str(record.target), []).append(record)
    for position, (title, of_target) in enumerate(by_target.items()):
        if position:
            out.print()
        print_records(out, title, of_target)
    if not records:
        out.print("No record fits; `tuner search` makes some.")
    if not history and (hidden := _replayed_behind(records, layers)):
        out.print(
            f"{hidden} of these problems {'was' if hidden == 1 else 'were'} also replayed, which "
            "never displaces a measurement: --all shows those records too.",
            soft_wrap=True,
        )


def stale(
    hdim: Hdim = None,
    seqlen: Seqlen = None,
    causal: Causal = None,
    dtype: OnlyDtype = None,
    batch: OnlyBatch = None,
    heads: OnlyHeads = None,
    db: Database = None,
    as_json: Json = False,
) -> None:
    """List records of another Triton or an older kernel than those here: tune them again."""
    from tuner import liveness
    from tuner.device import installed_version

    asked = options.shapes(hdim, seqlen, causal, dtype, batch, heads)
    triton = installed_version("triton")
    found: list[tuple[Record, str]] = []
    records = _asked(asked, _layers(db))
    for record in records:
        capability = record.target.hardware.capability
        if not liveness.current(record):
            found.append((record, f"an older {record.candidate.template} kernel"))
        elif why := liveness.refusal(record.candidate, record.problem, capability):
            found.append((record, f"a config that the kernel refuses: {why}"))
        elif triton not in ("none", record.target.triton):
            found.append((record, f"Triton {record.target.triton}, here is {triton}"))
    if as_json:
        from tuner.store.wire import encode

        print(json.dumps([{"reason": why, "record": encode(record)} for record, why in found]))
        return

    from tuner.cli.tables import console, table

    out = console()
    if triton == "none":
        out.print("Triton is not installed here, so only the kernels are compared.")
    if not found:
        out.print("No record is stale." if records else "No record fits.")
        return
    by_gpu: dict[str, list[tuple[Record, str]]] = {}
    for record, why in found:
        by_gpu.setdefault(record.target.gpu_name, []).append((record, why))
    for gpu, of_gpu in by_gpu.items():
        rows = table(
            f"Stale records of {gpu}", "problem", "tuned with", left=("problem", "tuned with")
        )
        for record, why in of_gpu:
            rows.add_row(str(record.problem), why)
        out.print(rows)


def export(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            parser=options.path,
            help="Where to; stdout if not given.",
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="|".join(FORMS),
            help="Records as JSON, or a Python file with the kernel and its configs.",
        ),
    ] = "json",
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            metavar=options.FLAG,
            help="Print the JSON Schema of the format instead.",
        ),
    ] = False,
    hdim: Hdim = None,
    seqlen: Seqlen = None,
    causal: Causal = None,
    dtype: OnlyDtype = None,
    batch: OnlyBatch = None,
    heads: OnlyHeads = None,
    history: All = False,
    target: Target = None,
    db: Database = None,
) -> None:
    """Write records as JSON, in an order that diffs well; or a standalone Python file."""
    from tuner.store.exchange import export_document, json_schema
    from tuner.store.files import write_atomically

    python = options.one_of("--format", form, FORMS) == "python"
    for option, given in (("--schema", schema), ("--all", history)):
        if python and given:
            raise CommandError(f"{option} is given, but goes with --format json only")
    if target is not None and not python:
        raise CommandError("--target is given, but goes with --format python only")
    asked = options.shapes(hdim, seqlen, causal, dtype, batch, heads)
    done = f"Wrote {output}."
    if schema:
        text = json_schema()
    elif python:
        text = standalone.text(asked, target, db)
    else:
        records = _asked(asked, _layers(db), history)
        text = export_document(records)
        done = f"{len(records)} {'record' if len(records) == 1 else 'records'} in {output}"
    if output is None:
        sys.stdout.write(text)
    else:
        write_atomically(output, text)
        warn(done)  # stdout may be where it went: -o /dev/stdout


def import_files(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", parser=options.path, help="Exported documents."),
    ],
    db: Database = None,
    as_json: Json = False,
) -> None:
    """Merge exported records into your database; nothing is lost, whatever the order."""
    from tuner.cli.merge import united
    from tuner.store.exchange import read_document
    from tuner.store.locations import user_database
    from tuner.store.merge import Contents

    # All are checked before the database is touched.
    parts = [Contents(str(file), tuple(read_document(file))) for file in files]
    report, where = united(user_database(db), "--db", parts)
    if as_json:
        print(json.dumps({"database": where, **report.to_json()}))
        return
    say(
        f"{len(report.added)} new, {report.already_there} already there, in {where}; "
        f"{len(report.now_standing)} of the new ones stand, "
        f"{len(report.replaced)} of the old ones no longer do."
    )


def _layers(db: str | None) -> Layers:
    from tuner.store.layers import Layers

    return Layers.load(db)


def _replayed_behind(records: Iterable[Record], layers: Layers) -> int:
    """How many of `records` are measured ones that hide a replayed one."""
    replayed = {record.key for record in layers.history() if record.origin == "replay"}
    return sum(record.origin == "cuda" and record.key in replayed for record in records)


def _asked(asked: options.Shapes, layers: Layers, history: bool = False) -> list[Record]:
    known = layers.history() if history else layers.standing()
    return [record for record in known if asked.matches(record.problem)]
