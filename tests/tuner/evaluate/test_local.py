"""The local executor with the CPU as its GPU: every way a candidate can end, and races."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from fake_workers import TARGET

from kernels.attention.config import Config
from kernels.attention.problem import Problem, Specialization
from tests.patience import ANSWER_S, SILENCE_S
from tuner.evaluate import local
from tuner.evaluate.executor import Compilation, Opening
from tuner.evaluate.local import LocalExecutor
from tuner.target import Target
from tuner.trial import Candidate, Outcome

pytest.importorskip("torch")

PROBLEM = Problem(64, 40, True, "fp16", 1, 2)


def candidate(kind: str) -> Candidate:
    return Candidate("fake", Config(kind=kind))


RIGHT, SLOW = candidate("right"), candidate("slow")


@pytest.fixture(scope="module")
def executor() -> Iterator[LocalExecutor]:
    with LocalExecutor(
        jobs=1,
        evaluate_deadline_s=SILENCE_S,
        gpu_factory="fake_workers:gpu",
        compile_factory="fake_workers:compiling",
    ) as executor:
        yield executor


def test_it_says_where_figures_come_from(executor: LocalExecutor) -> None:
    assert executor.target == TARGET
    assert executor.origin == "cuda"
    assert executor.evaluate_slots == 1
    assert executor.announce().startswith("Measuring on Fake H100 (sm_90, 132 SMs, 79 GiB, 700 W)")


def test_a_problem_too_large_is_refused(executor: LocalExecutor) -> None:
    assert executor.refuse(Problem.on_grid(256, 16384, True)) is None
    reason = executor.refuse(Problem(128, 16384, True, "fp16", 64, 64))
    assert reason is not None
    assert "163 GiB" in reason


def test_compilation_goes_through_the_farm(executor: LocalExecutor) -> None:
    assert executor.compile(PROBLEM, RIGHT).result(ANSWER_S).outcome is Outcome.OK


def test_a_right_candidate_is_measured(executor: LocalExecutor) -> None:
    evaluation = executor.evaluate(PROBLEM, RIGHT, None).result(ANSWER_S)
    assert evaluation.outcome is Outcome.OK, evaluation.reason
    measured = evaluation.measurement
    assert measured is not None
    assert len(measured.samples_ms) == 7
    assert min(measured.samples_ms) <= measured.median_ms <= max(measured.samples_ms)
    assert measured.tflops == pytest.approx(PROBLEM.flops / measured.median_ms * 1e-9)
    assert 0 < measured.max_diff < 1e-2
    assert evaluation.seconds > 0


@pytest.mark.parametrize(
    ("kind", "outcome", "reason"),
    [
        ("wrong", Outcome.WRONG, "off by 0.05 on a short seqlen, 0.01 is allowed"),
        ("unwritten", Outcome.WRONG, "NaN, or an element never written, on a short seqlen"),
        ("flaky", Outcome.WRONG, "after many launches: off by 0.05 on its own shape"),
        ("raises", Outcome.CRASHED, "ValueError: grid is too large"),
        ("compile_error", Outcome.COMPILE_ERROR, "CompileError: dominance"),
        ("out_of_resources", Outcome.OUT_OF_RESOURCES, "OutOfResources: shared memory, 300000"),
        ("illegal", Outcome.CRASHED, "an illegal memory access was encountered"),
        ("crash", Outcome.CRASHED, "killed by SIGSEGV, during the correctness gate"),
        ("hang", Outcome.TIMEOUT, "no answer within 10 s, during the correctness gate"),
    ],
)
def test_failures_are_outcomes_and_the_next_candidate_is_fine(
    executor: LocalExecutor, kind: str, outcome: Outcome, reason: str
) -> None:
    evaluation = executor.evaluate(PROBLEM, candidate(kind), None).result(ANSWER_S)
    assert (evaluation.outcome, evaluation.measurement) == (outcome, None)
    assert reason in evaluation.reason
    assert evaluation.candidate == candidate(kind)
    assert executor.evaluate(PROBLEM, RIGHT, None).result(ANSWER_S).outcome is Outcome.OK


def test_the_clearly_slow_are_pruned_with_what_was_measured(executor: LocalExecutor) -> None:
    evaluation = executor.evaluate(PROBLEM, SLOW, 1.0).result(ANSWER_S)
    assert evaluation.outcome is Outcome.PRUNED
    assert evaluation.reason.endswith("times the best so far")
    assert evaluation.measurement is not None
    assert len(evaluation.measurement.samples_ms) == 2


def test_a_race_has_equal_rounds_and_names_absent_peers(executor: LocalExecutor) -> None:
    race = executor.race(PROBLEM, [RIGHT, SLOW, RIGHT], 4).result(ANSWER_S)
    assert list(race.entrants) == [RIGHT, SLOW]
    assert all(len(measured.samples_ms) == 4 for measured in race.entrants.values())
    assert race.entrants[RIGHT].median_ms < race.entrants[SLOW].median_ms
    assert {name: len(samples) for name, samples in race.peers.items()} == {"fa2": 4}
    assert race.absent == {"cudnn": "RuntimeError: no cuDNN here"}
    assert not race.dropped


def test_the_fastest_of_a_race_go_on_alone(executor: LocalExecutor) -> None:
    like = Candidate("fake", Config(kind="right", number=2))
    for _ in range(5):  # by chance noise tells the two apart in four rounds
        race = executor.race(PROBLEM, [RIGHT, like, SLOW], 4).result(ANSWER_S)
        common = {who: measured.samples_ms for who, measured in race.entrants.items()}
        assert {len(samples) for samples in common.values()} == {len(race.peers["fa2"])} == {4}
        all_of = {who: race.compared(who) for who in common}
        assert all(all_of[who][:4] == samples for who, samples in common.items())
        assert len(all_of[SLOW]) == 4  # beaten at once
        if max(map(len, all_of.values())) > 4:
            return
    raise AssertionError("nobody went on")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("crash", "crashed: killed by SIGSEGV"),
        ("illegal", "crashed: RuntimeError: an illegal memory access"),
        ("hang", "timeout: no answer"),
        ("wrong", "off by 0.05"),
        ("raises", "ValueError: grid is too large"),
    ],
)
def test_a_race_goes_on_without_who_fails(executor: LocalExecutor, kind: str, reason: str) -> None:
    race = executor.race(PROBLEM, [RIGHT, candidate(kind), SLOW], 3).result(2 * ANSWER_S)
    assert list(race.entrants) == [RIGHT, SLOW]
    assert list(race.dropped) == [candidate(kind)]
    assert race.dropped[candidate(kind)].startswith(reason)
    assert len(race.peers["fa2"]) == 4  # three, in whole cycles


LIKE = [Candidate("fake", Config(kind="right", number=number)) for number in range(3)]


def test_the_fastest_of_a_heat_join_a_race(executor: LocalExecutor) -> None:
    slow = [Candidate("fake", Config(kind="slow", number=number)) for number in range(3)]
    hopefuls = [slow[0], candidate("wrong"), *LIKE, SLOW, slow[1], RIGHT, slow[2]]
    race = executor.race(PROBLEM, [SLOW], 4, 0.0, hopefuls).result(2 * ANSWER_S)
    assert set(race.entrants) == {SLOW, RIGHT, *LIKE}
    assert list(race.dropped) == [candidate("wrong")]
    assert len({len(measured.samples_ms) for measured in race.entrants.values()}) == 1


@pytest.mark.parametrize("kind", ["crash", "late crash"])
def test_if_one_dies_in_a_heat_the_first_of_the_others_race(
    executor: LocalExecutor, kind: str
) -> None:
    hopefuls = [SLOW, *LIKE, candidate(kind), RIGHT]
    race = executor.race(PROBLEM, [], 4, 0.0, hopefuls).result(2 * ANSWER_S)
    assert list(race.entrants) == [SLOW, *LIKE]  # without another heat, which RIGHT would win
    assert race.dropped == {candidate(kind): "crashed: killed by SIGSEGV"}


def test_a_race_of_hopefuls_who_all_fail(executor: LocalExecutor) -> None:
    hopefuls = [candidate(kind) for kind in ("wrong", "raises", "unwritten")]
    race = executor.race(PROBLEM, [], 2, 0.0, hopefuls).result(2 * ANSWER_S)
    assert race.entrants == {}
    assert set(race.dropped) == set(hopefuls)
    assert race.peers


def test_peers_alone(executor: LocalExecutor) -> None:
    race = executor.race(PROBLEM, [], 2).result(ANSWER_S)
    assert (race.entrants, len(race.peers["fa2"])) == ({}, 2)


def test_what_a_search_begins_with_is_compiled_before_the_gpu_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Target] = []
    compiled = threading.Event()
    hello = local.Evaluator.hello

    def first(target: Target) -> list[tuple[Candidate, Specialization]]:
        asked.append(target)
        return [(RIGHT, PROBLEM.specialization)]

    def late(self: local.Evaluator) -> Target:
        assert compiled.wait(ANSWER_S) or not asked
        return hello(self)

    def submit(self: local.CompileFarm, *job: Any) -> Future[Compilation]:
        future = real(self, *job)
        future.add_done_callback(lambda _: compiled.set())
        return future

    real = local.CompileFarm.submit
    monkeypatch.setattr(local.CompileFarm, "submit", submit)
    monkeypatch.setattr(local.Evaluator, "hello", late)
    monkeypatch.setattr(local.cuda_driver, "target", lambda: TARGET)
    with opened(first) as executor:
        assert asked == [TARGET]
        assert executor.compile(PROBLEM, RIGHT).result(ANSWER_S).outcome is Outcome.OK


def opened(first: Opening) -> LocalExecutor:
    return LocalExecutor(
        jobs=1, first=first, gpu_factory="fake_workers:gpu",
        compile_factory="fake_workers:compiling",
    )  # fmt: skip


@pytest.mark.parametrize("driver", ["absent", "broken", "hung"])
def test_a_driver_that_does_not_answer_costs_no_more_than_that(
    monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    released = threading.Event()

    def target() -> Target | None:
        if driver == "hung":
            released.wait(60)
        if driver == "broken":
            raise OSError("no such library")
        return None

    def first(_: Target) -> list[Any]:
        raise AssertionError("there is no target to tell")

    monkeypatch.setattr(local.cuda_driver, "target", target)
    try:
        with opened(first) as executor:
            assert executor.target == TARGET
    finally:
        released.set()


def test_a_fault_in_what_comes_first_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []
    close = LocalExecutor.close

    def noting(self: LocalExecutor) -> None:
        closed.append(self)
        close(self)

    def first(target: Target) -> list[Any]:
        raise KeyError(target.triton)

    monkeypatch.setattr(LocalExecutor, "close", noting)
    monkeypatch.setattr(local.cuda_driver, "target", lambda: TARGET)
    with pytest.raises(KeyError, match=TARGET.triton):
        LocalExecutor(jobs=1, first=first, gpu_factory="fake_workers:gpu")
    assert len(closed) == 1


def test_a_gpu_that_cannot_be_used_is_one_sentence() -> None:
    with pytest.raises(RuntimeError, match="the GPU cannot be used: RuntimeError: no such GPU"):
        LocalExecutor(
            gpu_factory="fake_workers:misbehaving", gpu_options={"fail_at_start": True}, jobs=1
        )


@pytest.mark.parametrize(
    ("visible", "device", "name"),
    [(None, 1, "1"), ("", 1, "1"), ("4,6", 1, "6"), ("GPU-aa, GPU-bb", 1, "GPU-bb")],
)
def test_which_device_a_worker_sees(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, device: int, name: str
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert local._visible(device) == name


def test_a_device_that_is_not_visible_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(ValueError, match="GPU 1 is asked for, but CUDA_VISIBLE_DEVICES is 3"):
        LocalExecutor(devices=(1,))


def test_several_workers_share_the_evaluations() -> None:
    with LocalExecutor(
        devices=(0, 1), jobs=1, gpu_factory="fake_workers:gpu",
        compile_factory="fake_workers:compiling",
    ) as executor:  # fmt: skip
        assert executor.evaluate_slots == 2
        futures = [executor.evaluate(PROBLEM, RIGHT, None) for _ in range(4)]
        assert all(future.result(ANSWER_S).outcome is Outcome.OK for future in futures)
        pids = [evaluator.pid for evaluator in executor._evaluators]
        assert None not in pids
