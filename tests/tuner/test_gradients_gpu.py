"""Gradients on a real GPU, against the definition in fp64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="the runtime is torch's")

import tuner  # noqa: E402
from tests.tuner.test_entry_points_gpu import close, draw  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::tuner.plans.UntunedWarning"),
    pytest.mark.filterwarnings("ignore::tuner.fallback.FallbackWarning"),
]

CASES = [
    pytest.param({}, id="plain"),
    pytest.param({"heads_kv": 2}, id="grouped"),
    pytest.param({"headdim": 128}, id="128"),
    pytest.param({"headdim": 256}, id="256"),
    pytest.param({"headdim": 80}, id="80"),
    pytest.param({"headdim": 96, "heads_kv": 1}, id="96"),
    pytest.param({"headdim_v": 32}, id="another headdim of v"),
    pytest.param({"dtype": torch.bfloat16}, id="bf16"),
    pytest.param({"dtype": torch.float32}, id="fp32"),
]


def gradients(function, tensors) -> list[torch.Tensor]:
    out = function(*tensors)
    # The same numbers whatever the layout and dtype of `out`, which `randn_like` would heed; every
    # dtype has these.
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    return list(torch.autograd.grad(out, tensors, weight.to(out)))


def exact(causal: bool, bottom_right: bool):
    def function(q, k, v):
        group = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(group, 1) for t in (k, v))
        scores = q @ k.mT / math.sqrt(q.shape[3])
        if causal:
            offset = k.shape[2] - q.shape[2] if bottom_right else 0
            hidden = torch.ones_like(scores, dtype=torch.bool).triu(offset + 1)
            scores = scores.masked_fill(hidden, -1e30)
            return scores.softmax(-1).masked_fill(hidden, 0.0) @ v
        return scores.softmax(-1) @ v

    return function


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("lengths", [(130, 130), (64, 200), (200, 64)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("entry", ["attention", "flash"])
def test_gradients(case, lengths, causal, compiled, entry) -> None:
    tensors = draw(*lengths, grad=True, **case)

    def flash(q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return tuner.flash_attn_func(q, k, v, causal=causal).transpose(1, 2)

    def attention(q, k, v):
        return tuner.attention(q, k, v, is_causal=causal, enable_gqa=True)

    function = flash if entry == "flash" else attention
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, backend="aot_eager", fullgraph=True)
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    expected = gradients(exact(causal, entry == "flash"), doubles)
    for mine, theirs, tensor in zip(gradients(function, tensors), expected, tensors):
        assert mine.dtype == tensor.dtype
        close(mine, theirs, factor=3)


@pytest.mark.parametrize("headdim", [64, 80])
def test_a_misaligned_gradient_is_read_right(headdim: int) -> None:
    tensors = draw(130, 130, headdim=headdim, grad=True)
    out = tuner.attention(*tensors, is_causal=True)
    odd = torch.randn(out.numel() + 1, dtype=out.dtype, device="cuda")[1:].view(out.shape)
    found = torch.autograd.grad(out, tensors, odd, retain_graph=True)
    expected = torch.autograd.grad(out, tensors, odd.clone())
    for mine, theirs in zip(found, expected):
        close(mine, theirs)


@pytest.fixture
def tf32_allowed() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("heads_kv", [8, 2])
@pytest.mark.parametrize("headdims", [(64, 64), (80, 80), (30, 30), (64, 36)])
@pytest.mark.parametrize("lengths", [(130, 130), (64, 200)])
@pytest.mark.usefixtures("tf32_allowed")
def test_gradients_of_fp32_keep_their_precision_where_tf32_is_allowed(
    heads_kv: int, headdims: tuple[int, int], lengths: tuple[int, int]
) -> None:
    square = torch.randn(256, 256, device="cuda")
    rounded = ((square @ square).double() - square.double() @ square.double()).abs().max()
    assert rounded > 1e-3  # plain products are TF32's
    headdim, headdim_v = headdims
    tensors = draw(
        *lengths, heads_kv=heads_kv, headdim=headdim, headdim_v=headdim_v, dtype=torch.float32,
        grad=True,
    )  # fmt: skip

    def flash(q, k, v):
        return tuner.flash_attn_func(*(t.transpose(1, 2) for t in (q, k, v)), causal=True)

    doubles = [t.detach().double().requires_grad_() for t in tensors]
    expected = gradients(exact(True, True), doubles)
    found = gradients(lambda *given: flash(*given).transpose(1, 2), tensors)
    for mine, theirs in zip(found, expected):
        torch.testing.assert_close(mine.double(), theirs, atol=1e-4, rtol=1e-4)


def test_the_backward_is_atens_where_it_fits() -> None:
    from torch.profiler import ProfilerActivity, profile

    for headdim, forwards in ((64, 0), (80, 1)):
        q, k, v = draw(256, 256, headdim=headdim, grad=True)
        out = tuner.attention(q, k, v, is_causal=True)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            out.sum().backward()
        names = [event.key for event in seen.key_averages()]
        assert any("flash_attention_backward" in name for name in names) or headdim == 80
        assert ("aten::scaled_dot_product_attention" in names) == bool(forwards)


def test_gradients_through_lse() -> None:
    q, k, v = draw(100, 130, heads_kv=2, grad=True)
    bshd = [t.transpose(1, 2) for t in (q, k, v)]
    out, lse = tuner.flash_attn_func(*bshd, causal=True, return_lse=True)
    found = torch.autograd.grad(out.float().sum() + lse.square().sum(), (q, k, v))
    doubles = [t.detach().double().requires_grad_() for t in (q, k, v)]
    keys = doubles[1].repeat_interleave(4, 1)
    scores = doubles[0] @ keys.mT / 8
    logs = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(31), -1e30).logsumexp(
        -1
    )
    total = exact(True, True)(*doubles).sum() + logs.square().sum()
    for mine, theirs in zip(found, torch.autograd.grad(total, doubles)):
        close(mine, theirs, factor=5)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_training_with_a_free_seqlen(mode: str) -> None:
    torch._dynamo.reset()
    function = torch.compile(
        lambda q, k, v: tuner.attention(q, k, v, is_causal=True) * 2, fullgraph=True, dynamic=True,
        mode=mode,
    )  # fmt: skip
    for seqlen in (128, 200, 1000):
        for _ in range(3):
            tensors = draw(seqlen, seqlen, grad=True)
            found = gradients(function, tensors)
        expected = gradients(lambda q, k, v: tuner.attention(q, k, v, is_causal=True) * 2, tensors)
        for mine, theirs in zip(found, expected):
            close(mine, theirs)


def test_a_whole_training_step_in_a_cuda_graph() -> None:
    q, k, v = draw(512, 512, headdim=128, grad=True)
    weight = torch.randn_like(q)

    def step():
        out = tuner.custom_attention_forward(q, k, v)
        return out, torch.autograd.grad(out, (q, k, v), weight)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, found = step()
    with torch.no_grad():
        for tensor in (q, k, v):
            tensor.normal_()
    graph.replay()
    torch.cuda.synchronize()
    expected_out, expected = step()
    assert torch.equal(out, expected_out)
    for mine, theirs in zip(found, expected):
        close(mine, theirs)
