"""`tuner doctor`."""

from __future__ import annotations

import json

import typer

from tuner.cli.options import Database, Json

_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(db: Database = None, as_json: Json = False) -> None:
    """Check this machine: software, GPU, databases; exit code 1 if anything fails."""
    from rich.text import Text

    from tuner.cli.jsonform import json_form
    from tuner.cli.tables import console, table
    from tuner.doctor import examine

    findings = examine(db)
    if as_json:
        print(json.dumps(json_form(findings)))
    else:
        columns = ("", "check", "seen", "what to do")
        rows = table("", *columns, left=columns)
        for finding in findings:
            mark = Text(finding.verdict, _COLORS[finding.verdict])
            rows.add_row(mark, finding.name, finding.seen, finding.remedy)
        console().print(rows)
    if any(finding.verdict == "fail" for finding in findings):
        raise typer.Exit(1)
