"""Make the database that we ship out of databases that searches filled.

    python scripts/publish_configs.py configs.db mine.db --output configs.db
    python scripts/publish_configs.py mine.db --without "D64 S512 full bf16 B32 H32" --output new.db

The result holds every measured record of every source: name the old `configs.db` among them to keep
what it has. Replayed records and trials are left out, and the problems named after --without, such
as those whose search was cut short. Which records stand is decided as everywhere:
a later verdict that raced another replaces it, and between those that never met the faster stands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

# This folder for its modules: a package called `scripts` may be installed, and hides it.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (makes kernels.attention importable)
from kernels.attention.printable import shown
from kernels.attention.problem import Problem
from tuner.record import Record
from tuner.standing import standing
from tuner.store.database import Store
from tuner.store.errors import StoreError
from tuner.store.publish import publish

if TYPE_CHECKING:
    from scripts import refusals
else:
    import refusals


def main(words: Sequence[str] | None = None) -> None:
    parser = refusals.Parser(__doc__)
    parser.add_argument("sources", nargs="+", metavar="DATABASE", help="a path or a URL")
    parser.add_argument("--without", action="append", default=[], metavar="PROBLEM",
                        help="as `tuner show` spells it; repeat for several")  # fmt: skip
    parser.add_argument("--output", type=Path, required=True, help="may be one of the sources")
    arguments = parser.parse_args(words)
    refusals.output(parser, arguments.output, database=True)
    try:
        old = gather([arguments.output]) if arguments.output.exists() else []
        new = gather(arguments.sources)
        if strangers := set(arguments.without) - {str(record.problem) for record in new}:
            known = ", ".join(sorted({str(record.problem) for record in new})[:2])
            parser.error(
                f"--without is {shown(min(strangers))}, but must be a problem that a source has"
                f"{f', such as {known}' if known else ''}"
            )
        new = [record for record in new if str(record.problem) not in arguments.without]
        if not new:
            named = ", ".join(map(location, arguments.sources))
            parser.error(f"DATABASE is {named}, but must hold a measured record to publish")
        publish(arguments.output, new)
    except StoreError as error:
        parser.error(str(error))
    print("\n".join(report(old, new)))


def location(source: str) -> str:
    """What messages call `source`: without its passwords.

    Raises:
        StoreError: it cannot be read.
    """
    with Store.read_only(source) as store:
        return store.location


def gather(locations: Iterable[str | Path]) -> list[Record]:
    """The measured records of all databases, each once, in a fixed order.

    Raises:
        StoreError: a database cannot be read.
    """
    found: dict[str, Record] = {}
    for location in locations:
        with Store.read_only(location) as store:
            found.update((r.uid, r) for r in store.records() if r.origin == "cuda")
    return [found[uid] for uid in sorted(found)]


def report(old: Sequence[Record], new: Sequence[Record]) -> list[str]:
    """What publishing `new` in place of `old` changes, a line each, and how many there are now."""
    before, after = standing(old), standing(new)
    lines = [
        f"{_named(key)}: {_spelt(before.get(key))} before, {_spelt(after.get(key))} now"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    known = {record.uid for record in (*old, *after.values())}
    lines += [
        f"{_named(record.key)}: {_spelt(record)} is added, but does not stand"
        for record in new
        if record.uid not in known
    ]
    return [*lines, f"{len(new)} records, {len(after)} of which stand"]


def _named(key: tuple[Problem, str, str]) -> str:
    problem, hardware, triton = key
    return f"{problem} on {hardware}, Triton {triton}"


def _spelt(record: Record | None) -> str:
    if record is None:
        return "none"
    return f"{record.measurement.tflops:.0f} TFLOP/s of {record.measured_at}"


if __name__ == "__main__":
    main()
