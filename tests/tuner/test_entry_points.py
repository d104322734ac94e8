"""The entry points, on CPU tensors that a stand-in serves by the definition."""

from __future__ import annotations

import math
import warnings

import pytest

torch = pytest.importorskip("torch", reason="the runtime is torch's")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import tuner  # noqa: E402
from kernels.attention.reference import attention_reference  # noqa: E402
from tests.tuner.stand_in import StandIn  # noqa: E402
from tuner import fallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::tuner.plans.UntunedWarning")


def draw(seqlen_q=40, seqlen_k=40, heads=4, heads_kv=4, headdim=64, headdim_v=64, dtype=None):
    """q, k and v, (batch, heads, seqlen, headdim)."""
    generator = torch.Generator().manual_seed(0)
    shapes = (
        (heads, seqlen_q, headdim),
        (heads_kv, seqlen_k, headdim),
        (heads_kv, seqlen_k, headdim_v),
    )
    return [
        torch.randn(2, *shape, generator=generator).to(dtype or torch.float16) for shape in shapes
    ]


def bshd(tensors):
    return [t.transpose(1, 2).contiguous() for t in tensors]


def close(found, expected) -> None:
    torch.testing.assert_close(found.float(), expected, atol=3e-3, rtol=3e-3)


LENGTHS = [(40, 40), (1, 20), (16, 64), (33, 7)]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads_kv", [4, 2, 1])
def test_as_sdpa_top_left(stand_in: StandIn, lengths, causal, heads_kv) -> None:
    q, k, v = draw(*lengths, heads_kv=heads_kv)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), is_causal=causal, scale=0.3, enable_gqa=True
    )
    for _ in range(2):
        close(tuner.attention(q, k, v, is_causal=causal, scale=0.3, enable_gqa=True), expected)
        close(tuner.custom_attention_forward(q, k, v, causal, 0.3), expected)
    assert stand_in.launched == ["launched"] * 2 + ["repeated"] * 2


def test_sdpas_defaults(stand_in: StandIn) -> None:
    q, k, v = draw()
    close(tuner.attention(q, k, v), attention_reference(q, k, v, 1 / 8)[0])


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads_kv", [4, 2])
def test_as_flash_attention_bottom_right(stand_in: StandIn, lengths, causal, heads_kv) -> None:
    tensors = draw(*lengths, heads_kv=heads_kv)
    out, lse = attention_reference(*tensors, 1 / 8, causal, lengths[1] - lengths[0])
    given = bshd(tensors)
    for _ in range(2):
        found, logs = tuner.flash_attn_func(*given, causal=causal, return_lse=True)
        close(found.transpose(1, 2), out)
        torch.testing.assert_close(logs, lse)
        assert found.stride() == given[0].stride()
        assert (logs.dtype, logs.shape) == (torch.float32, lse.shape)
        close(tuner.flash_attn_func(*given, causal=causal).transpose(1, 2), out)
    assert stand_in.launched == ["launched"] * 2 + ["repeated"] * 2
    assert {specialization.lse for _, specialization in stand_in.loaded} == {True, False}


def test_entry_points_do_not_answer_for_each_other(stand_in: StandIn) -> None:
    q, k, v = draw(4, 4, heads=4)  # the same shape in both layouts, but for what it means
    tuner.custom_attention_forward(q, k, v, False)
    found = tuner.flash_attn_func(q, k, v)
    expected, _ = attention_reference(*(t.transpose(1, 2) for t in (q, k, v)), 1 / 8)
    close(found.transpose(1, 2), expected)
    grouped = draw(heads_kv=2)
    tuner.attention(*grouped, enable_gqa=True)
    tuner.custom_attention_forward(*grouped, False)
    with pytest.raises(ValueError, match="key has 2 heads, but must have query's 4 unless"):
        tuner.attention(*grouped)


