"""How to search."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.attention.printable import shown
from tuner.search import samplers

DEFAULT_TRIALS = 60


@dataclass(frozen=True)
class Options:
    """The choices of whoever starts a search.

    Raises:
        ValueError: a value is out of its domain; the sentence names it.
    """

    trials: int | None = None  # per problem, those of earlier searches included; None: the default
    budget_s: float | None = None  # wall clock for all problems together
    sampler: str = samplers.DEFAULT
    seed: int = 0
    force: bool = False  # search though there is a fresh record, and measure everything anew
    templates: tuple[str, ...] | None = None  # None: all that serve the target
    rounds: int = 16  # of the finals beside the peers, at least
    # Slow configs are stopped early against the best of their own template alone, so that what is
    # known of each template is of use by itself.
    apart: bool = False

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < 1:
            raise ValueError(f"trials is {self.trials}, but must be at least 1")
        if self.budget_s is not None and not self.budget_s > 0:
            raise ValueError(f"budget is {self.budget_s:g}s, but must be more than 0s")
        if self.sampler not in samplers.NAMES:
            raise ValueError(
                f"sampler is {shown(self.sampler)}, but must be one of {', '.join(samplers.NAMES)}"
            )
        if self.rounds < 3:
            raise ValueError(f"rounds is {self.rounds}, but must be at least 3")

    def after(self, seconds: float) -> Options:
        """The same when so much of the budget is spent, of which a second is left at least."""
        if self.budget_s is None:
            return self
        return replace(self, budget_s=max(1.0, self.budget_s - seconds))

    def wanted(self, feasible: int) -> int:
        """How many trials a finished search of a problem has."""
        default = feasible if self.sampler == "exhaustive" else DEFAULT_TRIALS
        return min(feasible, default if self.trials is None else self.trials)
