"""Compiling in processes: typed outcomes, shared binaries, hangs and crashes of the compiler."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest

from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import Problem, Specialization
from tests.patience import ANSWER_S, SILENCE_S, promptly, wait_until
from tuner.evaluate import compile_worker, compiler
from tuner.evaluate.compile_farm import CompileFarm
from tuner.evaluate.process import Worker
from tuner.trial import Candidate, Outcome

D64 = Specialization(64, True, "fp16")
FACTORY = "fake_workers:compiling"


@pytest.fixture
def farm() -> Iterator[CompileFarm]:
    farm = CompileFarm(jobs=2, deadline_s=SILENCE_S, factory=FACTORY)
    yield farm
    farm.close()


@pytest.mark.skipif(sys.platform == "win32", reason="has no such priorities")
def test_compilers_make_way_for_the_process_that_measures() -> None:
    pytest.importorskip("triton")
    worker = Worker(compiler.FACTORY)
    try:
        worker.start()
        assert worker.pid is not None
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, worker.pid) == min(19, ours + 5)
        assert ours == os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        worker.close()


@pytest.mark.parametrize(
    ("errors", "written"),
    [([], "5"), ([BlockingIOError(), BlockingIOError()], "5"), ([FileNotFoundError()], "")],
)
def test_their_session_makes_way_where_sessions_are_scheduled(
    monkeypatch: pytest.MonkeyPatch, errors: list[OSError], written: str
) -> None:
    left, said, nice = list(errors), [], []

    class Autogroup:
        def write_text(self, text: str, encoding: str) -> None:
            if left:
                raise left.pop(0)
            said.append(text)

    monkeypatch.setattr(compile_worker, "_AUTOGROUP", Autogroup())
    monkeypatch.setattr(os, "nice", nice.append)
    compile_worker._make_way()
    assert nice == [5]
    assert "".join(said) == written


def candidate(kind: str, **more: int) -> Candidate:
    return Candidate("fake", Config(kind=kind, **more))


@pytest.mark.parametrize(
    ("kind", "outcome", "reason"),
    [
        ("right", Outcome.OK, ""),
        (
            "compile_error",
            Outcome.COMPILE_ERROR,
            "dominance: operand #0 does not dominate this use",
        ),
        ("out_of_resources", Outcome.OUT_OF_RESOURCES, "shared memory, 300000 bytes of 232448"),
        (
            "compiler_bug",
            Outcome.COMPILE_ERROR,
            "RuntimeError: 'ttg.convert_layout' op is invalid",
        ),
        ("compiler_crash", Outcome.CRASHED, "the compiler: killed by SIGSEGV"),
        ("compiler_hang", Outcome.TIMEOUT, "the compiler: no answer within 10 s"),
    ],
)
def test_outcomes(farm: CompileFarm, kind: str, outcome: Outcome, reason: str) -> None:
    compilation = farm.submit(candidate(kind), D64, 90).result(ANSWER_S)
    assert (compilation.outcome, compilation.reason) == (outcome, reason)
    assert (compilation.resources is not None) == (outcome is Outcome.OK)
    assert compilation.candidate == candidate(kind)
    # Whatever happened, the next one is fine.
    assert farm.submit(candidate("right", n=2), D64, 90).result(ANSWER_S).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("limit", "spills", "outcome"),
    [
        (64, 64, Outcome.OK),
        (64, 65, Outcome.SPILLS),
        (None, 9999, Outcome.OK),
    ],
)
def test_spills_are_screened(limit: int | None, spills: int, outcome: Outcome) -> None:
    farm = CompileFarm(1, spill_limit=limit, factory=FACTORY)
    try:
        compilation = farm.submit(candidate("right", spills=spills), D64, 90).result(ANSWER_S)
    finally:
        farm.close()
    assert compilation.outcome is outcome
    assert compilation.resources is not None
    assert compilation.resources.spills == spills
    if outcome is Outcome.SPILLS:
        assert compilation.reason == "spills 65 bytes per thread, more than 64"


def test_problems_of_one_specialization_share_a_compilation(tmp_path: Path) -> None:
    log = tmp_path / "log"
    farm = CompileFarm(2, factory=FACTORY, options={"log": str(log)})
    try:
        short, long = (Problem.on_grid(64, seqlen, True) for seqlen in (512, 16384))
        futures = [
            farm.submit(candidate("right"), problem.specialization, 90) for problem in (short, long)
        ]
        other = farm.submit(candidate("right"), Specialization(64, False, "fp16"), 90)
        wait([*futures, other], ANSWER_S)
    finally:
        farm.close()
    assert futures[0] is futures[1]
    assert log.read_text().splitlines() == ["compiled"] * 2


def test_a_cancelled_compilation_can_be_asked_for_again(farm: CompileFarm) -> None:
    blockers = [farm.submit(candidate("compiler_hang", n=n), D64, 90) for n in range(farm.slots)]
    waiting = farm.submit(candidate("right"), D64, 90)
    assert waiting.cancel()
    assert farm.submit(candidate("right"), D64, 90).result(ANSWER_S).outcome is Outcome.OK
    wait(blockers, ANSWER_S)


def test_close_is_prompt_and_cancels() -> None:
    farm = CompileFarm(1, deadline_s=60, factory=FACTORY)
    futures = [farm.submit(candidate("compiler_hang", n=n), D64, 90) for n in range(3)]
    assert wait_until(futures[0].running)
    with promptly():
        farm.close()
        farm.close()
    assert futures[0].result(1).outcome is Outcome.CRASHED
    assert all(future.cancelled() for future in futures[1:])


def test_the_real_compiler() -> None:
    pytest.importorskip("triton")
    template = registry.get("portable")
    problem = Problem.on_grid(64, 4096, True)
    good = Candidate("portable", template.default(problem, 90))
    # Ten times the shared memory there is; the rules reject it, the farm compiles what it is told.
    huge = Candidate("portable", Config({**good.config, "BLOCK_N": 1024, "num_stages": 4}))
    farm = CompileFarm(2, deadline_s=120)
    try:
        futures = [farm.submit(c, problem.specialization, 90) for c in (good, huge)]
        right, wrong = (future.result(240) for future in futures)
    finally:
        farm.close()
    assert right.outcome is Outcome.OK, right.reason
    assert right.resources is not None
    assert 0 < right.resources.registers <= 255
    assert right.resources.shared_memory > 0
    assert right.seconds > 0
    assert wrong.outcome in (Outcome.OUT_OF_RESOURCES, Outcome.COMPILE_ERROR)
    assert wrong.reason