# Of q and k, and of v: multiples of 8 or of nothing, beyond all that templates take, and both ways
# of being unequal.
OTHER_HEADDIMS = [
    (40, 40), (80, 80), (96, 96), (192, 192), (36, 36), (100, 100), (1, 1), (7, 5), (320, 320),
    (64, 32), (64, 128), (36, 100), (100, 36), (64, 1),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("headdims", OTHER_HEADDIMS)
@pytest.mark.parametrize("lengths", [(30, 30), (16, 50), (50, 16)])
def test_what_no_template_serves_gets_the_right_lse_too(stand_in, headdims, lengths, dtype) -> None:
    headdim, headdim_v = headdims
    tensors = draw(*lengths, heads_kv=2, headdim=headdim, headdim_v=headdim_v, dtype=dtype)
    q, k, v = tensors
    scale, widest = headdim**-0.5, max(headdims)
    # The reference wants one headdim: further zeros change no score.
    padded = [torch.nn.functional.pad(t, (0, widest - t.shape[3])) for t in tensors]
    out, lse = attention_reference(*padded, scale, True, lengths[1] - lengths[0])
    fallback._announced.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            found, logs = tuner.flash_attn_func(*bshd(tensors), causal=True, return_lse=True)
        served = tuner.custom_attention_forward(q, k, v)
    (warning,) = caught
    assert warning.category is tuner.FallbackWarning
    epsilon = torch.finfo(dtype).eps
    torch.testing.assert_close(
        found.transpose(1, 2).float(), out[..., :headdim_v], atol=3 * epsilon, rtol=3 * epsilon
    )
    torch.testing.assert_close(logs, lse, atol=1e-4, rtol=1e-4)
    assert not stand_in.launched
    # As the fake kernel promised, whatever the layout that SDPA returns.
    assert (found.dtype, found.shape) == (dtype, (2, lengths[0], 4, headdim_v))
    assert found.is_contiguous()
    assert served.is_contiguous()
    for function in (tuner.flash_attn_func, tuner.attention, tuner.custom_attention_forward):
        with pytest.raises(NotImplementedError, match=r"one of \(64, 128, 256\)"):
            function(q, q, q.new_zeros(*q.shape[:3], headdim_v), strict=True)


def test_fp32_goes_to_sdpa(stand_in: StandIn) -> None:
    tensors = draw(dtype=torch.float32)
    with pytest.warns(tuner.FallbackWarning, match="torch.float32"):
        out = tuner.attention(*tensors, is_causal=True)
    torch.testing.assert_close(out, attention_reference(*tensors, 1 / 8, True)[0])


def test_no_keys_and_no_rows(stand_in: StandIn) -> None:
    q, k, v = bshd(draw(5, 0))
    out, lse = tuner.flash_attn_func(q, k, v, return_lse=True)
    assert not out.count_nonzero()
    assert (lse == -math.inf).all()
    out, lse = tuner.flash_attn_func(k, q, q, return_lse=True)
    assert (out.shape, lse.shape) == ((2, 0, 4, 64), (2, 4, 0))


def views():
    """Views that kernels read as they lie."""
    packed = torch.randn(2, 40, 3, 4, 64).half()
    yield "packed", [packed[:, :, i].transpose(1, 2) for i in range(3)]
    q, k, v = draw()
    yield "expanded batch", [q, k[:1].expand_as(k), v[:1].expand_as(v)]
    yield "expanded q", [q[:, :1].expand_as(q), k, v]
    yield "expanded heads", [q, k[:, :1].expand_as(k), v[:, :1].expand_as(v)]
    wide = torch.randn(2, 4, 40, 3 * 64).half()
    yield "sliced headdim", [wide[..., 64 * i : 64 * (i + 1)] for i in range(3)]
    long = torch.randn(2, 4, 99, 64).half()
    yield "sliced rows", [long[:, :, i : i + 40] for i in (1, 20, 59)]


VIEWS = (
    "packed",
    "expanded batch",
    "expanded q",
    "expanded heads",
    "sliced headdim",
    "sliced rows",
)


@pytest.mark.parametrize("kind", VIEWS)
def test_views_are_read_in_place(stand_in: StandIn, kind: str, monkeypatch) -> None:
    tensors = dict(views())[kind]
    given = [t.transpose(1, 2) for t in tensors]
    monkeypatch.setattr(torch.Tensor, "clone", None)  # any copy fails
    expected, _ = attention_reference(*tensors, 1 / 8, True)
    for _ in range(2):
        out = tuner.custom_attention_forward(*tensors)
        close(out, expected)
        assert out.stride() == torch.empty_like(tensors[0]).stride()
    assert stand_in.launched == ["launched", "repeated"]
    for _ in range(3):
        close(tuner.flash_attn_func(*given, causal=True).transpose(1, 2), expected)
    assert "repeated" in stand_in.launched[-1] or kind == "expanded q"


@pytest.mark.parametrize("kind", ["odd offset", "last", "odd rows"])
def test_what_hardware_cannot_read_is_copied(stand_in: StandIn, kind: str) -> None:
    q, k, v = draw()
    if kind == "odd offset":
        q = torch.randn(q.numel() + 1).half()[1:].view(q.shape)
    elif kind == "last":
        q = torch.randn(2, 4, 64, 40).half().transpose(2, 3)
    else:
        q = torch.randn(2, 4, 40, 65).half()[..., :64]
    for _ in range(2):
        close(tuner.custom_attention_forward(q, k, v), attention_reference(q, k, v, 1 / 8, True)[0])
    assert stand_in.launched == ["launched", "launched"]


def test_inference_mode_and_no_grad(stand_in: StandIn) -> None:
    tensors = draw()
    expected, _ = attention_reference(*tensors, 1 / 8, True)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            for _ in range(2):
                close(tuner.custom_attention_forward(*tensors), expected)


@pytest.mark.parametrize("entry", ["custom_attention_forward", "attention", "flash_attn_func"])
def test_autocast_casts_what_sdpa_would(stand_in: StandIn, monkeypatch, entry: str) -> None:
    seen = []
    real = tuner.runtime.validate

    def validate(*arguments):
        seen.append([t.dtype for t in arguments[:3]])
        return real(*arguments)

    q, k, v = draw(4, 4)
    function = getattr(tuner, entry)
    function(q, k, v)  # a call like it must be cast all the same
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.bfloat16)
    monkeypatch.setattr(tuner.runtime, "validate", validate)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    assert function(q, k, v).dtype == torch.bfloat16
    assert function(q.float(), k, v.bfloat16()).dtype == torch.bfloat16
    function(q, k, v.double())  # which the real `validate` refuses
    casted = [torch.bfloat16] * 3
    assert seen == [casted, casted, [torch.bfloat16, torch.bfloat16, torch.float64]]


