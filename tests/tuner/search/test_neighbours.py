from __future__ import annotations

from dataclasses import replace

import numpy as np

from kernels.attention.config import Config
from kernels.attention.problem import Problem
from tuner.search import neighbours
from tuner.search.candidates import enumerate_candidates
from tuner.search.space import SearchSpace, search_space
from tuner.trial import Outcome, Trial

from .conftest import H100, ToyExecutor, ToyTemplate, latency, problem, record

P = problem(4096)


def space() -> SearchSpace:
    return search_space(enumerate_candidates(P.specialization, 90), P, H100.hardware)


def trials(what: Problem, count: int) -> list[Trial]:
    """Every so many-th candidate; the first of them fails."""
    feasible = enumerate_candidates(what.specialization, 90).feasible
    executor = ToyExecutor()
    return [
        Trial(
            what, H100, candidate, ToyTemplate.version, Outcome.OK if i else Outcome.SPILLS, "cuda",
            "now", "", executor.measure(what, candidate, 3) if i else None,
        )
        for i, candidate in enumerate(feasible[:: max(1, len(feasible) // count)])
    ]  # fmt: skip


def test_the_prior_orders_candidates_as_their_latencies(toy: ToyTemplate) -> None:
    found = neighbours.prior(P, [problem(8192)], space(), lambda other: trials(other, 40))
    assert found is not None
    truth = [latency(P, c.config) for c in space().candidates.feasible]
    assert np.corrcoef(found, np.log(truth))[0, 1] > 0.8


def test_the_nearest_problem_with_enough_trials_counts(toy: ToyTemplate) -> None:
    asked = []

    def known(other: Problem) -> list[Trial]:
        asked.append(other.seqlen)
        return trials(other, 40 if other.seqlen == 512 else 5)

    others = [problem(seqlen) for seqlen in (16384, 512, 2048, 4096)]
    assert neighbours.prior(P, others, space(), known) is not None
    assert asked == [2048, 16384, 512]


def test_another_mask_or_headdim_is_no_neighbour(toy: ToyTemplate) -> None:
    others = [problem(8192, causal=False), problem(8192, headdim=64)]
    assert neighbours.prior(P, others, space(), lambda other: trials(other, 40)) is None


def test_another_mask_will_do_where_that_is_said_and_its_own_is_not_known(toy: ToyTemplate) -> None:
    asked = []

    def known(other: Problem) -> list[Trial]:
        asked.append((other.causal, other.dtype))
        return trials(other, 40)

    full = problem(4096, causal=False)
    assert neighbours.prior(P, [full], space(), known, any_mask=True) is not None
    others = [full, replace(problem(512), dtype="bf16")]
    assert neighbours.prior(P, others, space(), known, any_mask=True) is not None
    assert asked == [(False, "fp16"), (True, "bf16")]


def test_trials_of_what_may_not_be_tried_here_say_nothing(toy: ToyTemplate) -> None:
    known = trials(problem(8192), 40)
    strangers = [
        replace(trial, candidate=replace(trial.candidate, template="x")) for trial in known
    ]
    assert neighbours.prior(P, [problem(8192)], space(), lambda _: strangers) is None
    both = neighbours.prior(P, [problem(8192)], space(), lambda _: [*strangers, *known])
    assert both is not None
    alone = neighbours.prior(P, [problem(8192)], space(), lambda _: known)
    assert np.array_equal(both, alone)


def test_winners_that_the_kernel_no_longer_admits_take_no_place(toy: ToyTemplate) -> None:
    among = enumerate_candidates(P.specialization, 90)
    old = [record(problem(s), config=Config(old=s)) for s in (4000, 4100)]
    good = record(problem(2048))
    assert neighbours.nearest(problem(4096), [*old, good], among) == [good.candidate]


def test_winners_from_before_a_parameter_was_added_are_tried(toy: ToyTemplate, monkeypatch) -> None:
    older = record(problem(8192), Config(BLOCK_M=64, BLOCK_N=64, num_stages=2))
    among = enumerate_candidates(P.specialization, 90)
    assert neighbours.winners(P, [older], among) == []
    monkeypatch.setattr(ToyTemplate, "added", {"flag": True})
    (winner,) = neighbours.winners(P, [older], among)
    assert winner.config == Config(BLOCK_M=64, BLOCK_N=64, num_stages=2, flag=True)
