"""Whether what a record found can run on the kernels as they are now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kernels.attention import registry
from kernels.attention.printable import shown
from kernels.attention.problem import Problem
from tuner.trial import Candidate

if TYPE_CHECKING:
    from tuner.record import Record


def current(record: Record) -> bool:
    """Whether `record` was measured on the kernel as it is now."""
    template = registry.find(record.candidate.template)
    return template is not None and template.version == record.template_version


def revived(candidate: Candidate) -> Candidate:
    """`candidate` with the parameters that its template has got since; as it is where the template
    is unknown."""
    template = registry.find(candidate.template)
    return replace(candidate, config=template.grown(candidate.config)) if template else candidate


def refusal(candidate: Candidate, problem: Problem, capability: int) -> str | None:
    """Why `candidate`, revived, may not launch for `problem`; None if it may."""
    template = registry.find(candidate.template)
    if template is None:
        return f"there is no template {shown(candidate.template)}"
    specialization, config = problem.specialization, template.grown(candidate.config)
    return template.supports(specialization, capability) or template.reject(
        specialization, config, capability
    )


def unserved(problem: Problem, capability: int) -> str | None:
    """Why no template serves `problem`; None if one does."""
    specialization = problem.specialization
    reasons = {registry.get(name).supports(specialization, capability) for name in registry.names()}
    if None in reasons:
        return None
    return "; ".join(sorted(reason for reason in reasons if reason))


def alive(record: Record) -> bool:
    """Whether `record` speaks for the kernel as it is now, which accepts its config."""
    capability = record.target.hardware.capability
    return current(record) and refusal(record.candidate, record.problem, capability) is None
