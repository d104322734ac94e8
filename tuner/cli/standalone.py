"""`tuner export --format python`: what goes into the file, and what is said of it."""

from __future__ import annotations

from tuner.cli.failure import warn
from tuner.cli.options import Shapes


def text(asked: Shapes, target: str | None, db: str | None) -> str:
    """The standalone file for the records that were asked for; notes go to stderr.

    Raises:
        CommandError: no target fits.
        LookupError: no template serves it.
        StoreError: a database cannot be read.
    """
    from tuner.cli.targets import choose_target
    from tuner.standalone.document import standalone_file
    from tuner.store.layers import Layers

    in_force = Layers.load(db).standing()
    chosen, origin = choose_target(target, in_force)
    written = standalone_file([r for r in in_force if asked.matches(r.problem)], chosen)
    warn(f"configs for {chosen} ({origin})")
    return written
