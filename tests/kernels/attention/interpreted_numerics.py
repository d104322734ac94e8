"""The portable kernel on Triton's interpreter, against the reference.

Collected only by the process that test_portable_numerics.py starts with TRITON_INTERPRET=1, which
Triton reads when the kernel is decorated. Blocks are small, so that a few rows cross many of them.
"""

from __future__ import annotations

import math

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.attention.portable_kernel import INTERPRETED, attention_forward
from kernels.attention.reference import attention_reference

HEADDIM = 16
OPTIONS = {
    "DEFER": (False, True),
    "SUM_LATE": (False, True),
    "DIAGONAL_FIRST": (False, True),
    "TMA": (False, True),
    "HEADS_TOGETHER": (1, 2, 8),
}
# Every value of every option, and every pair of two that are either on or off.
VARIANTS = [
    dict(zip(OPTIONS, values))
    for values in (
        (False, False, False, False, 1),
        (True, False, False, True, 2),
        (False, True, True, True, 8),
        (True, True, True, False, 1),
        (False, False, True, True, 2),
        (True, True, False, False, 8),
        (False, True, False, False, 2),
        (True, False, True, False, 8),
    )
]
PLAIN = VARIANTS[0]
DTYPES = [torch.float16, torch.bfloat16]


def attention(q, k, v, sm_scale=0.25, causal=True, offset=0, block_m=16, block_n=16, **options):
    """(out, lse) of the kernel, launched as portable.py does."""
    assert INTERPRETED.value
    batch, heads, seqlen_q, headdim = q.shape
    heads_kv, seqlen_k = k.shape[1], k.shape[2]
    if causal:
        offset = min(offset, seqlen_k)
        seqlen_k = min(seqlen_k, seqlen_q + offset)
    out = torch.full_like(q, math.nan)
    lse = torch.full(q.shape[:3], math.nan)
    options = {**PLAIN, **options}
    sources = [q, k[:, :, :seqlen_k], v[:, :, :seqlen_k]]
    strides = [stride for tensor in (*sources, out) for stride in tensor.stride()[:3]]
    if options["TMA"]:
        sources = [
            TensorDescriptor(t, list(t.shape), list(t.stride()), [1, 1, block, headdim])
            for t, block in zip(sources, (block_m, block_n, block_n))
        ]
    scale = max(sm_scale * math.log2(math.e), 2.0**-126)
    attention_forward[(-(-seqlen_q // block_m) * batch * heads,)](
        *sources, out, lse, *strides,
        heads, heads // heads_kv, seqlen_q, seqlen_k, offset, scale,
        math.ldexp(1.0, math.frexp(scale)[1]),
        headdim, causal, True, block_m, block_n, 1,
        options["TMA"], options["DEFER"], options["SUM_LATE"], options["DIAGONAL_FIRST"],
        options["HEADS_TOGETHER"],
    )  # fmt: skip
    return out, lse


def qkv(seqlen_q, seqlen_k=None, dtype=torch.float16, heads=2, heads_kv=1, batch=1):
    seqlen_k = seqlen_q if seqlen_k is None else seqlen_k
    generator = torch.Generator().manual_seed(seqlen_q + seqlen_k)
    shapes = [(batch, heads, seqlen_q, HEADDIM)] + 2 * [(batch, heads_kv, seqlen_k, HEADDIM)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def check(q, k, v, sm_scale=0.25, causal=True, offset=0, **options):
    out, lse = attention(q, k, v, sm_scale, causal, offset, **options)
    expected_out, expected_lse = attention_reference(q, k, v, sm_scale, causal, offset)
    # Of p and of out, rounded to the dtype.
    epsilon = torch.finfo(q.dtype).eps
    bound = 2 * epsilon * max(1.0, v[v.isfinite()].abs().max().item())
    assert out.isfinite().all()
    torch.testing.assert_close(out.float(), expected_out, atol=bound, rtol=epsilon)
    torch.testing.assert_close(lse, expected_lse, atol=1e-4, rtol=1e-5)
    return out, lse


@pytest.mark.parametrize("variant", range(len(VARIANTS)))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
def test_every_option(variant, dtype, causal):
    batch, heads = (2, 1) if dtype == torch.float16 else (1, 2)
    check(*qkv(40, dtype=dtype, batch=batch, heads=heads), causal=causal, **VARIANTS[variant])


@pytest.mark.parametrize("seqlen", [1, 2, 7, 8, 15, 100, 127])
@pytest.mark.parametrize(("variant", "causal"), [(0, True), (1, False), (2, True)])
def test_lengths_that_no_block_divides(seqlen, variant, causal):
    check(*qkv(seqlen, heads=1), causal=causal, block_m=32, block_n=16, **VARIANTS[variant])


@pytest.mark.parametrize(("block_m", "block_n"), [(16, 64), (64, 16), (32, 32)])
@pytest.mark.parametrize("variant", [1, 3])
def test_shapes_of_blocks(block_m, block_n, variant):
    check(*qkv(100, heads=1), block_m=block_m, block_n=block_n, **VARIANTS[variant])


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(1, 20), (16, 64), (60, 33), (50, 17)])
@pytest.mark.parametrize("alignment", ["full", "top left", "bottom right"])
@pytest.mark.parametrize("variant", [0, 2])
def test_lengths_of_queries_and_keys_differ(seqlen_q, seqlen_k, alignment, variant):
    offset = seqlen_k - seqlen_q if alignment == "bottom right" else 0
    q, k, v = qkv(seqlen_q, seqlen_k, heads=1)
    out, lse = check(q, k, v, 0.25, alignment != "full", offset, **VARIANTS[variant])
    blind = max(0, -offset)
    assert (out[:, :, :blind] == 0).all()
    assert (lse[:, :, :blind] == -math.inf).all()


@pytest.mark.parametrize("variant", range(len(VARIANTS)))
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_rows_that_see_no_key_are_zeros_whatever_the_values(poison, variant):
    q, k, v = qkv(50, 17, heads=1)
    v[:, :, :3] = poison  # in the block that the tile of the last blind rows visits
    out, lse = attention(q, k, v, 0.25, True, 17 - 50, **VARIANTS[variant])
    assert (out[:, :, :33] == 0).all()
    assert (lse[:, :, :33] == -math.inf).all()
    assert not out[:, :, 33:].isfinite().any()


@pytest.mark.parametrize("offset", range(-17, 18))
def test_every_place_of_the_diagonal_in_a_block(offset):
    check(*qkv(20, 60, heads=1), offset=offset, **VARIANTS[offset % 4])


@pytest.mark.parametrize(("heads", "heads_kv"), [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("variant", [0, 1])
def test_heads_share_keys(heads, heads_kv, variant):
    check(*qkv(20, heads=heads, heads_kv=heads_kv, batch=2), **VARIANTS[variant])


@pytest.mark.parametrize("variant", range(len(VARIANTS)))
@pytest.mark.parametrize("key", [0, 15, 35, 44])
def test_a_single_spike_at_either_end(key, variant):
    q, k, v = qkv(45, dtype=DTYPES[(variant + key) % 2], heads=1)
    k[:, :, key] = 30 * q[:, :, 44]
    check(q, k, v, 0.25, causal=variant % 3 > 0, **VARIANTS[variant])


@pytest.mark.parametrize("variant", range(len(VARIANTS)))
@pytest.mark.parametrize("causal", [True, False])
def test_a_nan_in_a_query_is_of_its_row_alone(causal, variant):
    q, k, v = qkv(50, heads=1)
    clean, clean_lse = attention(q, k, v, causal=causal, **VARIANTS[variant])
    rows, others = [0, 20, 49], [row for row in range(50) if row not in (0, 20, 49)]
    q[:, :, rows, 3] = math.nan
    out, lse = attention(q, k, v, causal=causal, **VARIANTS[variant])
    assert out[:, :, rows].isnan().all()
    assert lse[:, :, rows].isnan().all()
    torch.testing.assert_close(out[:, :, others], clean[:, :, others], atol=0, rtol=0)
    torch.testing.assert_close(lse[:, :, others], clean_lse[:, :, others], atol=0, rtol=0)


@pytest.mark.parametrize("variant", [0, 1, 2])
def test_large_scores(variant):
    q, k, v = qkv(50, heads=1)
    q *= 100
    k *= 100
    out, _ = attention(q, k, v, 0.25, **VARIANTS[variant])
    expected, _ = attention_reference(q, k, v, 0.25, True)
    assert expected.isfinite().all()
    # fp32 scores near 1e4 are exact to 1e-3.
    torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("variant", range(len(VARIANTS)))
@pytest.mark.parametrize("causal", [True, False])
def test_scores_beyond_what_a_rounded_shift_bears(variant, causal):
    q = torch.full((1, 1, 40, HEADDIM), 133120.0, dtype=torch.bfloat16)
    out, lse = attention(q, q, q, 0.25, causal, **VARIANTS[variant])
    assert (out == 133120.0).all()
    score = 0.25 * HEADDIM * 133120.0**2  # beside which the logarithm of their number is nothing
    torch.testing.assert_close(lse, torch.full_like(lse, score), atol=0, rtol=1e-6)


@pytest.mark.parametrize("variant", range(len(VARIANTS)))
@pytest.mark.parametrize("size", [30.0, 300.0, 2000.0])
def test_equal_scores_weigh_equally_however_large(variant, size):
    q = torch.full((1, 1, 150, HEADDIM), size, dtype=torch.float16)
    v = torch.linspace(-1, 1, 150).half()[None, None, :, None].expand_as(q).contiguous()
    out, _ = attention(q[:, :, :20], q, v, 0.25, False, **VARIANTS[variant])
    assert out.abs().max() < 1e-3  # a constant would come out right with any weights


@pytest.mark.parametrize("variant", range(len(VARIANTS)))
def test_keys_at_minus_infinity_have_no_weight(variant):
    q, k, v = qkv(20, 150, heads=1)
    q[..., 0] = q[..., 0].abs() + 0.1
    for first, last in ((0, 100), (50, 150)):
        lost = k.clone()
        lost[:, :, first:last, 0] = float("-inf")
        out, _ = attention(q, lost, v, 0.25, False, **VARIANTS[variant])
        expected, _ = attention_reference(q, lost, v, 0.25, False)
        assert expected.isfinite().all()
        torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=2e-2)


def test_a_giant_score_beats_all_others():
    q, k, v = qkv(40, dtype=torch.bfloat16, heads=1)
    q *= 1e6
    k *= 1e6
    for variant in VARIANTS:
        out, _ = attention(q, k, v, 0.25, **variant)
        expected, _ = attention_reference(q, k, v, 0.25, True)
        torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("sm_scale", [0.0, 1e-3, 10.0])
def test_scales(sm_scale):
    q, k, v = qkv(40, heads=1)
    for variant in (PLAIN, VARIANTS[1]):
        check(q, k, v, sm_scale, **variant)
    if sm_scale == 0:
        out, _ = attention(q, k, v, 0.0, causal=False)
        mean = v.float().mean(2, keepdim=True)
        torch.testing.assert_close(out.float(), mean.expand_as(q), atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("variant", range(len(VARIANTS)))
def test_a_hidden_key_does_not_leak_and_a_visible_one_makes_its_rows_nan(variant):
    q, k, v = qkv(40, heads=1)
    clean, _ = attention(q, k, v, **VARIANTS[variant])
    for poison in (math.nan, math.inf, -math.inf):
        k[:, :, 20] = poison
        out, lse = attention(q, k, v, **VARIANTS[variant])
        torch.testing.assert_close(out[:, :, :20], clean[:, :, :20], atol=0, rtol=0)
        assert lse[:, :, :20].isfinite().all()
        if math.isnan(poison):
            assert out[:, :, 20:].isnan().all()


@pytest.mark.parametrize("variant", [0, 1, 2, 3])
def test_values_that_no_row_sees_are_not_read(variant):
    q, k, v = qkv(20, 50, heads=1)
    clean, _ = attention(q, k, v, **VARIANTS[variant])
    k[:, :, 20:] = v[:, :, 20:] = math.nan
    out, _ = attention(q, k, v, **VARIANTS[variant])
    torch.testing.assert_close(out, clean, atol=0, rtol=0)


@pytest.mark.parametrize("variant", range(len(VARIANTS)))
@pytest.mark.parametrize(("block_m", "block_n"), [(16, 16), (32, 16), (16, 32)])
def test_a_hidden_value_reaches_only_rows_whose_tile_visits_its_block(block_m, block_n, variant):
    q, k, v = qkv(64, heads=1)
    options = {"block_m": block_m, "block_n": block_n, **VARIANTS[variant]}
    clean, clean_lse = attention(q, k, v, **options)
    first = 64 - max(block_m, block_n)
    assert 58 - first < max(block_m, block_n)  # as the kernel's module says
    for poison in (math.nan, math.inf):
        v[:, :, 58] = poison
        out, lse = attention(q, k, v, **options)
        torch.testing.assert_close(out[:, :, :first], clean[:, :, :first], atol=0, rtol=0)
        assert not out[:, :, 58:].isfinite().any()
        torch.testing.assert_close(lse, clean_lse, atol=0, rtol=0)


def test_views_are_read_in_place():
    packed = torch.randn(2, 40, 3, 2, HEADDIM).to(torch.float16)  # batch, seqlen, qkv, heads, dim
    q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
    for variant in VARIANTS:
        check(q, k, v, **variant)
