from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import Problem
from scripts import rival_tuners
from tuner.evaluate.inputs import own_shape
from tuner.evaluate.wire import candidate_from_json, candidate_to_json
from tuner.trial import Candidate

SMALL = Problem(64, 256, True, "fp16", 1, 2)


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
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(rival_tuners, "own_shape", lambda of, _: own_shape(of, "cpu"))
    return kernels


@pytest.fixture
def of_few(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Two configs of each kind, all that the portable template has, in the order of their trial."""
    template = registry.get("portable")
    every = list(template.feasible(SMALL.specialization, 90))
    few = [c for tma in (True, False) for c in [c for c in every if c["tma"] is tma][:2]]
    monkeypatch.setattr(type(template), "feasible", lambda *_: iter(few))
    monkeypatch.setattr(rival_tuners.random, "Random", lambda seed: SimpleNamespace(shuffle=id))
    return few


@pytest.fixture
def do_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float | Exception]]:
    """What timing the configs comes to, one after the other; each takes a second."""
    import triton

    now = 0.0
    results: list[float | Exception] = []

    def bench(call: Callable[[], object], quantiles: Sequence[float]) -> list[float]:
        nonlocal now
        now += 1.0
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        call()
        return [result] * len(quantiles)

    monkeypatch.setattr(triton.testing, "do_bench", bench)
    monkeypatch.setattr(rival_tuners, "time", SimpleNamespace(monotonic=lambda: now))
    return results


def test_autotune_compiles_every_config_and_names_the_fastest(
    compiled: list[object], of_few: list[Config], do_bench: list[float | Exception]
) -> None:
    do_bench += [4.0, 3.0, 2.0, 5.0]
    said: list[dict[str, Any]] = []
    reply = rival_tuners.autotune(SMALL, 1e3, said.append)
    assert len(compiled) == 4 + 2  # each winner is run once more
    assert (reply["evaluations"], reply["ms"], reply["note"]) == (4, 2.0, "")
    assert candidate_from_json(reply["candidate"]) == Candidate("portable", of_few[2])
    # Whoever ends it has the best so far.
    assert [line["ms"] for line in said] == [4.0, 3.0, 2.0, 2.0]
    assert said[1]["note"] == (
        "tried 2 of 4 configs, in random order; at 1.0 s per config all would take 4 s "
        "(an extrapolation)"
    )


def test_autotune_goes_on_after_a_failure_and_gives_each_kind_its_share(
    compiled: list[object], of_few: list[Config], do_bench: list[float | Exception]
) -> None:
    do_bench += [RuntimeError("PassManager::run failed"), 3.0]
    reply = rival_tuners.autotune(SMALL, 1.9)  # of each kind one begins in time
    assert reply["note"] == (
        "tried 2 of 4 configs, in random order; at 1.0 s per config all would take 4 s "
        "(an extrapolation); 1 failed"
    )
    assert (reply["evaluations"], reply["ms"]) == (2, 3.0)
    assert candidate_from_json(reply["candidate"]) == Candidate("portable", of_few[2])


def test_autotune_keeps_its_timings_when_the_context_breaks(
    compiled: list[object],
    of_few: list[Config],
    do_bench: list[float | Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch
    from triton.runtime.jit import JITFunction

    error = RuntimeError("an illegal memory access was encountered")
    do_bench += [4.0, error]
    run = JITFunction.run

    def fail(*_: object, **__: object) -> None:
        raise error

    def launch(*arguments: object, **more: object) -> None:
        if len(do_bench) == 0:
            fail()
        run(*arguments, **more)

    def synchronize() -> None:
        monkeypatch.setattr(JITFunction, "run", fail)
        fail()

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    reply = rival_tuners.autotune(SMALL, 1e3)
    assert (reply["evaluations"], reply["ms"]) == (2, 4.0)
    assert candidate_from_json(reply["candidate"]) == Candidate("portable", of_few[0])
    assert "1 failed; the CUDA context broke: RuntimeError: an illegal" in reply["note"]
    assert "its last launch failed" in reply["note"]


def test_autotune_tries_a_fair_sample(
    compiled: list[object], do_bench: list[float | Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[dict[str, Any]] = []
    monkeypatch.setattr(rival_tuners, "constants", lambda c: tried.append(c) or {"BLOCK_M": 64})
    do_bench += [RuntimeError("not here")] * 2
    rival_tuners.autotune(SMALL, 1.9)
    assert len({(c["BLOCK_M"], c["BLOCK_N"]) for c in tried[:12]}) > 3
    assert sorted(map(str, tried)) == sorted(
        map(str, registry.get("portable").feasible(SMALL.specialization, 90))
    )


# Helion as far as the script needs it, on a machine without a card, and torch's tensors there.
HELION = """
import os, sys
class NoConfigFound(Exception): pass
class TritonUnrecoverableRuntimeError(Exception): pass
class exc:
    NoConfigFound, TritonUnrecoverableRuntimeError = NoConfigFound, TritonUnrecoverableRuntimeError
"""
METRICS = """
hooks = []
register_post_autotune_hook = hooks.append
"""
KERNEL = """
import os, sys
from types import SimpleNamespace
import helion
from helion.autotuner.metrics import hooks
from torch.nn.functional import scaled_dot_product_attention as sdpa
tuned = []
def tune(q, k, v, causal):
    if not tuned:
        print("tuning", {n: w for n, w in os.environ.items() if n.startswith("HELION")},
              file=sys.stderr)
        if os.environ.get("HELION_AUTOTUNE_PRECOMPILE") != "spawn" and "FAIL" in os.environ:
            raise helion.exc.NoConfigFound("no config")
        for hook in hooks:
            hook(SimpleNamespace(num_configs_tested=5, best_perf_ms=3.0))
        tuned.append(True)
    return sdpa(q, k, v, is_causal=causal) + float(os.environ.get("OFF", "0"))
def attention(q, k, v): return tune(q, k, v, False)
def causal_attention(q, k, v): return tune(q, k, v, True)
"""
SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import scripts.rival_tuners as script
import helion_attention
from tuner.evaluate.inputs import own_shape
script.__file__ = __file__
script.own_shape = lambda of, _: own_shape(of, "cpu")
script.CudaStopwatch = lambda sensor: lambda launch, launches: float(bool(launch())) + 1.0
script.Sensor = lambda _: None
script.launch_of = lambda of, candidate, inputs: lambda: False
of = script.Problem(**script.json.loads(sys.argv[2]))
beside = [script.candidate_from_json(script.json.loads(word)) for word in sys.argv[4:]]
script.partial = lambda kernel, *tensors: lambda: kernel(*tensors) if not helion_attention.tuned \
    else True
script.say(script.helion(of, float(sys.argv[3]), *beside))
"""


@pytest.fixture
def with_helion(tmp_path: Path) -> Callable[..., tuple[list[dict[str, Any]], str]]:
    (tmp_path / "helion" / "autotuner").mkdir(parents=True)
    (tmp_path / "helion" / "__init__.py").write_text(HELION)
    (tmp_path / "helion" / "autotuner" / "__init__.py").touch()
    (tmp_path / "helion" / "autotuner" / "metrics.py").write_text(METRICS)
    (tmp_path / "helion_attention.py").write_text(KERNEL)
    metadata = tmp_path / "helion-9.9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Name: helion\nVersion: 9.9\n")
    (tmp_path / "run.py").write_text(SCRIPT.format(folder=str(tmp_path)))
    bare = {name: value for name, value in os.environ.items() if "HELION" not in name}

    def run(
        limit_s: float, problem: Problem = SMALL, beside: Candidate | None = None, **more: str
    ) -> tuple[list[dict[str, Any]], str]:
        words = [sys.executable, str(tmp_path / "run.py"), "helion", json.dumps(asdict(problem))]
        words += [str(limit_s), *([json.dumps(candidate_to_json(beside))] if beside else [])]
        ran = subprocess.run(
            words, env={**bare, "PYTHONPATH": str(Path(rival_tuners.__file__).parents[1]), **more},
            capture_output=True, text=True,
        )  # fmt: skip
        return [json.loads(line) for line in ran.stdout.splitlines()], ran.stderr

    return run


