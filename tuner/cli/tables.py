"""Tables of records, configs and benchmarks, and the console they are printed on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from tuner.record import Record
from tuner.search.events import Seconds

# Where the output is no terminal, nobody's window bounds it: wide enough for a row a line.
_FILE_WIDTH = 200


def console() -> Console:
    """Stdout, as wide as the terminal; wide where there is none."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _FILE_WIDTH
    return Console(width=width, highlight=False)


def error_console() -> Console:
    """Stderr, for progress and remarks beside the output."""
    return Console(stderr=True, highlight=False)


def table(title: str, *columns: str, left: Sequence[str] = ()) -> Table:
    """An empty table; columns are aligned to the right but for those in `left`."""
    result = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        result.add_column(column, justify="left" if column in left else "right", overflow="fold")
    return result


def records_table(title: str, records: Iterable[Record]) -> Table:
    """Winners, and how they compare with the default and the peers of the same rounds."""
    records = list(records)
    peers = sorted({peer.name for record in records for peer in record.peers})
    result = table(
        title,
        "problem", "TFLOP/s", "ms", "spread", "vs default",
        *(f"vs {peer}" for peer in peers),
        "margin", "config", "from",
        left=("problem", "config", "from"),
    )  # fmt: skip
    for record in records:
        ours = record.measurement
        beside = {peer.name: peer.median_ms for peer in record.peers}
        result.add_row(
            str(record.problem),
            f"{ours.tflops:.0f}",
            f"{ours.median_ms:.4g}",
            f"{ours.spread:.1%}",
            ratio(record.default_ms, ours.median_ms),
            *(ratio(beside.get(peer), ours.median_ms) for peer in peers),
            "–" if record.margin is None else f"{record.margin:.1%}",
            str(record.candidate),
            f"{record.origin} {record.measured_at[:10]}",
        )
    return result


def ratio(theirs_ms: float | None, ours_ms: float) -> str:
    """How many times as fast as theirs ours is."""
    return "–" if theirs_ms is None else f"{theirs_ms / ours_ms:.2f}×"


def time_line(seconds: Seconds) -> str:
    """Where the time of a search went."""
    return (
        f"{seconds.wall:.0f} s in all: evaluating {seconds.evaluating:.0f} s, finals "
        f"{seconds.finals:.0f} s, waiting for the compiler {seconds.waiting:.0f} s; compiling took "
        f"{seconds.compiling:.0f} CPU seconds beside that"
    )
