"""What only a card can show of the entry points: layouts, lse, gradients, graphs, devices."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch", reason="the runtime is torch's")

import tuner  # noqa: E402
from kernels.attention.reference import attention_reference  # noqa: E402
from tests.tuner.threads import in_threads  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::tuner.plans.UntunedWarning"),
    pytest.mark.filterwarnings("ignore::tuner.fallback.FallbackWarning"),
]

LENGTHS = [(1, 20), (16, 64), (300, 77), (77, 300), (256, 256), (1, 4097)]
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 4e-2, torch.float32: 1e-4}


def draw(
    seqlen_q: int,
    seqlen_k: int,
    heads: int = 8,
    heads_kv: int = 8,
    headdim: int = 64,
    headdim_v: int | None = None,
    dtype: torch.dtype = torch.float16,
    grad: bool = False,
) -> list[torch.Tensor]:
    """q, k and v, (batch, heads, seqlen, headdim), in BSHD storage."""
    torch.manual_seed(0)
    shapes = (heads, seqlen_q, headdim), (heads_kv, seqlen_k, headdim), (
        heads_kv, seqlen_k, headdim_v or headdim,
    )  # fmt: skip
    return [
        torch.randn(2, s, h, d, dtype=dtype, device="cuda").transpose(1, 2).requires_grad_(grad)
        for h, s, d in shapes
    ]


def close(found: torch.Tensor, expected: torch.Tensor, factor: float = 1) -> None:
    tolerance = factor * TOLERANCE[found.dtype]
    torch.testing.assert_close(found.float(), expected.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads_kv", [8, 2, 1])
@pytest.mark.parametrize("headdim", [64, 128, 256])
def test_flash_attn_func(lengths, causal, heads_kv, headdim) -> None:
    tensors = draw(*lengths, heads_kv=heads_kv, headdim=headdim)
    out, lse = attention_reference(*tensors, headdim**-0.5, causal, lengths[1] - lengths[0])
    given = [t.transpose(1, 2) for t in tensors]
    for _ in range(2):  # the second is repeated
        found, logs = tuner.flash_attn_func(*given, causal=causal, return_lse=True)
        close(found.transpose(1, 2), out)
        torch.testing.assert_close(logs, lse, atol=2e-3, rtol=2e-3)
        close(tuner.flash_attn_func(*given, causal=causal).transpose(1, 2), out)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("causal", [True, False])
def test_attention(lengths, causal) -> None:
    q, k, v = draw(*lengths, heads_kv=2, dtype=torch.bfloat16)
    out, _ = attention_reference(q, k, v, 0.2, causal)
    for _ in range(2):
        found = tuner.attention(q, k, v, is_causal=causal, scale=0.2, enable_gqa=True)
        close(found, out)


@pytest.mark.parametrize("scale", [0.0, -0.3, 1e-3, 10.0])
@pytest.mark.parametrize("headdim", [64, 80])
def test_lse_at_other_scales(scale, headdim) -> None:
    tensors = draw(200, 333, headdim=headdim)
    out, lse = attention_reference(*tensors, scale, True, 133)
    given = [t.transpose(1, 2) for t in tensors]
    found, logs = tuner.flash_attn_func(*given, scale, True, return_lse=True)
    close(found.transpose(1, 2), out)
    torch.testing.assert_close(logs, lse, atol=2e-3, rtol=2e-3)


def views() -> dict[str, list[torch.Tensor]]:
    torch.manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float16, device="cuda")

    packed, wide, long = randn(2, 300, 3, 8, 64), randn(2, 8, 300, 192), randn(2, 8, 900, 64)
    q, k, v = (randn(2, 8, 300, 64) for _ in range(3))
    return {
        "packed": [packed[:, :, i].transpose(1, 2) for i in range(3)],
        "packed heads": list(randn(2, 300, 24, 64).transpose(1, 2).chunk(3, dim=1)),
        "expanded batch": [q, k[:1].expand_as(k), v[:1].expand_as(v)],
        "expanded heads": [q, k[:, :1].expand_as(k), v[:, :1].expand_as(v)],
        "expanded q": [q[:, :1].expand_as(q), k, v],
        "sliced headdim": [wide[..., 64 * i : 64 * (i + 1)] for i in range(3)],
        "sliced rows": [long[:, :, i : i + 300] for i in (1, 200, 599)],
        "every other row": [t.repeat_interleave(2, 2)[:, :, ::2] for t in (q, k, v)],
        "reversed layout": [t.mT.contiguous().mT for t in (q, k, v)],
        "odd offset": [
            torch.cat([t.flatten(), t.flatten()[:1]])[1:].view(t.shape) for t in (q, k, v)
        ],
    }  # fmt: skip


IN_PLACE = ("packed", "packed heads", "expanded batch", "expanded heads", "expanded q",
            "sliced headdim", "sliced rows", "every other row")  # fmt: skip


@pytest.mark.parametrize("kind", [*IN_PLACE, "reversed layout", "odd offset"])
@pytest.mark.parametrize("causal", [True, False])
def test_views(kind: str, causal: bool) -> None:
    tensors = views()[kind]
    out, _ = attention_reference(*tensors, 1 / 8, causal)
    for _ in range(2):
        found = tuner.custom_attention_forward(*tensors, causal)
        close(found, out)
        assert found.stride() == torch.empty_like(tensors[0]).stride()
    if not causal:
        given = [t.transpose(1, 2) for t in tensors]
        for _ in range(2):
            close(tuner.flash_attn_func(*given).transpose(1, 2), out)


@pytest.mark.parametrize("kind", IN_PLACE)
def test_what_is_read_in_place_costs_no_memory_but_the_output(kind: str) -> None:
    tensors = views()[kind]
    bshd = [t.transpose(1, 2) for t in tensors]
    for call in (
        lambda: tuner.custom_attention_forward(*tensors),
        lambda: tuner.flash_attn_func(*bshd),
    ):
        call()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = call()
        assert torch.cuda.max_memory_allocated() - before <= out.numel() * 2 + 1024


def test_the_first_flash_call_with_lse_inside_capture() -> None:
    q, k, v = (t.transpose(1, 2) for t in draw(611, 733, heads=6, heads_kv=3, headdim=128))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = tuner.flash_attn_func(q, k, v, causal=True, return_lse=True)
    for tensor in (q, k, v):
        tensor.normal_()
    graph.replay()
    torch.cuda.synchronize()
    expected, logs = attention_reference(
        *(t.transpose(1, 2) for t in (q, k, v)), 128**-0.5, True, 122
    )
    close(out.transpose(1, 2), expected)
    torch.testing.assert_close(lse, logs, atol=2e-3, rtol=2e-3)


def test_a_graph_goes_on_as_it_began_and_one_begun_after_a_change_follows_it() -> None:
    from tuner import capture, plans

    q, k, v = draw(335, 335)
    tuner.custom_attention_forward(q, k, v)
    torch.cuda.synchronize()
    key = plans._key(q, k, v, True, False)
    began = plans._plans[key]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = capture.current()
        assert first not in (None, capture.UNTOLD)
        tuner.use()
        tuner.custom_attention_forward(q, k, v)
        assert key not in plans._plans
        assert plans.plan_for(q, k, v, True, False) is began
    assert capture.current() is None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert capture.current() not in (None, first)
        tuner.custom_attention_forward(q, k, v)
        assert key in plans._plans


def test_a_new_snapshot_amid_a_capture_changes_nothing_in_it() -> None:
    q, k, v = draw(333, 333)
    expected = tuner.custom_attention_forward(q, k, v)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = tuner.custom_attention_forward(q, k, v)
        tuner.use()
        second = tuner.custom_attention_forward(q, k, v)
    graph.replay()
    assert torch.equal(first, expected)
    assert torch.equal(second, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype: torch.dtype) -> None:
    q, k, v = draw(200, 200, dtype=torch.float32, grad=True)
    half = q.detach().half()
    tuner.custom_attention_forward(half, half, half)  # remembered
    with torch.autocast("cuda", dtype=dtype):
        out = tuner.attention(q, k.half(), v, is_causal=True)
        assert out.dtype == dtype
        assert tuner.custom_attention_forward(half, half, half).dtype == dtype
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    close(out, expected)
    (grad,) = torch.autograd.grad(out.float().sum(), v)
    assert grad.dtype == torch.float32
    torch._dynamo.reset()
    function = torch.compile(tuner.attention, backend="aot_eager", fullgraph=True)
    with torch.autocast("cuda", dtype=dtype):
        compiled = function(q, k.half(), v, is_causal=True)
    assert compiled.dtype == dtype
    close(compiled, expected)


def test_inference_mode() -> None:
    q, k, v = draw(200, 200)
    expected = tuner.custom_attention_forward(q, k, v)
    with torch.inference_mode():
        for _ in range(2):
            assert torch.equal(tuner.custom_attention_forward(q, k, v), expected)
    assert torch.equal(tuner.custom_attention_forward(q, k, v), expected)


def test_streams_and_threads_of_their_own() -> None:
    def work(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            q, k, v = draw(64 + index, 100 + 7 * index, grad=index % 2 == 0)
            for _ in range(20):
                out = tuner.attention(q, k, v)
                if index % 2 == 0:
                    torch.autograd.grad(out.sum(), (q, k, v))
            close(out, attention_reference(q, k, v, 1 / 8)[0])

    in_threads(work)


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two GPUs")
def test_the_other_device_forward_and_backward() -> None:
    torch.cuda.set_device(0)
    q, k, v = (t.detach().to("cuda:1").requires_grad_() for t in draw(300, 300))
    out = tuner.attention(q, k, v, is_causal=True)
    found = torch.autograd.grad(out.sum(), (q, k, v))
    assert {t.device for t in (out, *found)} == {q.device}
    close(out, attention_reference(q, k, v, 1 / 8, True)[0])
    with torch.cuda.device(1), torch.no_grad():
        for _ in range(2):
            close(tuner.attention(q, k, v, is_causal=True), out.detach())


def test_the_choice_of_a_pinned_config() -> None:
    from kernels.attention import registry
    from kernels.attention.config import Config
    from kernels.attention.problem import Problem

    q, k, v = draw(300, 300, headdim=128)
    expected = tuner.custom_attention_forward(q, k, v)
    template = registry.get("portable")
    before = tuner.lookup(128, 300)
    for tma in (False, True):
        config = Config(template.default(Problem.on_grid(128, 300, True), 90), tma=tma)
        with tuner.pin(config, "portable"):
            assert tuner.lookup(128, 300).candidate.config == config
            close(tuner.custom_attention_forward(q, k, v), expected)
    assert tuner.lookup(128, 300) == before


_FORK = """
import os, sys, warnings
import torch, tuner
tuner.custom_attention_forward, tuner.flash_attn_func
assert not torch.cuda.is_initialized()
child = os.fork()
q = torch.randn(1, 2, 100, 64, dtype=torch.float16, device="cuda")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    out = tuner.custom_attention_forward(q, q, q)
theirs = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
assert (out - theirs).abs().max() < 1e-2
if child == 0:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_after_the_import() -> None:
    done = subprocess.run([sys.executable, "-c", _FORK], env=os.environ, timeout=300)
    assert done.returncode == 0


_CAPTURE = """
import sys, warnings
import torch, tuner
warnings.simplefilter("ignore")
q, k, v = torch.randn(3, 1, 2, 100, 128, dtype=torch.float16, device="cuda")
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = tuner.custom_attention_forward(q, k, v)
graph.replay()
theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
assert (out - theirs).abs().max() < 1e-2
"""


def test_the_very_first_call_of_a_process_can_be_captured() -> None:
    done = subprocess.run([sys.executable, "-c", _CAPTURE], env=os.environ, timeout=300)
    assert done.returncode == 0


@pytest.mark.timing
def test_the_hosts_time_is_within_its_budget() -> None:
    import importlib.util
    from pathlib import Path

    path = Path(__file__).parents[2] / "scripts" / "measure_host_time.py"
    spec = importlib.util.spec_from_file_location("measure_host_time", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script
    spec.loader.exec_module(script)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figures = [figure for figure in script.measure() if figure.name in script._ours()]
    assert len(figures) == 4 * 3 * 2  # entry points, headdims, seen and new addresses
    budget_us = {"seen": 20, "new": 30}
    # The least: whatever else the host does only ever adds to it.
    late = [figure for figure in figures if figure.least_us > budget_us[figure.addresses]]
    assert not late, figures
