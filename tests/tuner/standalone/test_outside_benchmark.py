"""A standalone file under a benchmark that knows nothing of us, on a card."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the file is torch's")

import tuner  # noqa: E402
from kernels.attention.reference import attention_reference  # noqa: E402
from tests.tuner.standalone.exported import load, spliced  # noqa: E402
from tuner import cuda_driver  # noqa: E402
from tuner.standalone.document import standalone_file  # noqa: E402
from tuner.store.layers import Layers  # noqa: E402

pytestmark = pytest.mark.gpu

Forward = Callable[..., Any]
HEADLINES = [(4, 32, 4096, 64), (2, 16, 8192, 128), (1, 8, 16384, 256)]


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    target = cuda_driver.target()
    assert target is not None
    return load(standalone_file(Layers.load().standing(), target), tmp_path)


def tensors(shape: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(42)
    return [torch.randn(shape, dtype=torch.float16, device="cuda") for _ in range(3)]


def milliseconds(forwards: list[Forward], shape: tuple[int, ...], causal: bool) -> list[float]:
    """Medians of 100 runs after 25, host time included. All run in turns: alone, each would run at
    the clocks that what was before left to card and host."""
    q, k, v = tensors(shape)
    times: list[list[float]] = [[] for _ in forwards]
    for _ in range(125):
        for forward, each in zip(forwards, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            forward(q, k, v, causal=causal)
            end.record()
            torch.cuda.synchronize()
            each.append(start.elapsed_time(end))
    return [statistics.median(each[25:]) for each in times]


@pytest.mark.parametrize("shape", HEADLINES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("causal", [True, False])
def test_right(shape: tuple[int, ...], causal: bool, module: ModuleType) -> None:
    q, k, v = tensors(shape)
    out = module.custom_attention_forward(q, k, v, causal=causal)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert (out - expected).abs().max().item() < 1e-2
    assert out.is_contiguous()


def test_in_a_benchmark_that_it_is_spliced_into(tmp_path: Path) -> None:
    target = cuda_driver.target()
    assert target is not None
    script = tmp_path / "benchmark.py"
    script.write_text(spliced(standalone_file(Layers.load().standing(), target)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=300,
        cwd=tmp_path, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    print(done.stdout)
    assert [tuple(row["shape"]) for row in rows] == HEADLINES
    assert all(row["correct"] for row in rows)


@pytest.mark.timing
@pytest.mark.parametrize("shape", HEADLINES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("causal", [True, False])
def test_about_as_fast_as_the_package(
    shape: tuple[int, ...], causal: bool, module: ModuleType
) -> None:
    forwards: list[Forward] = [module.custom_attention_forward, tuner.custom_attention_forward]
    of_file, ours = milliseconds(forwards, shape, causal)
    print(f"{shape} causal={causal}: {of_file:.3f} ms, the package {ours:.3f}")
    # Each launch waits for the host here: by Triton's own, which takes it 40 to 170 µs longer, the
    # shortest of these would take a quarter longer.
    assert of_file < 1.05 * ours + 0.02


def test_any_seqlen_dtype_and_stream(module: ModuleType) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        for seqlen in (1, 127, 1000):
            for dtype, bound in ((torch.float16, 1e-2), (torch.bfloat16, 3e-2)):
                q, k, v = (
                    torch.randn(2, 3, seqlen, 128, dtype=dtype, device="cuda") for _ in range(3)
                )
                out = module.custom_attention_forward(q, k, v)
                expected = torch.nn.functional.scaled_dot_product_attention(
                    q.float(), k.float(), v.float(), is_causal=True
                )
                assert (out.float() - expected).abs().max().item() < bound


def test_grouped_heads_other_lengths_scales_and_views(module: ModuleType) -> None:
    for headdim in (64, 128, 256):
        q = torch.randn(2, 700, 8, headdim, device="cuda").half().transpose(1, 2)
        k, v = (torch.randn(2, 2, 900, headdim, device="cuda").half() for _ in range(2))
        for causal in (True, False):
            for scale in (-0.1, 0.0, 0.3):
                out = module.custom_attention_forward(q, k, v, causal, scale)
                expected, _ = attention_reference(q, k, v, scale, causal)
                torch.testing.assert_close(out.float(), expected, atol=4e-3, rtol=4e-3)
                assert out.stride() == q.stride()
