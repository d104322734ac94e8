"""`tuner export --format python`: what goes into the file, and what is said of it."""

from __future__ import annotations

from collections import Counter

from tuner.cli.failure import warn
from tuner.cli.options import Shapes


def text(asked: Shapes, target: str | None, db: str | None) -> str:
    """The standalone file for the records that were asked for; notes go to stderr.

    Raises:
        CommandError: no target fits.
        StoreError: a database cannot be read.
    """
    from tuner.cli.targets import choose_target
    from tuner.standalone.portable import TEMPLATE, standalone_file
    from tuner.store.layers import Layers

    in_force = Layers.load(db).standing()
    chosen, origin = choose_target(target, in_force)
    # What another template has displaced stands again where that one is left out.
    own = Layers.load(db, keep=lambda record: record.candidate.template == TEMPLATE).standing()
    records = [record for record in (*own, *in_force) if asked.matches(record.problem)]
    others = Counter(
        record.candidate.template
        for record in in_force
        if asked.matches(record.problem)
        and record.target.hardware.capability == chosen.hardware.capability
        and record.candidate.template != TEMPLATE
    )
    for name, number in sorted(others.items()):
        warn(
            f"passed over the winners of the {name} template ({number}): the file holds the "
            f"{TEMPLATE} one, with the best that is known of it"
        )
    written = standalone_file(records, chosen)
    warn(f"configs for {chosen.gpu_name} ({chosen.hardware}), {origin}")
    return written
