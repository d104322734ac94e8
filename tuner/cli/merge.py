"""`tuner merge`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tuner.cli.failure import CommandError
from tuner.cli.options import Json
from tuner.cli.saying import say


def merge(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="FILE|URL", help="Databases, and exported documents."),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE|URL",
            help="The database they go to; made if need be.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Unite databases, with their trials, and exported documents in one database.

    The order does not matter, and once more changes nothing. The sources stay as they are.
    """
    from tuner.store.database import Store
    from tuner.store.merge import contents
    from tuner.store.merge import merge as unite

    if "" in sources:
        raise CommandError("a source is '', but must be names of databases and documents")

    # All are read before the output is touched.
    parts = [contents(source) for source in dict.fromkeys(sources)]
    with Store.open(output) as store:
        report = unite(
            store,
            [record for part in parts for record in part.records],
            [trial for part in parts for trial in part.trials],
        )
        where = store.location
    if as_json:
        print(json.dumps({"database": where, **report.to_json(), "trials": report.trials}))
        return
    say(
        f"{len(report.added)} new records, {report.already_there} already there, and "
        f"{report.trials} new trials, in {where}."
    )
