"""Ctrl-C during what takes long and loses nothing: a search, a recording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tuner.cli.display import Watch
from tuner.cli.failure import Interrupted
from tuner.search.events import Event, Observer
from tuner.store.interrupts import noting_interrupts


@contextmanager
def keeping(watch: Watch, location: str) -> Iterator[Observer]:
    """Observe by `watch`. A Ctrl-C that was swallowed where it arrived takes effect at the next
    event.

    Raises:
        Interrupted: on Ctrl-C; it says that what was measured is kept in the database `location`.
    """
    with noting_interrupts() as interrupted:

        def observe(event: Event) -> None:
            if interrupted():
                raise KeyboardInterrupt
            watch(event)

        try:
            yield observe
        except (KeyboardInterrupt, Exception) as error:
            if isinstance(error, Exception) and not interrupted():
                raise
            raise Interrupted(
                f"interrupted; {watch.trials} new trials are kept in {location}, and the same "
                "command resumes"
            ) from error
