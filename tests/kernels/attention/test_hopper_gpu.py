"""The Hopper template on a card: numerics, barriers, streams."""

from __future__ import annotations

import math
import random

import pytest
import torch

from kernels.attention.config import Config
from kernels.attention.hopper import HopperTemplate
from kernels.attention.problem import DTYPES, HEADDIMS, Problem, Specialization
from kernels.attention.reference import attention_reference

pytestmark = pytest.mark.gpu

TEMPLATE = HopperTemplate()
TORCH = {"fp16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(autouse=True)
def on_hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")


def randn(*shape, dtype=torch.float16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, dtype=dtype, device="cuda", generator=generator)


def binary_for(q, causal, lse=False, config=None, **changes):
    headdim = q.shape[-1]
    dtype = {value: name for name, value in TORCH.items()}[q.dtype]
    if config is None:
        config = TEMPLATE.default(Problem.on_grid(headdim, 4096, causal, dtype), 90)
    specialization = Specialization(headdim, causal, dtype, lse)
    return TEMPLATE.compile(specialization, Config(config, **changes), 90)


def attention(q, k, v, causal=False, offset=0, sm_scale=None, lse=False, out=None, **options):
    """(out, lse), both poisoned before the launch."""
    binary = binary_for(q, causal, lse, **options)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    out.fill_(math.nan)
    logs = torch.full(q.shape[:3], math.nan, device=q.device) if lse else None
    sm_scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    TEMPLATE.launch(binary, q, k, v, out, logs, sm_scale, offset)
    return out, logs


def check(q, k, v, causal=False, offset=0, sm_scale=None, **options):
    out, lse = attention(q, k, v, causal, offset, sm_scale, lse=True, **options)
    sm_scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    expected, expected_lse = attention_reference(q, k, v, sm_scale, causal, offset)
    tolerance = TOLERANCE[q.dtype]
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse, expected_lse, atol=1e-3, rtol=1e-4)
    return out


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("seqlen", [1, 2, 7, 8, 15, 100, 127, 1000, 4097])
def test_every_length(headdim, dtype, causal, seqlen):
    q, k, v = (randn(1, 2, seqlen, headdim, dtype=TORCH[dtype], seed=i) for i in range(3))
    check(q, k, v, causal)


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("causal", [True, False])
def test_a_sample_of_the_space(headdim, causal):
    q, k, v = (randn(2, 67, 517, headdim, dtype=torch.bfloat16, seed=i) for i in range(3))
    k[:, :, 500] = 8 * q[:, :, 510]  # a late spike forces the deferred rescale
    configs = list(TEMPLATE.feasible(Specialization(headdim, causal, "bf16"), 90))
    for config in random.Random(headdim).sample(configs, 8):
        check(q, k, v, causal, config=config)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(1, 20), (16, 64), (300, 77), (77, 300)])
@pytest.mark.parametrize("headdim", HEADDIMS)
def test_lengths_of_queries_and_keys_differ(seqlen_q, seqlen_k, headdim):
    q = randn(2, 4, seqlen_q, headdim)
    k, v = (randn(2, 2, seqlen_k, headdim, seed=i) for i in (1, 2))
    check(q, k, v)
    for offset in (0, seqlen_k - seqlen_q):
        out = check(q, k, v, True, offset)
        assert (out[:, :, : max(0, -offset)] == 0).all()


def test_no_query_or_no_key():
    q, k = randn(2, 2, 5, 64), randn(2, 2, 0, 64)
    out, lse = attention(q, k, k, lse=True)
    assert (out == 0).all()
    assert (lse == -math.inf).all()
    attention(randn(0, 2, 5, 64), randn(0, 2, 5, 64), randn(0, 2, 5, 64))


