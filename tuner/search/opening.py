"""What a search tries before its sampler has anything to go by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from kernels.attention import registry
from kernels.attention.problem import Problem, Specialization
from tuner.record import Record
from tuner.search import neighbours, samplers
from tuner.search.candidates import CandidateSet, enumerate_candidates
from tuner.search.options import Options
from tuner.target import Target
from tuner.trial import Candidate

# Where nothing is known, one trial in so many at most is of a config beside a template's default:
# by rehearsal of D128 S8192 causal (H200), with what compilers take and figures 0.7 % off, 24 of 24
# searches then try the best or one within 0.7 % of it, without 16.
_AROUND = 4


def defaults(problem: Problem, candidates: CandidateSet, capability: int) -> tuple[Candidate, ...]:
    """The defaults of the templates that serve `problem`, in the templates' order."""
    return tuple(
        Candidate(name, registry.get(name).default(problem, capability))
        for name in dict.fromkeys(c.template for c in candidates.feasible)
    )


def around(defaults: Iterable[Candidate], candidates: CandidateSet, trials: int) -> list[Candidate]:
    """Candidates that differ from a template's default in one parameter, by turns of the templates:
    what each is worth where somebody thought best. As many as a search of `trials` begins with."""
    beside = [candidates.beside(default) for default in defaults]
    each = [c for turn in zip_longest(*beside) for c in turn if c is not None]
    return each[: trials // _AROUND]


def opening(
    problem: Problem, records: Sequence[Record], target: Target, options: Options
) -> list[tuple[Candidate, Specialization]]:
    """What a search of `problem` will compile first, if it knows of `records` and of no trials: to
    be compiled while whatever it needs besides gets ready.

    Raises:
        KeyError: an option names a template that is not registered.
    """
    capability = target.hardware.capability
    candidates = enumerate_candidates(problem.specialization, capability, options.templates)
    first = defaults(problem, candidates, capability)
    then = neighbours.winners(problem, records, candidates)
    if not then and options.sampler == samplers.DEFAULT:
        then = around(first, candidates, options.wanted(len(candidates.feasible)))
    return [(c, problem.specialization) for c in dict.fromkeys([*first, *then]) if c in candidates]
