"""The reference against the definition, spelled out in float64."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.attention import reference
from kernels.attention.reference import attention_reference


def definition(q, k, v, sm_scale, causal, offset):
    batch, heads, seqlen_q, _ = q.shape
    out = torch.zeros(q.shape, dtype=torch.float64)
    lse = torch.full(q.shape[:3], -math.inf, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            h_kv = h * k.shape[1] // heads
            for i in range(seqlen_q):
                seen = k.shape[2] if not causal else min(k.shape[2], max(0, i + offset + 1))
                if seen:
                    s = sm_scale * (k[b, h_kv, :seen].double() @ q[b, h, i].double())
                    lse[b, h, i] = torch.logsumexp(s, 0)
                    out[b, h, i] = torch.softmax(s, 0) @ v[b, h_kv, :seen].double()
    return out, lse


def qkv(seqlen_q, seqlen_k, heads_kv=2, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seqlen_q)
    shapes = ((2, 4, seqlen_q, 16), (2, heads_kv, seqlen_k, 16), (2, heads_kv, seqlen_k, 16))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "causal", "offset"),
    [
        (1, 1, True, 0),
        (13, 13, True, 0),
        (13, 13, False, 0),
        (5, 20, True, 15),
        (20, 5, True, -15),
        (20, 5, True, 0),
        (5, 20, True, 100),
        (5, 20, True, -100),
    ],
)
@pytest.mark.parametrize("scores_at_once", [2**26, 40])
def test_is_the_definition(monkeypatch, seqlen_q, seqlen_k, causal, offset, scores_at_once):
    monkeypatch.setattr(reference, "_SCORES_AT_ONCE", scores_at_once)
    q, k, v = qkv(seqlen_q, seqlen_k)
    out, lse = attention_reference(q, k, v, 0.25, causal, offset)
    expected_out, expected_lse = definition(q, k, v, 0.25, causal, offset)
    assert out.dtype == lse.dtype == torch.float32
    torch.testing.assert_close(out, expected_out.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse, expected_lse.float(), atol=1e-5, rtol=1e-5)


def test_hidden_values_have_no_influence_and_visible_ones_have():
    q, k, v = qkv(20, 20)
    expected, _ = attention_reference(q, k, v, 0.25, causal=True)
    k[:, :, 10], v[:, :, 10] = math.nan, math.inf
    out, lse = attention_reference(q, k, v, 0.25, causal=True)
    torch.testing.assert_close(out[:, :, :10], expected[:, :, :10])
    assert lse[:, :, :10].isfinite().all()
    assert out[:, :, 10:].isnan().all()
    assert lse[:, :, 10:].isnan().all()


def test_one_value_that_is_not_finite_stays_in_its_column():
    q, k, v = qkv(8, 8)
    v[:, :, 3, 5] = math.nan
    out, _ = attention_reference(q, k, v, 0.25, causal=True)
    assert out[:, :, 3:, 5].isnan().all()
    assert out.isnan().sum() == out[:, :, 3:, 5].numel()


def test_leaves_the_process_setting_of_tf32_alone():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        attention_reference(*qkv(4, 4), 0.25)
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_heads_that_do_not_divide_are_refused():
    q, k, v = qkv(4, 4, heads_kv=3)
    with pytest.raises(ValueError, match="heads is 4, but must be a multiple of heads_kv, 3"):
        attention_reference(q, k, v, 0.25)


@pytest.mark.parametrize("giant", [1e5, 1e30])
def test_giant_equal_scores_share_their_weight(giant):
    q, k = torch.full((1, 1, 3, 16), giant), torch.ones(1, 1, 50, 16)
    v = torch.arange(50.0).expand(16, 50).mT[None, None]
    out, _ = attention_reference(q, k, v, 0.25)
    torch.testing.assert_close(out, torch.full_like(out, 24.5))


def test_no_heads():
    empty = torch.zeros(2, 0, 5, 16)
    out, lse = attention_reference(empty, empty, empty, 0.25)
    assert out.shape == (2, 0, 5, 16)
    assert lse.shape == (2, 0, 5)
    with pytest.raises(ValueError, match="heads is 3, but must be a multiple of heads_kv, 0"):
        attention_reference(torch.zeros(2, 3, 5, 16), empty, empty, 0.25)


@pytest.mark.parametrize("switch", ["allow_tf32", "fp32_precision"])
def test_is_never_in_tf32_by_either_switch(switch):
    if not hasattr(torch.backends.cuda.matmul, switch):
        pytest.skip("a switch of newer torch")
    code = f"""
import torch
from kernels.attention import reference
matmul = torch.backends.cuda.matmul
matmul.{switch} = before = True if {switch!r} == "allow_tf32" else "tf32"
with reference._full_precision():
    assert matmul.{switch} in (False, "ieee"), matmul.{switch}
assert matmul.{switch} == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
