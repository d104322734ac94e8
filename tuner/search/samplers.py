"""The samplers that a search can be asked for by name."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optuna

NAMES = ("tpe", "gp", "random", "exhaustive")
DEFAULT = "tpe"


def create(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """The Optuna sampler called `name`. `exhaustive` needs none of its own (the search enumerates
    what the sampler leaves): it gets the random one, which is never asked.

    Raises:
        ValueError: no such sampler, or what it needs is not installed.
    """
    import optuna

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
                    "sampler is 'gp', but that needs torch, which is not installed: use tpe, "
                    "random or exhaustive"
                ) from None
            return optuna.samplers.GPSampler(seed=seed, deterministic_objective=False)
        if name in ("random", "exhaustive"):
            return optuna.samplers.RandomSampler(seed=seed)
    raise ValueError(f"sampler is {name!r}, but must be one of {', '.join(NAMES)}")