@pytest.mark.parametrize("entry", ["custom_attention_forward", "attention", "flash_attn_func"])
@pytest.mark.parametrize("strict", [1, None, "yes"])
def test_a_call_like_an_earlier_one_is_checked_for_strict_too(stand_in, entry, strict) -> None:
    tensors = draw()
    getattr(tuner, entry)(*tensors)
    with pytest.raises(TypeError, match=r"^strict is .*, but must be True or False$"):
        getattr(tuner, entry)(*tensors, strict=strict)
    getattr(tuner, entry)(*tensors, strict=True)
    assert stand_in.launched == ["launched", "repeated"]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_gives_what_single_calls_give(stand_in: StandIn) -> None:
    q, k, v = (t.unflatten(0, (2, 1)) for t in draw())
    for _ in range(2):
        found = torch.vmap(tuner.attention)(q, k, v)
        for each in zip(found, q, k, v):
            close(each[0], attention_reference(*each[1:], 1 / 8)[0])
    tuner.attention(q[0], k[0], v[0])
    assert "repeated" not in stand_in.launched  # nothing of vmap's was remembered


SHAPE = "has .nheads, seqlen."
BAD = [
    ("attention", {"query": 3}, TypeError, "query is of type int"),
    ("attention", {"is_causal": 1}, TypeError, "is_causal is 1, but must be True or False"),
    ("attention", {"scale": "x"}, TypeError, "scale is 'x'"),
    ("attention", {"enable_gqa": None}, TypeError, "enable_gqa is None, but must be True or False"),
    ("attention", {"value": (2, 4, 9, 64)}, ValueError, f"value {SHAPE} .4, 9., but must have key"),
    ("attention", {"key": (2, 3, 9, 64), "value": (2, 3, 9, 64)}, ValueError, "key has 3 heads"),
    ("flash_attn_func", {"q": (2, 3, 4)}, ValueError, "q has 3 dim.* 4: .batch, seqlen, nheads"),
    ("flash_attn_func", {"k": (2, 9, 4, 64)}, ValueError, f"v {SHAPE} .16, 4.*k's .4, 9"),
    ("flash_attn_func", {"k": (2, 4, 3, 64), "v": (2, 4, 3, 64)}, ValueError, "divide q's 16"),
    ("flash_attn_func", {"return_lse": 1}, TypeError, "return_lse is 1"),
    ("flash_attn_func", {"softmax_scale": math.inf}, ValueError, "softmax_scale is inf"),
    (
        "flash_attn_func",
        {"softmax_scale": 10**400},
        ValueError,
        "softmax_scale is a number of 1329",
    ),
    ("flash_attn_func", {"dropout_p": 0.1}, TypeError, "dropout_p"),
]


