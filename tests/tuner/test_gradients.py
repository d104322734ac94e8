"""Gradients of the entry points, on CPU tensors that a stand-in serves by the definition."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the runtime is torch's")

from torch.autograd import forward_ad  # noqa: E402

import tuner  # noqa: E402
from kernels.attention.layout import aligned  # noqa: E402
from tests.tuner.stand_in import StandIn  # noqa: E402

SCALE = 0.125
NAMES = ("forward", "backward")

pytestmark = [
    pytest.mark.usefixtures("stand_in"),
    pytest.mark.filterwarnings("ignore::tuner.plans.UntunedWarning"),
    pytest.mark.filterwarnings("ignore::tuner.fallback.FallbackWarning"),
]


def draw(
    heads_kv: int = 4,
    headdim_v: int = 64,
    wanted: str = "qkv",
    seqlen_k: int = 30,
    dtype: torch.dtype = torch.bfloat16,
) -> list[torch.Tensor]:
    """q, k and v in BSHD storage, each a leaf that records gradients if it is `wanted`."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 30, 64), (heads_kv, seqlen_k, 64), (heads_kv, seqlen_k, headdim_v))
    return [
        torch.randn(2, seqlen, heads, headdim, generator=generator)
        .to(dtype)
        .transpose(1, 2)
        .requires_grad_(name in wanted)
        for name, (heads, seqlen, headdim) in zip("qkv", shapes)
    ]


def gradients(function, tensors) -> list[torch.Tensor]:
    out = function(*tensors)
    weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
    return list(torch.autograd.grad(out, [t for t in tensors if t.requires_grad], weight))


def ours(q, k, v):
    return tuner.custom_attention_forward(q, k, v, True, SCALE)


def sdpa(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=SCALE, enable_gqa=q.shape[1] != k.shape[1]
    )


def equal(found, expected, **tolerance) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, **tolerance)


def tolerance(case: dict) -> dict[str, float]:
    # Keys that no row sees are left out, and what is left is added up in another order.
    return {"atol": 1e-3, "rtol": 1.6e-2} if case.get("seqlen_k", 0) > 30 else {}


CASES = [
    pytest.param({}, id="all"),
    pytest.param({"wanted": "v"}, id="of v alone"),
    pytest.param({"wanted": "qk"}, id="of q and k"),
    pytest.param({"heads_kv": 2}, id="grouped"),
    pytest.param({"headdim_v": 32}, id="another headdim of v"),
    pytest.param({"dtype": torch.float32}, id="fp32"),
    pytest.param({"seqlen_k": 50}, id="more keys"),
    pytest.param({"seqlen_k": 11}, id="fewer keys"),
]


