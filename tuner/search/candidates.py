"""What a search may try: the feasible configs of all templates, enumerated once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod

from kernels.attention import registry
from kernels.attention.problem import Specialization
from tuner.trial import Candidate


@dataclass(frozen=True)
class CandidateSet:
    """The feasible candidates for a specialization on a capability, in their fixed order."""

    feasible: tuple[Candidate, ...]
    rejected: int  # how many points of the spaces a static rule rejects
    refusals: tuple[str, ...]  # templates that cannot serve it at all, with the reason

    def rank(self, candidate: Candidate) -> int:
        """Position in the fixed order, which breaks ties; past the end for a stranger."""
        return self._ranks.get(candidate, len(self.feasible))

    def only(self, wanted: Callable[[Candidate], bool]) -> CandidateSet:
        """Those feasible candidates that are `wanted`."""
        left = tuple(candidate for candidate in self.feasible if wanted(candidate))
        return self if len(left) == len(self.feasible) else replace(self, feasible=left)

    def beside(self, candidate: Candidate) -> list[Candidate]:
        """Those of its template that differ from `candidate` in one parameter."""
        return [
            other
            for other in self.feasible
            if other.template == candidate.template
            and sum(other.config[name] != value for name, value in candidate.config.items()) == 1
        ]

    def __contains__(self, candidate: object) -> bool:
        return candidate in self._ranks

    @cached_property
    def _ranks(self) -> dict[Candidate, int]:
        return {candidate: rank for rank, candidate in enumerate(self.feasible)}


@cache
def enumerate_candidates(
    specialization: Specialization, capability: int, templates: Sequence[str] | None = None
) -> CandidateSet:
    """All candidates of the named templates (all registered ones if None).

    Raises:
        KeyError: a template is not registered.
    """
    feasible: list[Candidate] = []
    refusals: list[str] = []
    points = 0
    for name in registry.names() if templates is None else templates:
        template = registry.get(name)
        if refusal := template.supports(specialization, capability):
            refusals.append(f"{name}: {refusal}")
            continue
        points += prod(len(choices) for choices in template.space(specialization).values())
        feasible += (Candidate(name, c) for c in template.feasible(specialization, capability))
    return CandidateSet(tuple(feasible), points - len(feasible), tuple(refusals))