@pytest.mark.parametrize(("name", "change", "error", "sentence"), BAD)
def test_bad_arguments_get_one_sentence(name, change, error, sentence) -> None:
    names = ("query", "key", "value") if name == "attention" else ("q", "k", "v")
    with FakeTensorMode():
        given = {
            argument: torch.empty(shape, dtype=torch.float16, device="cuda")
            if isinstance(shape, tuple)
            else shape
            for argument, shape in (dict.fromkeys(names, (2, 4, 16, 64)) | change).items()
        }
        with pytest.raises(error, match=sentence) as caught:
            getattr(tuner, name)(**given)
    assert "\n" not in str(caught.value)


def test_the_fake_kernel_promises_what_the_real_one_gives(stand_in: StandIn) -> None:
    with FakeTensorMode():
        q = torch.empty(2, 128, 4, 64, dtype=torch.float16, device="cuda")
        with pytest.MonkeyPatch.context() as patch:
            from tuner.validation import validate

            patch.setattr(tuner.runtime, "validate", validate)
            out, lse = tuner.flash_attn_func(q, q, q, causal=True, return_lse=True)
    assert (out.shape, out.stride(), out.dtype) == (q.shape, q.stride(), q.dtype)
    assert (lse.shape, lse.dtype) == ((2, 4, 128), torch.float32)


class Flash(torch.nn.Module):
    def forward(self, q, k, v):
        return tuner.flash_attn_func(q, k, v, causal=True, return_lse=True)


def test_exported_with_free_seqlens(stand_in: StandIn) -> None:
    free_q, free_k = ({1: torch.export.Dim(name, min=2, max=4096)} for name in ("q", "k"))
    program = torch.export.export(
        Flash(), tuple(bshd(draw(30, 50))), dynamic_shapes=(free_q, free_k, free_k)
    )
    for lengths in ((20, 60), (70, 9)):
        tensors = draw(*lengths)
        out, lse = program.module()(*bshd(tensors))
        expected, logs = attention_reference(*tensors, 1 / 8, True, lengths[1] - lengths[0])
        close(out.transpose(1, 2), expected)
        torch.testing.assert_close(lse, logs)


def test_compiled_once_for_all_seqlens_and_each_gets_its_own_plan(stand_in: StandIn) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(Flash(), backend=counter, fullgraph=True, dynamic=True)
    for seqlen in (20, 33, 60, 90):
        tensors = draw(seqlen, seqlen)
        out, _ = function(*bshd(tensors))
        close(out.transpose(1, 2), attention_reference(*tensors, 1 / 8, True)[0])
    assert counter.frame_count == 1
    assert len(stand_in.loaded) == 4
