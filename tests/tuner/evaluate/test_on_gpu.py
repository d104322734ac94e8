"""On a real GPU: the gate, timing, races, and kernels that crash or never end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from fake_workers import FakeTemplate

from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import DTYPES, HEADDIMS, Problem, Specialization
from tests.tuner.evaluate.test_screening import HUGE
from tuner.evaluate.local import LocalExecutor
from tuner.evaluate.timing import cycle
from tuner.search import candidates, driver
from tuner.search.objective import MARK
from tuner.search.options import Options
from tuner.store.database import Store
from tuner.trial import Candidate, Outcome

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("executor"),  # whose processes take seconds to start
]

PROBLEM = Problem.on_grid(64, 4096, True)
# Of an evaluation. Where tests run side by side, as those of time do not, they share the card.
DEADLINE_S = 20.0 if os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") == "1" else 60.0


def default(name: str, problem: Problem, executor: LocalExecutor) -> Candidate:
    return Candidate(name, registry.get(name).default(problem, executor.target.hardware.capability))


def defaults(problem: Problem, executor: LocalExecutor) -> list[Candidate]:
    """Of every template that serves this card."""
    capability = executor.target.hardware.capability
    return [
        default(name, problem, executor)
        for name in registry.names()
        if registry.get(name).supports(problem.specialization, capability) is None
    ]


def faulty(kind: str) -> Candidate:
    return Candidate("fake", Config(kind=kind))


@pytest.fixture(scope="module")
def executor() -> Iterator[LocalExecutor]:
    with LocalExecutor(
        evaluate_deadline_s=DEADLINE_S, gpu_factory="fake_workers:faulty_gpu"
    ) as executor:
        yield executor


@pytest.fixture(params=registry.names())
def name(request: pytest.FixtureRequest, executor: LocalExecutor) -> str:
    """Of each template in turn."""
    capability = executor.target.hardware.capability
    refusal = registry.get(request.param).supports(PROBLEM.specialization, capability)
    if refusal is not None:
        pytest.skip(refusal)
    return request.param


def test_too_much_shared_memory_is_an_outcome_and_the_next_is_fine(
    name: str, executor: LocalExecutor
) -> None:
    fits = default(name, PROBLEM, executor)
    huge = Candidate(name, Config({**fits.config, **HUGE[name]}))
    compiled = executor.compile(PROBLEM, huge).result()
    assert compiled.outcome is Outcome.OUT_OF_RESOURCES, compiled.reason
    assert executor.compile(PROBLEM, fits).result().outcome is Outcome.OK
    assert executor.evaluate(PROBLEM, fits, None).result().outcome is Outcome.OK


def test_the_target(executor: LocalExecutor) -> None:
    import torch

    from tuner import device

    assert device.has_gpu()
    assert device.detect(0) == executor.target
    assert executor.target.gpu_name == torch.cuda.get_device_name(0)
    assert executor.target.driver != "unknown"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("headdim", HEADDIMS)
def test_the_default_passes_the_gate(
    executor: LocalExecutor, name: str, headdim: int, causal: bool, dtype: str
) -> None:
    problem = Problem.on_grid(headdim, 2048, causal, dtype)
    candidate = default(name, problem, executor)
    compiled = executor.compile(problem, candidate).result(120)
    assert compiled.outcome is Outcome.OK, compiled.reason
    evaluation = executor.evaluate(problem, candidate, None).result(120)
    assert evaluation.outcome is Outcome.OK, evaluation.reason
    assert evaluation.measurement is not None
    assert evaluation.measurement.max_diff < (1e-2 if dtype == "fp16" else 5e-2)


def test_a_search_of_single_launches_with_a_cold_cache(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    problem = Problem.on_grid(64, 4096, True)
    with (
        LocalExecutor(evaluate_deadline_s=DEADLINE_S, cold_l2=True) as cold,
        Store.open(tmp_path / "latency.db") as store,
    ):
        (record,) = driver.search([problem], cold, store, (), Options(trials=4))
        trials = {trial.candidate: trial for trial in store.trials(problem)}
    assert record is not None
    assert record.note.startswith(MARK)
    assert len(trials) == 4
    for candidate in defaults(problem, executor):
        alone, warm = trials[candidate], executor.evaluate(problem, candidate, None).result(120)
        assert alone.outcome.timed, alone.reason
        assert alone.reason == MARK or alone.outcome is Outcome.PRUNED
        assert alone.measurement is not None
        assert warm.measurement is not None
        assert alone.measurement.cycles is None
        assert warm.measurement.cycles is not None


@pytest.mark.timing
def test_an_evaluation_is_cheap_and_repeats(executor: LocalExecutor, name: str) -> None:
    candidate = default(name, PROBLEM, executor)
    first = executor.evaluate(PROBLEM, candidate, None).result(120)
    start = time.perf_counter()
    second = executor.evaluate(PROBLEM, candidate, None).result(120)
    assert time.perf_counter() - start < 0.5
    assert first.measurement is not None
    assert second.measurement is not None
    assert second.measurement.median_ms == pytest.approx(first.measurement.median_ms, rel=0.1)
    assert second.measurement.sm_clock_mhz is not None
    assert second.measurement.spread < 0.1


@pytest.mark.timing
def test_the_same_config_first_and_last_agrees_within_2_percent(
    executor: LocalExecutor, name: str
) -> None:
    """As a search counts it, by the middling of three timings: one alone may be further off."""
    candidate = default(name, PROBLEM, executor)
    steady_ms = []
    for _ in range(15):
        evaluation = executor.evaluate(PROBLEM, candidate, None).result(120)
        assert evaluation.measurement is not None
        assert evaluation.measurement.cycles
        steady_ms.append(evaluation.measurement.steady_ms)
    middling = [median(steady_ms[first : first + 3]) for first in range(0, 15, 3)]
    assert middling == pytest.approx([middling[0]] * 5, rel=0.02), steady_ms
    assert steady_ms == pytest.approx([median(steady_ms)] * 15, rel=0.04)


@pytest.mark.timing
def test_the_same_config_first_and_last_in_a_session_agrees_within_2_percent(
    executor: LocalExecutor, name: str
) -> None:
    """By what rounds decide by, the ratio to another config in the same ones. Milliseconds move
    with the clock that the card's power cap leaves: of rounds by 3 %, of a trial, 60 ms after
    whatever the card did before, by more."""
    candidate = default(name, PROBLEM, executor)
    good = defaults(PROBLEM, executor)
    other = next(one for one in good if one != candidate)

    def raced() -> tuple[float, float]:
        race = executor.race(PROBLEM, good, 16, decide_s=0.0).result(180)
        assert not race.dropped
        own, others = race.compared(candidate), race.compared(other)
        ratio = median(ours / theirs for ours, theirs in zip(own, others))
        return ratio, race.entrants[candidate].median_ms

    def tried_ms() -> float:
        evaluation = executor.evaluate(PROBLEM, candidate, None).result(120)
        assert evaluation.measurement is not None
        return evaluation.measurement.median_ms

    tried_ms()  # the card leaves idle
    (ratio, in_rounds_ms), tried = raced(), tried_ms()
    for kind in ("right", "slow", "nan", "illegal", "right"):
        for each in (*good, faulty(kind)):
            executor.evaluate(PROBLEM, each, None).result(120)
    assert not executor.race(PROBLEM, [*good, faulty("right")], 5).result(180).dropped
    executor.evaluate(PROBLEM, faulty("illegal"), None).result(120)
    assert tried_ms() == pytest.approx(tried, rel=0.08)
    ratio_again, in_rounds_again_ms = raced()
    assert ratio_again == pytest.approx(ratio, rel=0.02)
    assert in_rounds_again_ms == pytest.approx(in_rounds_ms, rel=0.05)


@pytest.mark.timing
def test_the_slow_are_pruned(executor: LocalExecutor) -> None:
    evaluation = executor.evaluate(PROBLEM, faulty("slow"), 0.5).result(120)
    assert evaluation.outcome is Outcome.PRUNED
    assert evaluation.seconds < 5


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("nan", Outcome.WRONG),
        ("assert", Outcome.CRASHED),
        ("illegal", Outcome.CRASHED),
        ("illegal_later", Outcome.CRASHED),
        # It occupies the card until the deadline.
        pytest.param("hang", Outcome.TIMEOUT, marks=pytest.mark.timing),
    ],
)
def test_failures_are_outcomes_and_the_next_candidate_is_fine(
    executor: LocalExecutor, kind: str, outcome: Outcome
) -> None:
    good = defaults(PROBLEM, executor)

    def all_are_fine() -> None:
        for candidate in good:
            assert executor.evaluate(PROBLEM, candidate, None).result(120).outcome is Outcome.OK

    all_are_fine()  # so that the deadline does not pay for making inputs
    start = time.monotonic()
    evaluation = executor.evaluate(PROBLEM, faulty(kind), None).result(120)
    assert evaluation.outcome is outcome, evaluation.reason
    assert evaluation.reason
    assert time.monotonic() - start < DEADLINE_S + 5
    all_are_fine()


@pytest.mark.timing  # a hang occupies the card until its deadline
def test_a_search_among_faults_ends_with_the_right_winner(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ends = {
        "hang": Outcome.TIMEOUT,
        "nan": Outcome.WRONG,
        "assert": Outcome.CRASHED,
        "illegal": Outcome.CRASHED,
        "illegal_later": Outcome.CRASHED,
        "out_of_resources": Outcome.OUT_OF_RESOURCES,
        "compiler_crash": Outcome.CRASHED,
        "right": Outcome.OK,
    }

    class Faults(FakeTemplate):
        """A space of which one candidate is right, and the default hangs."""

        def space(self, specialization: Specialization) -> dict[str, tuple[str, ...]]:
            return {"kind": tuple(ends)}

        def default(self, problem: Problem, capability: int) -> Config:
            return Config(kind="hang")

    monkeypatch.setattr(registry, "names", lambda: ("fake",))
    monkeypatch.setattr(registry, "get", lambda name: Faults())
    candidates.enumerate_candidates.cache_clear()
    with (
        LocalExecutor(
            jobs=1, evaluate_deadline_s=10.0, gpu_factory="fake_workers:faulty_gpu",
            compile_factory="fake_workers:compiling",
        ) as executor,
        Store.open(tmp_path / "configs.db") as store,
    ):  # fmt: skip
        (record,) = driver.search([PROBLEM], executor, store, (), Options(sampler="exhaustive"))
        outcomes = {t.candidate.config["kind"]: t.outcome for t in store.trials()}
    candidates.enumerate_candidates.cache_clear()
    assert outcomes == ends
    assert record is not None
    assert record.candidate == faulty("right")


def test_a_race_with_the_peers(executor: LocalExecutor) -> None:
    entrants = [*defaults(PROBLEM, executor), faulty("right")]
    race = executor.race(PROBLEM, entrants, 5).result(120)
    assert list(race.entrants) == entrants, race.dropped
    rounds = {name: len(samples) for name, samples in race.peers.items()}
    assert {"cudnn", "fa2"} <= rounds.keys(), race.absent  # others, where they are installed
    turn = cycle(len(entrants) + len(rounds))
    assert set(rounds.values()) == {-(-5 // turn) * turn}
    for entrant in entrants:
        common = race.entrants[entrant].samples_ms
        assert len(common) in rounds.values()
        shared = race.compared(entrant)[: len(common)]
        assert median(shared) == pytest.approx(race.entrants[entrant].steady_ms)


def test_a_race_goes_on_without_who_crashes(executor: LocalExecutor) -> None:
    good, bad = defaults(PROBLEM, executor), faulty("illegal")
    race = executor.race(PROBLEM, [*good, bad], 3).result(180)
    assert list(race.entrants) == good
    assert list(race.dropped) == [bad]
    assert "illegal memory access" in race.dropped[bad]


@pytest.mark.timing
def test_the_stopwatch_knows_how_long_a_known_launch_takes() -> None:
    import torch

    from tuner.evaluate.sensor import Sensor
    from tuner.evaluate.stopwatch import CudaStopwatch

    def sleep() -> None:
        torch.cuda._sleep(2_000_000)

    for cold in (False, True):
        stopwatch = CudaStopwatch(Sensor(None), cold_l2=cold)
        stopwatch(sleep, 5)
        mean = stopwatch(sleep, 20)
        assert 0.8 < mean < 2.5  # 2 million cycles at 0.8 to 2.5 GHz
        assert sum(stopwatch.each(sleep, 20)) / 20 == pytest.approx(mean, rel=0.2)
        cycles = stopwatch.sample(sleep, 20).cycles
        assert cycles is None if cold else cycles == pytest.approx(2e6, rel=0.01)
        assert stopwatch.sample(lambda: torch.cuda._sleep(20_000), 3).cycles is None  # too short


def test_every_gpu_of_the_machine_evaluates() -> None:
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip("needs two GPUs")
    problem = Problem.on_grid(64, 2048, True)
    with LocalExecutor(devices=range(count)) as executor:
        candidates = defaults(problem, executor)
        for candidate in candidates:
            assert executor.compile(problem, candidate).result(300).outcome is Outcome.OK
        futures = [
            executor.evaluate(problem, candidate, None)
            for candidate in candidates
            for _ in range(2 * count)
        ]
        results = [future.result(120) for future in futures]
    assert all(result.outcome is Outcome.OK for result in results), results
