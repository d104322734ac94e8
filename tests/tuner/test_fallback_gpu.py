"""What SDPA serves on a real GPU: other headdims and fp32, announced, and in their precision."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="the runtime is torch's")

import tuner  # noqa: E402
from tests.tuner.test_entry_points import OTHER_HEADDIMS  # noqa: E402
from tests.tuner.test_runtime_gpu import close, draw, expected  # noqa: E402
from tuner import custom_attention_forward, fallback  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("headdims", OTHER_HEADDIMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads_kv", [4, 2])
def test_other_headdims_are_served_by_sdpa_with_one_warning(
    headdims: tuple[int, int], dtype: torch.dtype, heads_kv: int
) -> None:
    fallback._announced.clear()
    headdim, headdim_v = headdims
    q = draw(2, 4, 200, headdim, dtype=dtype)[0]
    k = draw(2, heads_kv, 200, headdim, dtype=dtype, seed=1)[0]
    v = draw(2, heads_kv, 200, headdim_v, dtype=dtype, seed=2)[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            out = custom_attention_forward(q, k, v)
        found, lse = tuner.flash_attn_func(
            *(t.transpose(1, 2) for t in (q, k, v)), causal=True, return_lse=True
        )
    assert [w.category for w in caught] == [tuner.FallbackWarning]
    assert (out.dtype, out.shape) == (dtype, (2, 4, 200, headdim_v))
    for given in (out, found.transpose(1, 2)):
        close(given, expected(q, k, v))
    scores = headdim**-0.5 * q.double() @ k.double().repeat_interleave(4 // heads_kv, 1).mT
    hidden = torch.ones(200, 200, dtype=torch.bool, device="cuda").triu(1)
    logs = scores.masked_fill(hidden, -torch.inf).logsumexp(-1)
    torch.testing.assert_close(lse.double(), logs, atol=1e-4, rtol=1e-5)
    with pytest.raises(NotImplementedError, match=r"one of \(64, 128, 256\)"):
        custom_attention_forward(q, k, v, strict=True)


@pytest.mark.parametrize("headdim", [64, 80])
def test_fp32_keeps_fp32_precision(headdim: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 500, headdim, device="cuda") for _ in range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = custom_attention_forward(q, k, v)
    torch.testing.assert_close(out, expected(q, k, v), atol=1e-5, rtol=1e-5)


@pytest.fixture(params=["allow_tf32", "fp32_precision", "float32_matmul_precision"])
def tf32_allowed(request: pytest.FixtureRequest) -> Iterator[Callable[[], object]]:
    """TF32 allowed for products, by each switch that there is; what reads that switch."""
    matmul, name = torch.backends.cuda.matmul, request.param
    if name == "float32_matmul_precision":
        read, write = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
        allowed: object = "high"
    else:
        if not hasattr(matmul, name):
            pytest.skip(f"torch {torch.__version__} has no {name}")
        read, write = partial(getattr, matmul, name), partial(setattr, matmul, name)
        allowed = True if name == "allow_tf32" else "tf32"
    before = read()
    write(allowed)
    yield read
    write(before)


# Which of SDPA's backends computes them: grouped heads and headdims that are no multiple of 4 are
# for the one that multiplies by cuBLAS.
@pytest.mark.parametrize(("headdim", "headdim_v"), [(64, 64), (80, 80), (30, 30), (64, 36)])
@pytest.mark.parametrize("heads_kv", [4, 2])
def test_fp32_keeps_its_precision_where_tf32_is_allowed(
    tf32_allowed: Callable[[], object], headdim: int, headdim_v: int, heads_kv: int
) -> None:
    fallback._announced.clear()
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, 500, size, device="cuda")
        for heads, size in ((4, headdim), (heads_kv, headdim), (heads_kv, headdim_v))
    )
    before = tf32_allowed()
    square = torch.randn(256, 256, device="cuda")
    rounded = ((square @ square).double() - square.double() @ square.double()).abs().max()
    assert rounded > 1e-3  # the switch is on: plain products are TF32's
    doubles = [t.double() for t in (q, *(t.repeat_interleave(4 // heads_kv, 1) for t in (k, v)))]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        reference = torch.nn.functional.scaled_dot_product_attention(*doubles, is_causal=True)
    with pytest.warns(tuner.FallbackWarning, match="torch.float32"):
        out = custom_attention_forward(q, k, v)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), reference, atol=1e-5, rtol=1e-5)
    assert tf32_allowed() == before


@pytest.mark.filterwarnings("ignore::tuner.fallback.FallbackWarning")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("offset", [0, 100, -100])
def test_a_scale_of_zero_gives_the_mean_of_what_is_seen(dtype: torch.dtype, offset: int) -> None:
    q = draw(2, 4, 200, 80, dtype=dtype)[0]
    k, v = draw(2, 4, 200 + offset, 80, dtype=dtype, seed=1)[:2]
    bshd = (t.transpose(1, 2) for t in (q, k, v))
    out = tuner.flash_attn_func(*bshd, softmax_scale=0.0, causal=True).transpose(1, 2)
    seen = (torch.arange(200, device="cuda") + offset + 1).clamp(min=1)
    means = v.double().cumsum(2)[:, :, seen - 1] / seen[:, None]
    means[:, :, : max(0, -offset)] = 0
    torch.testing.assert_close(out.double(), means, atol=2e-3, rtol=2e-3)


@pytest.mark.filterwarnings("ignore::tuner.fallback.FallbackWarning")
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("headdim", [36, 80, 320])
@pytest.mark.parametrize("offset", [0, 100, -100])
def test_a_poisoned_key_stays_out_of_the_rows_it_is_hidden_from(
    poison: float, dtype: torch.dtype, headdim: int, offset: int
) -> None:
    q = draw(2, 4, 200, headdim, dtype=dtype)[0]
    k, v = draw(2, 4, 200 + offset, headdim, dtype=dtype, seed=1)[:2]

    def call() -> torch.Tensor:
        bshd = (t.transpose(1, 2) for t in (q, k, v))
        return tuner.flash_attn_func(*bshd, causal=True).transpose(1, 2)

    clean = call()
    k[:, :, 90] = poison
    out = call()
    first = max(0, 90 - offset)  # that sees it
    assert torch.equal(out[:, :, :first], clean[:, :, :first])
    if poison != poison:
        assert out[:, :, first:].isnan().all()


@pytest.mark.filterwarnings("ignore::tuner.fallback.FallbackWarning")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("headdim", [36, 80, 320])
def test_bottom_right_causality_takes_no_mask(dtype: torch.dtype, headdim: int) -> None:
    q = torch.randn(1, 1, 4096, headdim, dtype=dtype, device="cuda")
    k = torch.randn(1, 1, 8192, headdim, dtype=dtype, device="cuda")
    fallback.attention(q, k, k, True, 0.1, 4096)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = fallback.attention(q, k, k, True, 0.1, 4096)
    assert torch.cuda.max_memory_allocated() - before < 4096 * 8192
    scores = 0.1 * q.double() @ k.double().mT
    hidden = torch.ones(4096, 8192, dtype=torch.bool, device="cuda").triu(4097)
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ k.double()
    tolerance = 1e-2 if dtype == torch.float16 else 1e-4
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)
