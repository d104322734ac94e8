from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import Problem
from scripts import prove_search, rival_tuners
from scripts.prove_search import Run, prove, raced, table
from tests.tuner.search.conftest import ToyExecutor, ToyTemplate, problem
from tuner.evaluate.executor import Race
from tuner.evaluate.inputs import own_shape
from tuner.evaluate.wire import candidate_from_json
from tuner.search import candidates
from tuner.trial import Candidate, Measurement

P = problem()
SMALL = Problem(64, 256, True, "fp16", 1, 2)
BEST = Candidate("toy", Config(BLOCK_M=128, BLOCK_N=64, num_stages=3, flag=True))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ToyTemplate]:
    template = ToyTemplate()
    monkeypatch.setattr(registry, "names", lambda: ("toy",))
    monkeypatch.setattr(registry, "get", lambda name: template)
    candidates.enumerate_candidates.cache_clear()
    yield template
    candidates.enumerate_candidates.cache_clear()


def test_ours_and_exhaustive_start_cold_and_their_winners_race(toy: ToyTemplate) -> None:
    executors: list[ToyExecutor] = []

    def opened() -> ToyExecutor:
        executors.append(ToyExecutor(seed=len(executors)))
        return executors[-1]

    kept: list[int] = []
    runs = prove(
        P, opened, ("ours", "exhaustive"), 3, 25, lambda: 1e3, lambda runs: kept.append(len(runs))
    )  # fmt: skip
    assert [(run.contestant, run.seed) for run in runs] == [
        ("ours", 0), ("ours", 1), ("ours", 2), ("exhaustive", 0),
    ]  # fmt: skip
    assert kept == [1, 2, 3, 4, 4]
    assert [run.evaluations for run in runs[:3]] == [25, 25, 25]
    assert runs[3].evaluations > 100
    assert runs[3].candidate == BEST
    assert all(run.regret is not None and run.regret < 1.05 for run in runs)
    assert min(run.regret for run in runs if run.regret) == 1.0
    assert BEST in executors[-1].raced
    printed = table({str(P): runs})
    assert "regret of ours over 3 runs" in printed
    assert json.loads(json.dumps([run.to_json() for run in runs]))[3]["candidate"]


def test_what_does_not_fit_into_the_budget_is_left_out(toy: ToyTemplate) -> None:
    left = iter([1e3, 10.0])
    runs = prove(P, ToyExecutor, ("ours", "exhaustive"), 1, 5, lambda: next(left), lambda _: None)
    assert runs[0].candidate is not None
    assert "left out" in runs[1].note
    assert runs[1].candidate is None


def test_a_rival_that_fails_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    script = tmp_path / "rival.py"
    monkeypatch.setattr(prove_search, "RIVALS", script)
    script.write_text("raise SystemExit('no card')")
    assert prove_search.rival(P, "autotune", 5.0).note == "failed: no card"
    script.write_text("print('chatter'); print('{\"evaluations\": 3, \"ms\": 2.0}')")
    run = prove_search.rival(P, "helion", 5.0)
    assert (run.evaluations, run.believed_ms) == (3, 2.0)
    assert run.tflops == pytest.approx(P.flops / 2.0 * 1e-9)


def test_who_crashes_in_the_race_has_no_rate() -> None:
    other = Candidate("toy", Config(BLOCK_M=1))
    runs = [Run("ours", candidate=BEST), Run("autotune", candidate=other)]
    measured = Measurement(1.0, 0.0, (1.0,), 400.0, 0.0)
    raced(runs, Race({BEST: measured}, {}, {other: "crashed"}))
    assert (runs[0].tflops, runs[0].regret) == (400.0, 1.0)
    assert runs[1].tflops is None
    assert "crashed" in runs[1].note


@pytest.mark.parametrize("headdim", [64, 256])
def test_autotune_passes_the_kernel_all_its_arguments_once(headdim: int) -> None:
    pytest.importorskip("triton")
    from kernels.attention.portable_kernel import attention_forward

    of = Problem.on_grid(headdim, 1024, True)
    config = registry.get("portable").default(of, 90)
    tuned, fixed = (
        rival_tuners.constants(config),
        rival_tuners.arguments(of, ["q", "k", "v", "out"], tma=True),
    )
    assert not set(tuned) & set(fixed)
    assert set(tuned) | set(fixed) == set(attention_forward.arg_names)
    assert fixed["out_row"] == headdim
    assert fixed["q_row"] == 0
    assert fixed["coarse"] >= fixed["scale"] > 0
    assert math.log2(fixed["coarse"]).is_integer()
    assert json.dumps(asdict(of))


