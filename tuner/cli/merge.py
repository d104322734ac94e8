"""`tuner merge`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import places
from tuner.cli.failure import CommandError
from tuner.cli.options import Json
from tuner.cli.saying import say

if TYPE_CHECKING:
    from tuner.store.merge import Contents, MergeReport


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
    from tuner.store.merge import contents

    if "" in sources:
        raise CommandError("a source is '', but must be names of databases and documents")

    # All are read before the output is touched.
    parts = [contents(source) for source in dict.fromkeys(sources)]
    report, where = united(output, "--output", parts)
    if as_json:
        print(json.dumps({"database": where, **report.to_json(), "trials": report.trials}))
        return
    say(
        f"{len(report.added)} new records, {report.already_there} already there, and "
        f"{report.trials} new trials, in {where}."
    )


def united(location: str | Path, option: str, parts: Sequence[Contents]) -> tuple[MergeReport, str]:
    """Merge `parts` into the database at `location`, which `option` names, and say how it is
    called.

    Raises:
        CommandError: not all of it was measured for one objective.
    """
    from tuner.search.objective import conflict, measured_for
    from tuner.store.database import Store
    from tuner.store.merge import merge as unite

    given: dict[str, str] = {}  # by objective, the first that was measured for it
    for part in parts:
        for objective in sorted(measured_for(part.records, part.trials)):
            given.setdefault(objective, part.location)
    if len(given) > 1:
        (one, first), (other, second) = given.items()
        raise CommandError(
            f"{places.named(second)} was measured for {other}, but must be for {one}, as "
            f"{places.named(first)} is: a database holds measurements for one objective"
        )
    records = [record for part in parts for record in part.records]
    trials = [trial for part in parts for trial in part.trials]
    with Store.open(location) as store:
        if given and (why := conflict(store, *given)):
            raise CommandError(f"{why}: give another {option}")
        return unite(store, records, trials), store.location
