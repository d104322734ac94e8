"""Gradients of the forward, on CPU tensors for which SDPA stands in for the kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="the runtime is torch's")

from tuner import fallback, runtime  # noqa: E402

SCALE = 0.125


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def kernel(q, k, v, causal, sm_scale, strict):
        return runtime._in_layout_of(q, v, fallback.attention(q, k, v, causal, sm_scale))

    monkeypatch.setattr(runtime, "validate", lambda *arguments: SCALE)
    library = torch.library.Library("attention_tuner", "IMPL")
    library.impl("forward", kernel, "CPU")
    yield
    library._destroy()


def draw(heads_kv: int = 4, headdim_v: int = 64, wanted: str = "qkv") -> list[torch.Tensor]:
    """q, k and v in BSHD storage, each a leaf that records gradients if it is `wanted`."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 64), (heads_kv, 64), (heads_kv, headdim_v))
    return [
        torch.randn(2, 30, heads, headdim, generator=generator)
        .transpose(1, 2)
        .requires_grad_(name in wanted)
        for name, (heads, headdim) in zip("qkv", shapes)
    ]


def gradients(function, tensors) -> list[torch.Tensor]:
    out = function(*tensors)
    weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
    return list(torch.autograd.grad(out, [t for t in tensors if t.requires_grad], weight))


def sdpa(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=SCALE, enable_gqa=q.shape[1] != k.shape[1]
    )


CASES = [
    pytest.param({}, id="all"),
    pytest.param({"wanted": "v"}, id="of v alone"),
    pytest.param({"wanted": "qk"}, id="of q and k"),
    pytest.param({"heads_kv": 2}, id="grouped"),
    pytest.param({"headdim_v": 32}, id="another headdim of v"),
]


@pytest.mark.parametrize("case", CASES)
def test_they_are_sdpas(case: dict) -> None:
    tensors = draw(**case)
    found = gradients(runtime.custom_attention_forward, tensors)
    for mine, theirs in zip(found, gradients(sdpa, tensors), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_torch_compile_breaks_its_graph_for_them() -> None:
    tensors = draw()
    torch._dynamo.reset()
    function = torch.compile(runtime.custom_attention_forward, backend="eager")
    for mine, theirs in zip(gradients(function, tensors), gradients(sdpa, tensors), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_where_torch_compile_may_not_break_its_graph_they_are_refused() -> None:
    tensors = draw()
    torch._dynamo.reset()
    function = torch.compile(runtime.custom_attention_forward, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="gradients are recorded outside"):
        function(*tensors)
    with torch.no_grad():
        torch.testing.assert_close(function(*tensors), sdpa(*tensors))


def test_without_gradients_to_record_none_are() -> None:
    with torch.no_grad():
        assert not runtime.custom_attention_forward(*draw()).requires_grad


def test_a_second_derivative_is_refused_and_never_silently_zero() -> None:
    q, k, v = draw()
    out = runtime.custom_attention_forward(q, k, v)
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    assert first.requires_grad
    with pytest.raises(RuntimeError, match="differentiate twice"):
        (out.sum() + first.square().sum()).backward()
