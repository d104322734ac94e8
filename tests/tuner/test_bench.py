"""The benchmark: on the CPU with SDPA as the function under test, and on a GPU for real."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from kernels.attention.problem import HEADLINE, Problem
from tuner import bench as bench_module
from tuner.bench import bench
from tuner.evaluate.sensor import Sensor
from tuner.evaluate.stopwatch import Stopwatch
from tuner.evaluate.timing import cycle
from tuner.target import Hardware, Target

torch = pytest.importorskip("torch")

SMALL = Problem(headdim=64, seqlen=64, causal=True, dtype="fp16", batch=1, heads=2)
TARGET = Target(Hardware(90, 132, 79, 700), "Fake H100", "3.6.0", "2.11.0", "580.0")


class WallStopwatch(Stopwatch):
    """Times on the CPU."""

    sensor = Sensor(None)

    def each(self, launch: Callable[[], object], launches: int) -> list[float]:
        times = []
        for _ in range(launches):
            start = time.perf_counter()
            launch()
            times.append((time.perf_counter() - start) * 1e3)
        return times

    def __call__(self, launch: Callable[[], object], launches: int) -> float:
        return sum(self.each(launch, launches)) / launches


def sdpa(q: Any, k: Any, v: Any, causal: bool) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def test_a_row_has_both_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "RUNS_PER_ROUND", 2)
    report = bench(sdpa, (SMALL,), 3, "cpu", WallStopwatch(), TARGET)
    (row,) = report.rows
    assert row.correct
    assert row.max_diff == 0
    assert row.tflops == pytest.approx(SMALL.flops / row.latency_ms * 1e-9)
    assert row.speedup_vs_sdpa == pytest.approx(row.sdpa_ms / row.latency_ms)
    assert len(row.rounds["ours"].samples_ms) == 4  # three, in whole cycles
    assert set(row.rounds) | set(row.absent) == {"ours", "cudnn", "fa2"}
    assert "cudnn" in row.absent  # there is none on a CPU
    document = json.loads(json.dumps(report.to_json()))
    assert document["rows"][0]["problem"]["headdim"] == 64
    assert document["target"]["gpu_name"] == "Fake H100"


def test_what_is_wrong_is_not_correct() -> None:
    def off(q: Any, k: Any, v: Any, causal: bool) -> Any:
        return sdpa(q, k, v, causal) + 0.02

    (row,) = bench(off, (SMALL,), 1, "cpu", WallStopwatch(), TARGET).rows
    assert not row.correct
    assert row.max_diff == pytest.approx(0.02, rel=0.2)


def test_nan_is_not_correct() -> None:
    (row,) = bench(
        lambda q, k, v, causal: q * float("nan"), (SMALL,), 1, "cpu", WallStopwatch(), TARGET
    ).rows
    assert not row.correct


def test_the_headline_shapes() -> None:
    assert [str(problem) for problem in HEADLINE] == [
        "D64 S4096 causal fp16 B4 H32",
        "D128 S8192 causal fp16 B2 H16",
        "D256 S16384 causal fp16 B1 H8",
    ]


@pytest.mark.gpu
@pytest.mark.timing
def test_on_a_gpu() -> None:
    report = bench(problems=HEADLINE[:1], rounds=3)
    (row,) = report.rows
    assert row.correct
    assert {"ours", "cudnn", "fa2"} <= row.rounds.keys(), row.absent
    assert row.rounds["cudnn"].tflops > 50
    assert row.latency_ms == pytest.approx(row.rounds["ours"].median_ms, rel=0.2)


def test_on_request_every_lane_runs_alone_too_and_more_peers_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("SUSTAINED_WARM_UP_MS", 1.0), ("SUSTAINED_MS", 2.0)):
        monkeypatch.setattr(bench_module, name, value)
    monkeypatch.setattr(bench_module, "RUNS_PER_ROUND", 2)

    def further(inputs: Any) -> Any:
        return {"mine": lambda: sdpa(inputs.q, inputs.k, inputs.v, inputs.causal)}

    (row,) = bench(
        sdpa, (SMALL,), 2, "cpu", WallStopwatch(), TARGET, alone=True, further=further
    ).rows
    assert {"ours", "mine"} <= set(row.rounds)
    assert all((lap.sustained_tflops or 0) > 0 for lap in row.rounds.values())
    turns = cycle(len(row.rounds))
    for lap in row.rounds.values():
        assert len(lap.short_ms) == turns
        assert lap.short_tflops == pytest.approx(SMALL.tflops(median(lap.short_ms)))
    (row,) = bench(sdpa, (SMALL,), 2, "cpu", WallStopwatch(), TARGET).rows
    lap = row.rounds["ours"]
    assert (lap.short_tflops, lap.short_ms, lap.sustained_tflops) == (None, (), None)