@pytest.mark.parametrize("causal", [True, False])
def test_helion_says_what_it_tried_and_ends_before_its_time(
    with_helion: Callable[..., Any], causal: bool
) -> None:
    said, complained = with_helion(200, Problem(64, 256, causal, "fp16", 1, 2))
    assert [line["evaluations"] for line in said] == [5, 5]
    assert said[0]["ms"] == 3.0
    assert "not timed" in said[0]["note"]
    assert said[1]["ms"] == 2.0
    assert said[1]["note"] == "Helion 9.9 at its quick effort; timed by itself"
    for setting in ("BUDGET_SECONDS': '110'", "COMPILE_TIMEOUT': '20'", "PROGRESS_BAR': '0'"):
        assert f"HELION_AUTOTUNE_{setting}" in complained


def test_helion_is_timed_beside_one_of_ours(with_helion: Callable[..., Any]) -> None:
    ours = Candidate("portable", registry.get("portable").default(SMALL, 90))
    said, _ = with_helion(200, beside=ours)
    assert said[-1]["times"] == pytest.approx(2.0)
    assert candidate_from_json(said[-1]["beside"]) == ours
    assert "in rounds with one" in said[-1]["note"]


def test_helion_starts_anew_once_with_spawned_compilers(with_helion: Callable[..., Any]) -> None:
    said, complained = with_helion(200, FAIL="1")
    assert said[-1]["ms"] == 2.0
    assert complained.count("tuning") == 2
    assert complained.count("once more") == 1
    said, complained = with_helion(100, FAIL="1")  # there is no time for that
    assert said == []
    assert complained.count("tuning") == 1


def test_a_wrong_kernel_of_helions_has_no_time(with_helion: Callable[..., Any]) -> None:
    said, _ = with_helion(200, OFF="0.01")
    assert said[-1] == {"evaluations": 5, "note": "what it tuned is wrong"}
