"""Every template on a card: spikes, NaN and infinities, and how far they reach."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.attention import registry
from kernels.attention.problem import DTYPES, HEADDIMS
from kernels.attention.reference import attention_reference
from tests.kernels.attention.test_templates_gpu import (
    TOLERANCE,
    TORCH,
    Kernel,
    randn,
    sample,
    serves,
)

pytestmark = pytest.mark.gpu


def rows_before(name, config, seqlen, key):
    """How many rows are of tiles that end before the block that `key` is in, under a causal mask.
    Of the Hopper kernel's tiles the last ends with the last row."""
    block = key // int(config["BLOCK_N"]) * int(config["BLOCK_N"])
    if name == "hopper":
        rows = 64 * int(config["consumers"])
        return max(0, seqlen - -(-(seqlen - block) // rows) * rows)
    return block // int(config["BLOCK_M"]) * int(config["BLOCK_M"])


@pytest.fixture(params=registry.names())
def kernel(request):
    serves(request.param)
    return Kernel(request.param)


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
def test_a_single_spike_at_either_end(kernel, headdim, dtype, causal):
    """In the block that is visited first, and in the one that is visited last: the portable kernel
    begins at key 0 or at the diagonal, the Hopper kernel at the last key."""
    seqlen = 517
    q, k, v = (randn(1, 2, seqlen, headdim, dtype=TORCH[dtype], seed=i) for i in range(3))
    q[..., 0] = q[..., 0].abs() + 0.5
    configs = sample(kernel.template.name, headdim, causal, dtype)
    blocks = {int(config["BLOCK_N"]) for config in configs}
    ends = {edge for size in blocks for edge in (size - 1, (seqlen - 1) // size * size)}
    for key in sorted({0, seqlen - 1} | ends):
        # What it adds to a score, times 0.5 and more: about as much as a rescale is deferred for,
        # and far more, beside which all that was there before must vanish.
        for size in (1, 100):
            spiked = k.clone()
            spiked[:, :, key, 0] = size * headdim**0.5
            reference = attention_reference(q, spiked, v, headdim**-0.5, causal)
            for config in configs:
                kernel.check(q, spiked, v, causal, reference=reference, config=config)


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_hidden_key_does_not_leak(kernel, headdim, dtype, poison):
    q, k, v = (randn(1, 2, 700, headdim, dtype=TORCH[dtype], seed=i) for i in range(3))
    poisoned_k, poisoned_v = k.clone(), v.clone()
    poisoned_k[:, :, 400] = poison
    poisoned_v[:, :, 400] = poison  # reaches the rows of its block: 0·NaN is NaN
    for config in sample(kernel.template.name, headdim, True, dtype):
        clean, _ = kernel.attention(q, k, v, True, config=config)
        out, _ = kernel.attention(q, poisoned_k, v, True, config=config)
        assert torch.equal(out[:, :, :400], clean[:, :, :400])
        if math.isnan(poison):
            assert out[:, :, 400:].isnan().all()
        out, _ = kernel.attention(q, k, poisoned_v, True, config=config)
        assert torch.equal(out[:, :, :256], clean[:, :, :256])
        assert not out[:, :, 400:].isfinite().any()


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
def test_a_nan_in_a_query_is_of_its_row_alone(kernel, headdim, dtype, causal):
    q, k, v = (randn(1, 2, 517, headdim, dtype=TORCH[dtype], seed=i) for i in range(3))
    lost = q.clone()
    rows = torch.tensor([0, 1, 300, 516], device="cuda")
    lost[:, :, rows, headdim - 1] = math.nan
    others = torch.ones(517, dtype=torch.bool, device="cuda").index_fill(0, rows, False)
    for config in sample(kernel.template.name, headdim, causal, dtype):
        clean, clean_lse = kernel.attention(q, k, v, causal, lse=True, config=config)
        out, lse = kernel.attention(lost, k, v, causal, lse=True, config=config)
        assert out[:, :, rows].isnan().all(), config
        assert lse[:, :, rows].isnan().all(), config
        assert torch.equal(out[:, :, others], clean[:, :, others]), config
        assert torch.equal(lse[:, :, others], clean_lse[:, :, others]), config


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_hidden_value_reaches_no_further_than_said(kernel, headdim, dtype, poison):
    """The rows before it whose tile visits its block, and no lse."""
    q, k, v = (randn(1, 2, 700, headdim, dtype=TORCH[dtype], seed=i) for i in range(3))
    for key in (400, 699):
        spoilt = v.clone()
        spoilt[:, :, key] = poison
        for config in sample(kernel.template.name, headdim, True, dtype):
            clean, clean_lse = kernel.attention(q, k, v, True, lse=True, config=config)
            out, lse = kernel.attention(q, k, spoilt, True, lse=True, config=config)
            safe = rows_before(kernel.template.name, config, 700, key)
            assert torch.equal(out[:, :, :safe], clean[:, :, :safe]), config
            assert not out[:, :, key:].isfinite().any(), config
            assert torch.equal(lse, clean_lse), config


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_rows_that_see_no_key_are_zeros_whatever_the_values(kernel, headdim, dtype, poison):
    q = randn(1, 2, 300, headdim, dtype=TORCH[dtype])
    k, v = (randn(1, 2, 77, headdim, dtype=TORCH[dtype], seed=i) for i in (1, 2))
    v[:, :, :3] = poison  # in the block that the tile of the last blind rows visits
    blind = 300 - 77
    for config in sample(kernel.template.name, headdim, True, dtype):
        out, lse = kernel.attention(q, k, v, True, -blind, lse=True, config=config)
        assert (out[:, :, :blind] == 0).all(), config
        assert (lse[:, :, :blind] == -math.inf).all(), config
        assert not out[:, :, blind:].isfinite().any(), config


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_of_keys_at_minus_infinity_have_no_weight(kernel, headdim, dtype, causal):
    """Whole blocks of them: those that are visited first, or last, or in the middle."""
    q, k, v = (randn(1, 2, 517, headdim, dtype=TORCH[dtype], seed=i) for i in range(3))
    q[..., 0] = q[..., 0].abs() + 0.1
    for first, last in ((0, 300), (100, 400), (200, 517)):
        lost = k.clone()
        lost[:, :, first:last, 0] = -math.inf
        expected, logs = attention_reference(q, lost, v, headdim**-0.5, causal)
        # Without the rows that see only such keys: by the definition they are NaN.
        some = expected.isfinite().all(-1)
        assert some[:, :, last:].all()
        for config in sample(kernel.template.name, headdim, causal, dtype):
            out, lse = kernel.attention(q, lost, v, causal, lse=True, config=config)
            tolerance = TOLERANCE[q.dtype]
            torch.testing.assert_close(
                out[some].float(), expected[some], atol=tolerance, rtol=tolerance
            )
            torch.testing.assert_close(lse[some], logs[some], atol=1e-3, rtol=1e-4)