class Sm90:
    """The part of Triton's driver that compiling needs, of a card that is not there."""

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[object]:
    """What the JIT compiles for the card that is not there, where it would launch."""
    pytest.importorskip("triton")
    import torch
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    kernels: list[object] = []
    run = JITFunction.run

    def compile_only(self: object, *arguments: object, warmup: bool, **more: object) -> None:
        kernels.append(run(self, *arguments, warmup=True, **more))

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(JITFunction, "run", compile_only)
    monkeypatch.setattr(driver, "_active", Sm90())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(rival_tuners, "own_shape", lambda of, _: own_shape(of, "cpu"))
    return kernels


@pytest.fixture
def of_few(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Two configs of each kind, all that the portable template has."""
    template = registry.get("portable")
    every = list(template.feasible(SMALL.specialization, 90))
    few = [c for tma in (True, False) for c in [c for c in every if c["tma"] is tma][:2]]
    monkeypatch.setattr(type(template), "feasible", lambda *_: iter(few))
    return few


def test_autotune_compiles_every_config_and_names_the_fastest(
    compiled: list[object], of_few: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton

    times = iter([4.0, 3.0, 2.0, 5.0])

    def do_bench(call: Callable[[], object], quantiles: Sequence[float]) -> list[float]:
        call()
        return [next(times)] * len(quantiles)

    monkeypatch.setattr(triton.testing, "do_bench", do_bench)
    reply = rival_tuners.autotune(SMALL, 1e3)
    assert len(compiled) == 4 + 2  # each winner is run once more
    assert (reply["evaluations"], reply["ms"], reply["note"]) == (4, 2.0, "")
    assert candidate_from_json(reply["candidate"]) == Candidate("portable", of_few[2])


def test_autotune_goes_on_after_a_failure_and_stops_when_its_time_is_up(
    compiled: list[object], of_few: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton

    clock = iter([0.0, 1.0, 2.0, 9.0, 9.0])
    monkeypatch.setattr(rival_tuners, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    results: Iterator[float | Exception] = iter([RuntimeError("PassManager::run failed"), 3.0])

    def do_bench(call: Callable[[], object], quantiles: Sequence[float]) -> list[float]:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return [result] * len(quantiles)

    monkeypatch.setattr(triton.testing, "do_bench", do_bench)
    reply = rival_tuners.autotune(SMALL, 5.0)
    assert reply["note"] == "its time was up after 2 of 4; 1 failed"
    assert (reply["evaluations"], reply["ms"]) == (2, 3.0)
    assert candidate_from_json(reply["candidate"]) == Candidate("portable", of_few[1])


def test_a_rival_that_hangs_is_ended_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "rival.py"
    monkeypatch.setattr(prove_search, "RIVALS", script)
    monkeypatch.setattr(prove_search, "RIVAL_GRACE_S", 0.5)
    # The grandchild holds the pipes open, as a compiler does.
    script.write_text(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    )
    began = time.monotonic()
    assert prove_search.rival(P, "helion", 1.0).note == "did not end in time"
    assert time.monotonic() - began < 20


def test_parts_add_up(toy: ToyTemplate) -> None:
    executors: list[ToyExecutor] = []

    def opened() -> ToyExecutor:
        executors.append(ToyExecutor(seed=len(executors)))
        return executors[-1]

    def of(runs: list[Run]) -> dict[str, object]:
        return {"target": {"gpu": "x"}, "runs": {str(P): [run.to_json() for run in runs]}}

    first = prove(P, opened, ("ours",), 2, 25, lambda: 1e3, lambda _: None)
    report = json.loads(json.dumps(of([*first, Run("exhaustive", note="left out")])))
    earlier = prove_search.kept(report, {"gpu": "x"})[str(P)]
    assert earlier == first
    both = prove(
        P, opened, ("ours", "exhaustive"), 2, 25, lambda: 1e3, lambda _: None, earlier
    )  # fmt: skip
    assert [(run.contestant, run.seed) for run in both] == [
        ("ours", 0), ("ours", 1), ("exhaustive", 0),
    ]  # fmt: skip
    assert len(executors) == 3 + 2  # two searches and a race; one search and a race of all
    assert {run.candidate for run in both} == set(executors[-1].raced)
    assert set(executors[-1].raced) <= set(executors[-1].compiled)
    with pytest.raises(ValueError, match="of another"):
        prove_search.kept({**report, "target": {"gpu": "of another"}}, {"gpu": "x"})


def test_runs_that_differ_must_name_the_tie() -> None:
    other = Candidate("toy", Config(BLOCK_M=1))
    one, two = Run("ours", 0, candidate=BEST), Run("ours", 1, candidate=other)
    for run in (one, two):
        run.tflops, run.regret, run.parts = 400.0, 1.0, {"searching": 0.5, "wall": 20.0}
    printed = table({"S": [one, two]})
    assert "2 winners, 1 pairs that differ" in printed
    assert "at most 2.5% of the wall clock" in printed
    one.tied, two.tied = (str(other),), (str(BEST),)
    assert "0 pairs that differ" in table({"S": [one, two]})
