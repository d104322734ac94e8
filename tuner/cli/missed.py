"""The misses that a search is for: read, narrowed to what this GPU can tune, and settled after."""

from __future__ import annotations

from collections.abc import Iterable

from kernels.attention.problem import Problem
from tuner import misses
from tuner.cli.failure import CommandError
from tuner.cli.options import Shapes
from tuner.evaluate.executor import Executor
from tuner.record import Record
from tuner.resolve import fresh
from tuner.search.missed import covered, representatives


class Missed:
    """The misses of the usual folder and, among them, those that were asked for on this hardware.

    Raises:
        CommandError: there are none.
    """

    def __init__(self, shapes: Shapes, executor: Executor) -> None:
        self._folder = misses.folder()
        self._noted = misses.read(self._folder)
        self._target, self._origin = executor.target, executor.origin
        hardware = executor.target.hardware.key
        here = [miss for miss in self._noted.misses if miss.hardware == hardware]
        self._asked = [miss for miss in here if shapes.matches(miss.problem)]
        self._tuned: list[Problem] = []
        if not self._asked:
            raise CommandError(
                f"{self._folder} holds {len(self._noted.misses)} misses, {len(here)} of them on "
                f"this hardware ({hardware}) and none of them asked for: run with "
                f"{misses.VARIABLE}=1 first"
            )

    @property
    def problems(self) -> list[Problem]:
        """Those asked for."""
        return [miss.problem for miss in self._asked]

    def plan(self, served: Iterable[Problem], standing: Iterable[Record]) -> list[Problem]:
        """The problems to tune so that all that can be `served` have a fresh record close by."""
        self._tuned = [
            record.problem
            for record in standing
            if record.target.hardware == self._target.hardware
            and record.origin == self._origin
            and fresh(record, self._target)
        ]
        return representatives(served, self._tuned)

    def summary(self, planned: list[Problem]) -> str:
        """What there is to do, in a sentence."""
        return (
            f"{len(self._asked)} misses on {self._target.gpu_name}, of which {len(planned)} are to "
            "be tuned"
        )

    def settle(self, searched: Iterable[Problem]) -> None:
        """Drop the misses that have a record close by now that `searched` have theirs.

        Raises:
            StoreError: the folder cannot be written.
        """
        tuned = (*self._tuned, *searched)
        settled = {miss for miss in self._asked if covered(miss.problem, tuned)}
        if settled:
            open_ = (miss for miss in self._noted.misses if miss not in settled)
            misses.settle(self._folder, self._noted, open_)
