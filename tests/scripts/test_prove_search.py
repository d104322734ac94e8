from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import Problem
from scripts import prove_search, rival_tuners
from scripts.prove_search import Run, prove, raced, table
from tests.tuner.search.conftest import ToyExecutor, ToyTemplate, problem
from tuner.evaluate.executor import Race
from tuner.search import candidates
from tuner.trial import Candidate, Measurement

P = problem()
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