@pytest.mark.parametrize("sm_scale", [0.0, -0.5, 1e-3, 10.0])
def test_scales(sm_scale):
    q, k, v = (randn(1, 2, 300, 64, seed=i) for i in range(3))
    check(q, k, v, True, sm_scale=sm_scale)


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("defer_rescale", [True, False])
def test_giant_scores(headdim, defer_rescale):
    q = torch.full((1, 2, 300, headdim), 133120.0, dtype=torch.bfloat16, device="cuda")
    for causal in (True, False):
        out, _ = attention(q, q, q, causal, defer_rescale=defer_rescale)
        assert (out == 133120.0).all()
    q, k, v = (randn(1, 2, 300, headdim, seed=i) for i in range(3))
    q *= 60
    k *= 60  # scores around ±1e4
    expected, _ = attention_reference(q, k, v, headdim**-0.5, True)
    out, _ = attention(q, k, v, True, defer_rescale=defer_rescale)
    torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=2e-2)


def test_keys_that_no_row_sees_are_not_read():
    q, k, v = randn(1, 2, 100, 128), randn(1, 2, 300, 128, seed=1), randn(1, 2, 300, 128, seed=2)
    clean, _ = attention(q, k, v, True, 50)
    k[:, :, 150:] = v[:, :, 150:] = math.nan
    out, _ = attention(q, k, v, True, 50)
    assert torch.equal(out, clean)


def test_views_are_read_and_written_in_place():
    packed = randn(2, 333, 3, 4, 64)  # batch, seqlen, qkv, heads, headdim
    q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
    out = torch.empty(2, 333, 4, 64, dtype=torch.float16, device="cuda").transpose(1, 2)
    check(q, k, v, True, out=out)
    shared = randn(2, 1, 333, 64).expand(2, 4, 333, 64)  # a stride of 0
    check(q, shared, shared, True)


def test_writes_nothing_beyond_its_output():
    around = torch.full((2, 2, 10 + 77 + 10, 64), 7.0, dtype=torch.float16, device="cuda")
    q, k, v = (randn(2, 2, 77, 64, seed=i) for i in range(3))
    check(q, k, v, True, out=around[:, :, 10:87])
    assert (around[:, :, :10] == 7).all()
    assert (around[:, :, 87:] == 7).all()


def test_many_heads():
    q, k, v = (randn(70000, 1, 4, 64, seed=i) for i in range(3))
    out, _ = attention(q, k, v, True)
    expected, _ = attention_reference(q[-64:], k[-64:], v[-64:], 0.125, True)
    torch.testing.assert_close(out[-64:].float(), expected, atol=2e-3, rtol=2e-3)
    assert out.isfinite().all()


@pytest.mark.parametrize("headdim", HEADDIMS)
def test_repeats_and_batches_are_bit_equal(headdim):
    q, k, v = (randn(3, 40, 1000, headdim, seed=i) for i in range(3))
    first, _ = attention(q, k, v, True)
    alone, _ = attention(q[1:2], k[1:2], v[1:2], True)
    assert torch.equal(first[1:2], alone)
    for _ in range(20):  # a race would show sometimes
        again, _ = attention(q, k, v, True)
        assert torch.equal(first, again)


def test_streams_run_side_by_side():
    q, k, v = (randn(1, 20, 1000, 64, seed=i) for i in range(3))
    binary = binary_for(q, True)
    outs = [torch.full_like(q, math.nan) for _ in range(8)]
    streams = [torch.cuda.Stream() for _ in outs]
    torch.cuda.synchronize()
    for out, stream in zip(outs, streams):
        with torch.cuda.stream(stream):
            TEMPLATE.launch(binary, q, k, v, out, None, 0.125)
    torch.cuda.synchronize()
    assert all(torch.equal(out, outs[0]) for out in outs)
    expected, _ = attention_reference(q, k, v, 0.125, True)
    torch.testing.assert_close(outs[0].float(), expected, atol=2e-3, rtol=2e-3)


def test_a_first_call_can_be_captured():
    q, k, v = (randn(1, 2, 200, 64, seed=i) for i in range(3))
    binary = binary_for(q, True, BLOCK_N=64, stages=2)  # of no other test
    out = torch.full_like(q, math.nan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        TEMPLATE.launch(binary, q, k, v, out, None, 0.125)
    assert out.isnan().all()
    graph.replay()
    expected, _ = attention_reference(q, k, v, 0.125, True)
    torch.testing.assert_close(out.float(), expected, atol=2e-3, rtol=2e-3)
