"""Whole searches among candidates that do everything wrong, and compilers that never end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_workers import FakeTemplate

from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import Problem, Specialization
from scripts.kill_nine import alive
from tests.patience import SILENCE_S, wait_until
from tuner.evaluate.compile_farm import CompileFarm
from tuner.evaluate.local import LocalExecutor
from tuner.search import candidates, driver
from tuner.search.events import Event, ProblemEnded, TrialEnded
from tuner.search.options import Options
from tuner.store.database import Store
from tuner.trial import Candidate, Outcome

pytest.importorskip("torch")

PROBLEM = Problem(64, 40, True, "fp16", 1, 2)

# Whatever a candidate may do, and how that ends.
FAULTS = {
    "hang": (Outcome.TIMEOUT, "no answer within 10 s, during the correctness gate"),
    "crash": (Outcome.CRASHED, "killed by SIGSEGV, during the correctness gate"),
    "illegal": (Outcome.CRASHED, "an illegal memory access was encountered"),
    "raises": (Outcome.CRASHED, "ValueError: grid is too large"),
    "nan": (Outcome.WRONG, "NaN, or an element never written"),
    "unwritten": (Outcome.WRONG, "NaN, or an element never written"),
    "wrong": (Outcome.WRONG, "off by 0.05"),
    "flaky": (Outcome.WRONG, "after many launches: off by 0.05"),
    "out_of_resources": (Outcome.OUT_OF_RESOURCES, "shared memory, 300000 bytes of 232448"),
    "compile_error": (Outcome.COMPILE_ERROR, "dominance: operand #0"),
    "compiler_bug": (Outcome.COMPILE_ERROR, "'ttg.convert_layout' op is invalid"),
    "compiler_crash": (Outcome.CRASHED, "the compiler: killed by SIGSEGV"),
    "compiler_hang": (Outcome.TIMEOUT, "the compiler: no answer within 10 s"),
}


class Misbehaved(FakeTemplate):
    """A space in which two candidates are right, and the default is not among them."""

    def space(self, specialization: Specialization) -> Mapping[str, Any]:
        return {"kind": (*FAULTS, "right", "slow")}

    def default(self, problem: Problem, capability: int) -> Config:
        return Config(kind="hang")


@pytest.fixture
def misbehaved(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "names", lambda: ("fake",))
    monkeypatch.setattr(registry, "get", lambda name: Misbehaved())
    candidates.enumerate_candidates.cache_clear()
    yield
    candidates.enumerate_candidates.cache_clear()


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_search_ends_with_the_right_winner(misbehaved: None, tmp_path: Path, gpus: int) -> None:
    events: list[Event] = []
    with (
        LocalExecutor(
            devices=range(gpus), jobs=1, compile_deadline_s=SILENCE_S,
            evaluate_deadline_s=SILENCE_S,
            gpu_factory="fake_workers:gpu", compile_factory="fake_workers:compiling",
        ) as executor,
        Store.open(tmp_path / "configs.db") as store,
    ):  # fmt: skip
        options = Options(sampler="exhaustive")
        (record,) = driver.search([PROBLEM], executor, store, (), options, events.append)
        kept = {t.candidate.config["kind"]: (t.outcome, t.reason) for t in store.trials()}
        workers = [evaluator.pid for evaluator in executor._evaluators]
    assert record is not None
    assert record.candidate == Candidate("fake", Config(kind="right"))
    assert record.default_ms is None
    assert len([e for e in events if isinstance(e, TrialEnded)]) == len(FAULTS) + 2
    for kind, (outcome, reason) in FAULTS.items():
        assert kept[kind][0] is outcome, kind
        assert reason in kept[kind][1]
    assert kept["right"] == (Outcome.OK, "")
    (ended,) = (e for e in events if isinstance(e, ProblemEnded))
    assert sum(ended.reasons.values()) == len(FAULTS)
    assert not any(pid and alive(pid) for pid in workers)


def ptxas() -> Path:
    from triton.backends.nvidia.compiler import get_ptxas

    return Path(get_ptxas(90).path)


# Is the real one for all but blocks of 256 threads.
FAKE = """#!/bin/sh
for word; do
    case "$word" in
    *.ptx)
        if grep -qE '[.](reqntid|maxntid) 256' "$word"; then
            echo $$ >>"{pids}"
            {deed}
        fi
        ;;
    esac
done
exec "{real}" "$@"
"""


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
@pytest.mark.parametrize(
    ("deed", "outcome", "reason"),
    [
        ('sleep 600 & echo $! >>"{pids}"; wait', Outcome.TIMEOUT, "ptxas: no answer within 20 s"),
        ("kill -SEGV $$", Outcome.COMPILE_ERROR, ""),
        ("echo 'ptxas fatal   : no luck' >&2; exit 255", Outcome.COMPILE_ERROR, "PTX"),
    ],
    ids=["hangs", "crashes", "refuses"],
)
def test_a_fake_ptxas_costs_its_candidate_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, deed: str, outcome: Outcome, reason: str
) -> None:
    pytest.importorskip("triton")
    if sys.platform != "linux" or not ptxas().exists():
        pytest.skip("Triton brings no ptxas here")
    fake, pids = tmp_path / "ptxas", tmp_path / "pids"
    said = deed.format(pids=pids)
    fake.write_text(FAKE.format(real=ptxas(), deed=said, pids=pids), encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(fake))
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", str(fake))  # from Triton 3.9 on
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    template = registry.get("portable")
    problem = Problem.on_grid(64, 4096, True)
    default = template.default(problem, 90)
    farm = CompileFarm(1, deadline_s=20.0)
    try:
        bad, good = (
            Candidate("portable", Config({**default, "num_warps": warps})) for warps in (8, 4)
        )
        ended = farm.submit(bad, problem.specialization, 90).result(120)
        assert (ended.outcome, ended.candidate) == (outcome, bad), ended.reason
        assert reason in ended.reason
        assert ended.reason
        if outcome is Outcome.TIMEOUT:
            hung = [int(pid) for pid in pids.read_text().split()]
            assert len(hung) == 2  # it and what it had started
            assert wait_until(lambda: not any(map(alive, hung)))
        after = farm.submit(good, problem.specialization, 90).result(120)
        assert after.outcome is Outcome.OK, after.reason
    finally:
        farm.close()
