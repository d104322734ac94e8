"""Tables of records, configs and benchmarks, and the console they are printed on."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table

from kernels.attention.printable import printable, printable_sentence
from tuner.record import Record
from tuner.search.events import Seconds
from tuner.trial import Origin

# Where the output is no terminal, nobody's window bounds it: wide enough for a row a line.
_FILE_WIDTH = 200

# Columns of records that a narrow terminal goes without, the first ones first.
_DISPENSABLE = ("spread", "vs runner-up", "ms", "vs default", "from")
_MOST_PEERS = 8


def console() -> Console:
    """Stdout, as wide as the terminal; wide where there is none. Nothing is taken for markup: the
    texts of a record come from elsewhere."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _FILE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False)


def error_console() -> Console:
    """Stderr, for progress and remarks beside the output."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


class _Table(Table):
    """A table whose cells steer no terminal: the texts of a record come from elsewhere."""

    def add_row(self, *cells: RenderableType | None, **more: Any) -> None:
        super().add_row(*(printable(c) if isinstance(c, str) else c for c in cells), **more)


def table(title: str, *columns: str, left: Sequence[str] = ()) -> Table:
    """An empty table; columns are aligned to the right but for those in `left`."""
    result = _Table(
        title=printable(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for column in columns:
        justify: JustifyMethod = "left" if column in left else "right"
        no_wrap = column == "problem"
        result.add_column(printable(column), justify=justify, no_wrap=no_wrap, overflow="fold")
    return result


def print_records(out: Console, title: str, records: Iterable[Record]) -> None:
    """Winners, how they compare with the default and the peers of the same rounds, and below that
    their configs, which are too long for a column. A narrow terminal gets fewer columns, but the
    problem and its TFLOP/s in any case."""
    records = list(records)
    peers = _peers(records)
    dropped: tuple[str, ...] = ()
    dispensable = [*_DISPENSABLE, *(f"vs {peer}" for peer in peers)]
    if len({record.problem for record in records}) < len(records):
        dispensable.sort(key="from".__eq__)  # to the end: else nothing tells such rows apart
    for column in (*dispensable, None):
        rows = _records_table(title, records, peers, dropped)
        wanted = out.measure(rows, options=out.options.update(width=1000)).maximum
        if wanted <= out.width or column is None:
            break
        dropped = (*dropped, column)
    usual, out.width = out.width, max(wanted, out.width)
    out.print(rows)
    out.width = usual
    width = max(len(str(record.problem)) for record in records)
    for record in records:
        print_line(out, f" {record.problem!s:<{width}}  {record.candidate}")


def _records_table(
    title: str, records: Sequence[Record], peers: Sequence[str], dropped: Sequence[str]
) -> Table:
    columns = [
        "problem",
        *("TFLOP/s", "ms", "spread", "vs default"),
        *(f"vs {peer}" for peer in peers),
        *("vs runner-up", "from"),
    ]
    kept = [column for column in columns if column not in dropped]
    rows = table(title, *kept, left=("problem", "from"))
    for record in records:
        ours = record.measurement
        beside = {peer.name: peer.median_ms for peer in record.peers}
        cells = (
            str(record.problem),
            f"{ours.tflops:.0f}",
            f"{ours.median_ms:.4g}",
            f"{ours.spread:.1%}",
            ratio(record.default_ms, ours.median_ms),
            *(ratio(beside.get(peer), ours.median_ms) for peer in peers),
            _lead(record),
            f"{record.origin} {record.measured_at[:10]}",
        )
        rows.add_row(*(cell for column, cell in zip(columns, cells) if column in kept))
    return rows


def _peers(records: Iterable[Record]) -> list[str]:
    """Those that have a column: the ones met most, lest a stranger's record have thousands."""
    met = Counter(peer.name for record in records for peer in record.peers)
    return sorted(sorted(met, key=lambda name: (-met[name], name))[:_MOST_PEERS])


def _lead(record: Record) -> str:
    """How many times as fast as the second of the finals the winner is. Of those that the rounds
    could not tell apart the winner is not always the fastest, and its lead or lag means nothing."""
    if record.tied:
        return "tied"
    return "–" if record.margin is None else ratio(1 + record.margin, 1)


def print_line(out: Console, text: str) -> None:
    """A line that is not wrapped, and steers no terminal."""
    out.print(printable_sentence(text), soft_wrap=True)


def ratio(theirs_ms: float | None, ours_ms: float) -> str:
    """How many times as fast as theirs ours is."""
    return "–" if theirs_ms is None else f"{theirs_ms / ours_ms:.2f}×"


def time_line(seconds: Seconds, origin: Origin) -> str:
    """Where the time of a search went."""
    compiling = f"compiling {seconds.compiling:.0f} CPU seconds"
    if origin == "replay":
        evaluating = seconds.checking + seconds.timing
        return (
            f"{seconds.wall:.1f} s in all; when this was recorded, evaluating {evaluating:.0f} s, "
            f"{compiling}"
        )
    return (
        f"{seconds.wall:.0f} s in all: opening {seconds.opening:.0f} s, checking "
        f"{seconds.checking:.0f} s, timing {seconds.timing:.0f} s, finals {seconds.finals:.0f} s, "
        f"waiting for the compiler {seconds.waiting:.0f} s ({seconds.starting:.0f} s of it for the "
        f"first binary), the search itself {seconds.searching:.0f} s; beside that, {compiling}"
    )
