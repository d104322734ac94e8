"""The samplers that a search can be asked for by name."""

from __future__ import annotations

import warnings
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from kernels.attention.printable import shown

if TYPE_CHECKING:
    import optuna

    from tuner.search.features import Array
    from tuner.search.space import SearchSpace

NAMES = ("surrogate", "tpe", "gp", "random", "exhaustive")
DEFAULT = "surrogate"
# How many candidates may be compiled at once, and how many more be ready, while a sampler has been
# told of no more trials than that; for the others as many as there are compilers. Cold, the
# surrogate is within 2 % of the best after a median of 20 evaluations one at a time, 34 in batches
# of 16 (docs/samplers.md). But compilers are what a cold search waits for: by rehearsal of six
# problems with 15 of them its 60 trials end after 21 s, with 8 under way after 25, and the winners
# are as good. TPE's are not. Where binaries are in a cache, `supply` has fewer ready.
PATIENCE = {"surrogate": 16, "tpe": 1, "gp": 1}

# A user attribute of a trial, for the surrogate: its value stands for a failure. Optuna's samplers
# do not know it.
FAILED = "failed"


def warm_up(name: str) -> None:
    """Load what the first proposals of a sampler need, which can take two seconds."""
    import optuna  # noqa: F401

    if name == "surrogate":
        import scipy.linalg
        import scipy.optimize
        import scipy.special  # noqa: F401


def begin_warm_up(name: str) -> None:
    """The same beside what the caller does next, such as to wait for processes that start. What
    fails, as imports do in a process that ends, fails again where it is needed, and there says so.
    """

    def load() -> None:
        with suppress(Exception):
            warm_up(name)

    Thread(target=load, name="warm-up").start()


def create(
    name: str, seed: int, space: SearchSpace, prior: Array | None = None
) -> optuna.samplers.BaseSampler:
    """The Optuna sampler called `name`. `exhaustive` needs none of its own (the search enumerates
    what the sampler leaves): it gets the random one, which is never asked.

    Args:
        space: all that the surrogate may propose.
        prior: what is thought of each candidate before the first trial; of use to the surrogate.

    Raises:
        ValueError: no such sampler, or what it needs is not installed.
    """
    import optuna

    if name == "surrogate":
        from tuner.search.surrogate import SurrogateSampler

        distributions = {
            parameter: distribution
            for template in space.choices
            for parameter, distribution in space.distributions(template).items()
        }
        points = [space.parameters(candidate) for candidate in space.candidates.feasible]
        return SurrogateSampler(points, distributions, space.features, prior=prior, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "tpe":
            # Group: each template's parameters are modelled jointly, though trials of other
            # templates do not have them.
            return optuna.samplers.TPESampler(
                seed=seed, multivariate=True, group=True, constant_liar=True, n_startup_trials=12
            )
        if name == "gp":
            try:
                import torch  # noqa: F401  (GPSampler imports it at its first suggestion)
            except ImportError:
                raise ValueError(
                    "sampler is 'gp', but that needs torch, which is not installed: use "
                    "surrogate, tpe, random or exhaustive"
                ) from None
            return optuna.samplers.GPSampler(seed=seed, deterministic_objective=False)
        if name in ("random", "exhaustive"):
            return optuna.samplers.RandomSampler(seed=seed)
    raise ValueError(f"sampler is {shown(name)}, but must be one of {', '.join(NAMES)}")
