"""A standalone file's portable kernel on Triton's interpreter, against the reference.

Collected only by the process that test_numerics.py starts with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from kernels.attention.reference import attention_reference
from tests.tuner.standalone.exported import exported


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Takes CPU tensors for those of a B200, for which a file of an H100 has the portable kernel
    with TMA."""
    module = exported(tmp_path)
    assert module.INTERPRETED.value
    monkeypatch.setattr(
        module, "validate", lambda q, k, v, causal, scale: scale or q.shape[3] ** -0.5
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return module


def check(module, q, k, v, causal=True, scale=None) -> torch.Tensor:
    out = module.custom_attention_forward(q, k, v, causal, scale)
    expected, _ = attention_reference(q, k, v, scale or q.shape[3] ** -0.5, causal)
    epsilon = torch.finfo(q.dtype).eps
    torch.testing.assert_close(out.float(), expected, atol=4 * epsilon, rtol=epsilon)
    assert out.dtype == q.dtype
    return out


# Every dtype with every mask, and both of each with every headdim: the interpreter is slow.
@pytest.mark.parametrize(
    ("seqlen", "headdim", "causal", "dtype"),
    [
        (1, 64, True, torch.bfloat16),
        (140, 64, True, torch.float16),
        (140, 64, False, torch.bfloat16),
        (70, 128, True, torch.bfloat16),
        (70, 128, False, torch.float16),
        (40, 256, True, torch.float16),
        (40, 256, False, torch.bfloat16),
    ],
)
def test_equals_the_reference(module, seqlen, headdim, causal, dtype) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, seqlen, headdim).to(dtype) for _ in range(3))
    assert check(module, q, k, v, causal).is_contiguous()


def test_with_pointers_too(module, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    q, k, v = (torch.randn(1, 2, 90, 64).half() for _ in range(3))
    check(module, q, k, v)


def test_grouped_heads_other_lengths_scales_and_views(module) -> None:
    q = torch.randn(2, 50, 4, 64).half().transpose(1, 2)
    k, v = (torch.randn(2, 1, 80, 64).half() for _ in range(2))
    out = check(module, q, k, v, causal=False)
    assert out.stride() == q.stride()
    check(module, q, k, v, causal=True, scale=-0.3)
    odd = torch.randn(2 * 4 * 50 * 64 + 1).half()[1:].view(2, 4, 50, 64)
    check(module, odd, k, v)


def test_nothing_to_do(module) -> None:
    empty = torch.empty(0, 2, 8, 64).half()
    assert module.custom_attention_forward(empty, empty, empty).shape == empty.shape
    q, none = torch.ones(1, 2, 8, 64).half(), torch.empty(1, 2, 0, 64).half()
    assert (module.custom_attention_forward(q, none, none, causal=False) == 0).all()


def test_refusals(module) -> None:
    q = torch.ones(1, 2, 8, 64)
    with pytest.raises(TypeError, match=r"q is torch.float32, but must be"):
        module.custom_attention_forward(q, q, q)
    q = q.half().requires_grad_()
    with pytest.raises(NotImplementedError, match="no gradients"):
        module.custom_attention_forward(q, q, q)
    with torch.no_grad():
        module.custom_attention_forward(q, q, q)
