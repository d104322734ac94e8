from __future__ import annotations

from dataclasses import replace

import pytest

from kernels.attention.config import Config
from tuner.search import samplers
from tuner.search.candidates import CandidateSet, enumerate_candidates
from tuner.search.proposals import Proposals
from tuner.search.space import SearchSpace, search_space
from tuner.trial import Candidate, Measurement, Outcome, Trial

from .conftest import H100, ToyExecutor, ToyTemplate, latency, problem

P = problem()
DEFAULT = Candidate("toy", Config(BLOCK_M=64, BLOCK_N=32, num_stages=2, flag=False))
SLOW = Measurement(5e3, 0.01, (5e3,) * 3, 1.0, 1e-4)


def space(candidates: CandidateSet) -> SearchSpace:
    return search_space(candidates, P, H100.hardware)


def trial(candidate: Candidate, outcome: Outcome = Outcome.OK) -> Trial:
    executor = ToyExecutor()
    measured = executor.measure(P, candidate, 3) if outcome is Outcome.OK else None
    return Trial(P, H100, candidate, ToyTemplate.version, outcome, "cuda", "now", "", measured)


@pytest.mark.parametrize("name", samplers.NAMES)
def test_every_candidate_exactly_once(toy: ToyTemplate, name: str) -> None:
    if name == "gp":
        pytest.importorskip("torch", reason="GPSampler needs torch")
    candidates = enumerate_candidates(P.specialization, 90)
    known = [trial(c) for c in candidates.feasible[:20]]
    if name == "gp":  # slow with many trials
        candidates = CandidateSet(candidates.feasible[:26], 0, ())
    proposals = Proposals(space(candidates), name, 0, known, [DEFAULT])
    proposed = []
    while (candidate := proposals.next()) is not None:
        proposed.append(candidate)
        proposals.tell(trial(candidate))
    assert sorted(map(str, proposed)) == sorted(map(str, candidates.feasible[20:]))
    assert proposals.left == 0


def test_seeds_come_first_and_strangers_are_ignored(toy: ToyTemplate) -> None:
    candidates = enumerate_candidates(P.specialization, 90)
    stranger = Candidate("toy", Config(BLOCK_M=3, BLOCK_N=32, num_stages=2, flag=False))
    seed = candidates.feasible[-1]
    proposals = Proposals(space(candidates), "tpe", 0, (), [stranger, seed, DEFAULT, seed])
    assert [proposals.next(), proposals.next()] == [seed, DEFAULT]
    assert proposals.next() not in (None, seed, DEFAULT, stranger)


def test_the_same_seed_proposes_the_same(toy: ToyTemplate) -> None:
    candidates = enumerate_candidates(P.specialization, 90)
    runs = []
    for _ in range(2):
        proposals = Proposals(space(candidates), "tpe", 7)
        run = []
        for _ in range(30):
            run.append(proposals.next())
            proposals.tell(trial(run[-1], Outcome.SPILLS if len(run) % 5 == 0 else Outcome.OK))
        runs.append(run)
    # The measurements are noisy, the first suggestions are not informed by them.
    assert runs[0][:10] == runs[1][:10]


@pytest.mark.parametrize("name", ["surrogate", "tpe"])
def test_a_good_config_is_found_sooner_than_by_chance(toy: ToyTemplate, name: str) -> None:
    candidates = enumerate_candidates(P.specialization, 90)
    best = min(latency(P, c.config) for c in candidates.feasible)

    def regret(name: str, seed: int) -> float:
        proposals = Proposals(space(candidates), name, seed)
        seen = []
        for _ in range(35):
            candidate = proposals.next()
            seen.append(latency(P, candidate.config))
            proposals.tell(trial(candidate))
        return min(seen) / best - 1

    learned = sum(regret(name, seed) for seed in range(6))
    chance = sum(regret("random", seed) for seed in range(6))
    assert learned < chance


def test_failures_before_any_success_do_not_look_good(toy: ToyTemplate) -> None:
    """A first failure must not count as less than the latencies that come after it."""
    candidates = enumerate_candidates(P.specialization, 90)
    failures = [trial(c, Outcome.SPILLS) for c in candidates.feasible if c.config["flag"]]
    slow = [c for c in candidates.feasible if not c.config["flag"]][:8]
    known = [*failures[:8], *(replace(trial(c), measurement=SLOW) for c in slow)]
    proposals = Proposals(space(candidates), "surrogate", 0, known)
    assert sum(bool(proposals.next().config["flag"]) for _ in range(6)) <= 2


def test_an_unknown_sampler_is_named() -> None:
    with pytest.raises(ValueError, match="sampler is 'annealing', but must be one of surrogate"):
        samplers.create("annealing", 0, space(CandidateSet((), 0, ())))