@pytest.mark.parametrize("case", CASES)
def test_they_are_sdpas(case: dict) -> None:
    tensors = draw(**case)
    equal(gradients(ours, tensors), gradients(sdpa, tensors), **tolerance(case))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_they_are_sdpas_in_one_graph_of_torch_compile(case: dict, dynamic: bool) -> None:
    tensors = draw(**case)
    torch._dynamo.reset()
    function = torch.compile(ours, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    equal(gradients(function, tensors), gradients(sdpa, tensors), **tolerance(case))
    with torch.no_grad():
        assert not function(*tensors).requires_grad


def definition(q, k, v, causal, offset):
    """(out, lse) by plain differentiable operations in fp64."""
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = SCALE * (q @ k.mT)
    if causal:
        row = torch.arange(q.shape[2])[:, None] + offset
        hidden = torch.arange(k.shape[2]) > row
        scores = scores.masked_fill(hidden, -1e30)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp()
    if causal:
        weights = weights.masked_fill(hidden, 0.0)
    return weights @ v, lse


@pytest.mark.parametrize("lengths", [30, 50, 11])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("parts", ["out", "lse", "both"])
def test_flash_attention_is_differentiable_in_out_and_lse(lengths, causal, compiled, parts) -> None:
    tensors = draw(heads_kv=2, seqlen_k=lengths, dtype=torch.float32)
    function = tuner.flash_attn_func
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, backend="aot_eager", fullgraph=True)

    def loss(out, lse):
        seen = lse.detach() > -1e29  # rows that see no key
        total = 0
        if parts != "lse":
            total = total + (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum()
        if parts != "out":
            total = total + lse.where(seen, 0.0).square().sum()
        return total

    out, lse = function(*(t.transpose(1, 2) for t in tensors), SCALE, causal, True)
    found = torch.autograd.grad(
        loss(out.transpose(1, 2), lse), tensors, allow_unused=True, materialize_grads=True
    )
    exact = [t.detach().double().requires_grad_() for t in tensors]
    expected = torch.autograd.grad(
        loss(*definition(*exact, causal, lengths - 30)),
        exact,
        allow_unused=True,
        materialize_grads=True,
    )
    equal(found, (t.float() for t in expected), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_the_gradient_of_a_row_without_keys_has_no_influence(poison: float) -> None:
    tensors = draw(seqlen_k=11)
    _, lse = tuner.flash_attn_func(*(t.transpose(1, 2) for t in tensors), SCALE, True, True)
    blind = lse.detach().isinf()
    assert 0 < blind.sum() < blind.numel()
    weight = torch.ones_like(lse)
    found, expected = (
        torch.autograd.grad(lse, tensors[:2], weight.masked_fill(blind, value), retain_graph=True)
        for value in (poison, 0.0)
    )
    equal(found, expected, atol=0, rtol=0)
    assert all(grad.isfinite().all() for grad in found)


def test_the_backward_gets_only_what_it_reads_right(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    real = torch.autograd.grad

    def watch(outputs, inputs, grad_outputs, **more):
        given.append(grad_outputs)
        return real(outputs, inputs, grad_outputs, **more)

    tensors = draw()
    out = ours(*tensors)
    odd = torch.linspace(-1, 1, out.numel() + 1).to(out)[1:].view(out.shape)
    assert not aligned(odd)
    expected = real(out, tensors, odd.clone(), retain_graph=True)
    monkeypatch.setattr(torch.autograd, "grad", watch)
    equal(real(out, tensors, odd), expected)
    assert given
    assert all(map(aligned, given))


def test_without_gradients_to_record_none_are() -> None:
    with torch.no_grad():
        assert not ours(*draw()).requires_grad


def test_nothing_is_detached_whichever_way_it_is_called() -> None:
    tensors = draw()
    bshd = [t.transpose(1, 2) for t in tensors]
    with torch.no_grad():  # calls like these are now remembered
        ours(*tensors)
        tuner.attention(*tensors)
        tuner.flash_attn_func(*bshd, return_lse=True)
    assert ours(*tensors).requires_grad
    assert tuner.attention(*tensors).requires_grad
    assert all(t.requires_grad for t in tuner.flash_attn_func(*bshd, return_lse=True))
    direct, _ = torch.ops.attention_tuner.forward.default(*tensors, True, 0, SCALE, False, False)
    found = torch.autograd.grad(direct.float().sum(), tensors)
    equal(found, torch.autograd.grad(sdpa(*tensors).float().sum(), tensors))


def test_a_second_derivative_is_refused_and_never_silently_zero() -> None:
    q, k, v = draw()
    out = ours(q, k, v)
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    assert first.requires_grad
    with pytest.raises(RuntimeError, match="differentiate twice"):
        (out.sum() + first.square().sum()).backward()


ENTRIES = {
    "custom_attention_forward": ("q", "k", "v"),
    "attention": ("query", "key", "value"),
    "flash_attn_func": ("q", "k", "v"),
}


@pytest.mark.parametrize("transform", ["grad", "vjp", "grad of vmap", "vmap of grad"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_transforms_of_torch_func_are_refused_in_one_sentence(entry: str, transform: str) -> None:
    q, k, v = (t.detach() for t in draw())
    name = ENTRIES[entry][1]

    def loss(x: torch.Tensor) -> torch.Tensor:
        return getattr(tuner, entry)(q, x, v).float().sum()

    def apply() -> object:
        if transform == "vjp":
            return torch.func.vjp(loss, k)
        if transform == "grad":
            return torch.func.grad(loss)(k)
        ks = k.expand(3, *k.shape)
        if transform == "vmap of grad":
            return torch.func.vmap(torch.func.grad(loss))(ks)
        return torch.func.grad(lambda x: torch.func.vmap(loss)(x).sum())(ks)

    with pytest.raises(
        NotImplementedError,
        match=f"^{name} is differentiated by torch.func, but must be by torch.autograd$",
    ):
        apply()


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_torch_func_does_not_differentiate_by_us_is_served(entry: str) -> None:
    q, k, v = (t.detach() for t in draw())
    forward = getattr(tuner, entry)
    expected = forward(q, k, v).float().sum()

    def of_others(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return w * forward(x, k, v).float().sum()

    assert torch.func.grad(of_others)(torch.ones(()), q) == pytest.approx(expected.item())
    held = torch.func.grad(lambda x: x.sum() + forward(x.detach(), k, v).float().sum())(q)
    assert (held == 1).all()
    with pytest.raises(NotImplementedError, match=f"^{ENTRIES[entry][2]} is differentiated by"):
        torch.func.grad(lambda x, y: forward(y, k, x).float().sum())(v, q)


@pytest.mark.parametrize("remembered", [False, True])
@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_tangent_is_refused_and_never_silently_lost(
    stand_in: StandIn, entry: str, which: int, remembered: bool
) -> None:
    tensors = [t.detach() for t in draw()]
    function = getattr(tuner, entry)
    if remembered:
        function(*tensors)
    refused = pytest.raises(
        NotImplementedError, match=f"^{ENTRIES[entry][which]} has a tangent, but attention has no"
    )
    with forward_ad.dual_level():
        function(*tensors)
        dual = [*tensors]
        dual[which] = forward_ad.make_dual(dual[which], torch.ones_like(dual[which]))
        with refused:
            function(*dual)
        with pytest.raises(NotImplementedError, match="has a tangent"):
            torch.ops.attention_tuner.forward.default(*dual, True, 0, SCALE, False, False)
    with refused:
        torch.func.jvp(
            lambda x: function(*tensors[:which], x, *tensors[which + 1 :]),
            (tensors[which],), (tensors[which],),
        )  # fmt: skip
    assert "repeated" not in stand_in.launched
    function(*tensors)
    assert stand_in.launched[-1] == "repeated"


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_tangent_is_refused_by_a_compiled_graph_too(fullgraph: bool) -> None:
    q, k, v = (t.detach() for t in draw())
    torch._dynamo.reset()
    function = torch.compile(ours, backend="aot_eager", fullgraph=fullgraph)
    expected = function(q, k, v)
    with forward_ad.dual_level():
        assert torch.equal(function(q, k, v), expected)
        with pytest.raises(NotImplementedError, match="q has a tangent, but attention has no"):
            function(forward_ad.make_dual(q, q), k, v)


def test_the_backward_also_runs_within_a_dispatch_mode() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    tensors = draw()
    with FlopCounterMode(display=False):
        found = gradients(ours, tensors)
    equal(found, gradients(sdpa, tensors))


@pytest.mark.parametrize("wants_lse", [True, False])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_what_torch_is_told_of_the_operator_is_true(wants_lse: bool, requires_grad: bool) -> None:
    tensors = [t.detach().requires_grad_(requires_grad) for t in draw(dtype=torch.float32)]
    forward = torch.ops.attention_tuner.forward.default
    torch.library.opcheck(forward, (*tensors, True, 0, SCALE, wants_lse, False))


def test_what_torch_is_told_of_the_backward_is_true() -> None:
    q, k, v = (t.detach() for t in draw(heads_kv=2))
    out, lse = torch.ops.attention_tuner.forward.default(q, k, v, True, 0, SCALE, True, False)
    backward = torch.ops.attention_tuner.backward.default
    for grad_lse in (None, torch.ones_like(lse)):
        torch.library.opcheck(
            backward, (torch.ones_like(out), grad_lse, q, k, v, out, lse, True, 0, SCALE)
        )


def test_the_kernels_lse_serves_the_backward(stand_in: StandIn) -> None:
    ours(*draw())
    assert [specialization.lse for _, specialization in stand_in.loaded] == [True]
    with torch.no_grad():
        ours(*draw())
    assert [specialization.lse for _, specialization in stand_in.loaded] == [True, False]
