"""What a sampler is told of a search: the candidates as Optuna parameters, and as features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kernels.attention import registry
from kernels.attention.problem import Problem
from kernels.attention.template import Space
from tuner.search.candidates import CandidateSet
from tuner.target import Hardware
from tuner.trial import Candidate

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from tuner.search.features import Array


@dataclass(frozen=True)
class SearchSpace:
    """The candidates of a search. The template is a parameter like any other; those of a template
    bear its name, since Optuna wants one set of choices per name."""

    candidates: CandidateSet
    choices: Mapping[str, Space]  # by template
    featurize: Callable[[], Array]  # of all candidates, in their order

    @cached_property
    def features(self) -> Array:
        return self.featurize()

    def parameters(self, candidate: Candidate) -> dict[str, Any]:
        """What Optuna would suggest for `candidate`."""
        prefixed = {f"{candidate.template}.{name}": v for name, v in candidate.config.items()}
        return {"template": candidate.template, **prefixed}

    def distributions(self, template: str) -> dict[str, BaseDistribution]:
        """Those of the parameters that a candidate of `template` has."""
        from optuna.distributions import CategoricalDistribution

        return {
            "template": CategoricalDistribution(list(self.choices)),
            **{
                f"{template}.{name}": CategoricalDistribution(choices)
                for name, choices in self.choices[template].items()
            },
        }


def search_space(candidates: CandidateSet, problem: Problem, hardware: Hardware) -> SearchSpace:
    """The space of a search for `problem` on `hardware`."""

    def featurize() -> Array:
        from tuner.search.features import candidate_features

        return candidate_features(candidates.feasible, problem, hardware)

    names = dict.fromkeys(candidate.template for candidate in candidates.feasible)
    specialization = problem.specialization
    choices = {name: registry.get(name).space(specialization) for name in names}
    return SearchSpace(candidates, choices, featurize)
