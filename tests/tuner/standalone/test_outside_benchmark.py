"""A standalone file under a benchmark that knows nothing of us, on a card."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the file is torch's")

from tests.tuner.standalone.exported import load  # noqa: E402
from tuner import cuda_driver  # noqa: E402
from tuner.standalone.portable import standalone_file  # noqa: E402
from tuner.store.layers import Layers  # noqa: E402

pytestmark = pytest.mark.gpu

HEADLINES = [(4, 32, 4096, 64), (2, 16, 8192, 128), (1, 8, 16384, 256)]


@pytest.mark.parametrize("shape", HEADLINES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("causal", [True, False])
def test_right_and_timed(shape: tuple[int, ...], causal: bool, tmp_path: Path) -> None:
    target = cuda_driver.target()
    assert target is not None
    module = load(standalone_file(Layers.load().standing(), target), tmp_path)
    torch.manual_seed(42)
    q, k, v = (torch.randn(shape, dtype=torch.float16, device="cuda") for _ in range(3))
    out = module.custom_attention_forward(q, k, v, causal=causal)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert (out - expected).abs().max().item() < 1e-2
    assert out.is_contiguous()
    for _ in range(25):
        module.custom_attention_forward(q, k, v, causal=causal)
    torch.cuda.synchronize()
    times = []
    for _ in range(100):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        module.custom_attention_forward(q, k, v, causal=causal)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    median = statistics.median(times)
    batch, heads, seqlen, headdim = shape
    flops = 4 * batch * heads * seqlen**2 * headdim / (2 if causal else 1)
    print(f"{shape} causal={causal}: {median:.3f} ms, {flops / median * 1e-9:.0f} TFLOP/s")
    assert flops / median * 1e-9 > 50  # the right kernel, not a crawl


def test_any_seqlen_dtype_and_stream(tmp_path: Path) -> None:
    target = cuda_driver.target()
    assert target is not None
    module = load(standalone_file(Layers.load().standing(), target), tmp_path)
    for seqlen in (1, 127, 1000):
        for dtype, bound in ((torch.float16, 1e-2), (torch.bfloat16, 3e-2)):
            q, k, v = (torch.randn(2, 3, seqlen, 128, dtype=dtype, device="cuda") for _ in range(3))
            out = module.custom_attention_forward(q, k, v)
            expected = torch.nn.functional.scaled_dot_product_attention(
                q.float(), k.float(), v.float(), is_causal=True
            )
            assert (out.float() - expected).abs().max().item() < bound
