"""What SDPA is given, on the CPU."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the fallback is torch's")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from kernels.attention.layout import aligned  # noqa: E402
from kernels.attention.reference import attention_reference  # noqa: E402
from tuner import fallback  # noqa: E402

ROOT = Path(__file__).parents[2]
SHAPE = (2, 3, 20, 80)


@pytest.mark.parametrize("offset", [0, 5, -3])
def test_a_scale_of_zero_gives_the_mean_of_what_is_seen(offset: int) -> None:
    q, k, v = (torch.randn(1, 2, n, 80, dtype=torch.float32) for n in (4, 9, 9))
    out = fallback.attention(q, k, v, True, 0.0, offset)
    for row in range(4):
        seen = max(0, row + offset + 1)
        expected = v[:, :, :seen].mean(2) if seen else torch.zeros(1, 2, 80)
        torch.testing.assert_close(out[:, :, row], expected)


def laid_out(kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if kind == "offset":
        flat = torch.randn(2 * 3 * 20 * 80 + 1, generator=generator).half()
        return flat[1:].view(SHAPE)
    if kind == "last":
        return torch.randn(2, 3, 80, 20, generator=generator).half().transpose(2, 3)
    if kind == "row":
        return torch.randn(2, 3, 20, 81, generator=generator).half()[..., :80]
    return torch.randn(SHAPE, generator=generator).half()


@pytest.mark.parametrize("kind", ["dense", "offset", "last", "row"])
@pytest.mark.parametrize("which", range(3))
def test_sdpa_gets_only_what_it_reads_right(
    kind: str, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = [laid_out("dense") for _ in range(3)]
    tensors[which] = laid_out(kind)
    assert aligned(tensors[which]) == (kind == "dense")
    given = []
    real = torch.nn.functional.scaled_dot_product_attention

    def watch(*arguments, **more):
        given.extend(arguments)
        return real(*arguments, **more)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watch)
    out = fallback.attention(*tensors, True, 0.1)
    assert all(map(aligned, given))
    expected, _ = attention_reference(*tensors, 0.1, True)
    torch.testing.assert_close(out.float(), expected, atol=5e-3, rtol=5e-3)


def test_lse_of_fp32_is_that_of_fp32_whatever_products_the_process_allows() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (20 * torch.randn(2, 3, 50, 40, generator=generator) for _ in range(2))
    scores = 0.1 * (q.double() @ k.double().mT)
    scores = scores.masked_fill(torch.ones(50, 50, dtype=torch.bool).triu(1), -torch.inf)
    lse = fallback.log_sum_exp(q, k, True, 0.1)
    assert lse.dtype == torch.float32
    # Products rounded to fp32, let alone TF32, would be off by more than the last bit.
    torch.testing.assert_close(lse, scores.logsumexp(-1).float(), atol=0, rtol=2.0**-23)


POISONS = [float("nan"), float("inf")]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def poisoned(dtype: torch.dtype, heads_kv: int, seqlen_k: int = 20) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (4, 20, 80), (heads_kv, seqlen_k, 80), (heads_kv, seqlen_k, 80)
    return [torch.randn(1, *shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, -3])
@pytest.mark.parametrize("heads_kv", [4, 2])
def test_a_poisoned_key_stays_out_of_the_rows_it_is_hidden_from(
    poison: float, dtype: torch.dtype, offset: int, heads_kv: int
) -> None:
    q, k, v = poisoned(dtype, heads_kv)
    clean = fallback.attention(q, k, v, True, 0.1, offset)
    k[:, :, 12] = poison
    out = fallback.attention(q, k, v, True, 0.1, offset)
    first = 12 - offset  # that sees it
    torch.testing.assert_close(out[:, :, :first], clean[:, :, :first], atol=0, rtol=0)
    assert out[:, :, first:].isnan().all() or poison == torch.inf


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, 3, -3, -20])
@pytest.mark.parametrize("heads_kv", [4, 2])
def test_what_is_hidden_from_every_row_is_not_read(
    poison: float, dtype: torch.dtype, offset: int, heads_kv: int
) -> None:
    q, k, v = poisoned(dtype, heads_kv, 31)
    clean = fallback.attention(q, k, v, True, 0.1, offset)
    for tensor in (k, v):
        tensor[:, :, 20 + offset :] = poison
    given = [tensor.requires_grad_() for tensor in (q, k, v)]
    out = fallback.attention(*given, True, 0.1, offset)
    torch.testing.assert_close(out, clean, atol=0, rtol=0)
    gradients = torch.autograd.grad(out.float().sum(), given)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not any(gradient[:, :, 20 + offset :].count_nonzero() for gradient in gradients[1:])


def test_a_row_that_sees_all_keys_needs_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = []
    real = torch.nn.functional.scaled_dot_product_attention

    def watch(*tensors, **more):
        masks.append((more["attn_mask"], more["is_causal"]))
        return real(*tensors, **more)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watch)
    q, k, v = poisoned(torch.float16, 4)
    expected, _ = attention_reference(q[:, :, :1], k, v, 0.1, True, 19)
    for offset in (19, 20, 2**40):
        out = fallback.attention(q[:, :, :1], k, v, True, 0.1, offset)
        torch.testing.assert_close(out.float(), expected, atol=5e-3, rtol=5e-3)
    assert masks == [(None, False)] * 3


@pytest.mark.parametrize("backend", ["flash", "efficient", None])
@pytest.mark.parametrize("headdims", [(80, 80), (36, 36), (64, 32)])
@pytest.mark.parametrize("heads_kv", [4, 2])
@pytest.mark.parametrize("grad", [False, True])
def test_a_backend_that_masks_by_itself_gets_no_mask(
    backend: str | None, headdims: tuple[int, int], heads_kv: int, grad: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    headdim, headdim_v = headdims
    if backend == "flash" and headdim != headdim_v:
        pytest.skip("which it does not take")
    called = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.append(function)
            return function(*args, **(kwargs or {}))

    for name in ("flash", "efficient"):
        can = f"can_use_{name}_attention"
        monkeypatch.setattr(torch.backends.cuda, can, lambda _, takes=name == backend: takes)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    with Watch():
        q, k, v = (
            torch.empty(2, heads, seqlen, size, dtype=torch.float16, device="meta")
            for heads, seqlen, size in (
                (4, 20, headdim), (heads_kv, 29, headdim), (heads_kv, 29, headdim_v),
            )
        )  # fmt: skip
        given = [tensor.requires_grad_(grad) for tensor in (q, k, v)]
        out = fallback.attention(*given, True, 0.1, 5)
        assert (out.shape, out.dtype) == ((2, 4, 20, headdim_v), torch.float16)
        # The meta kernel of the other backward does not take what aten's own formula gives it.
        if grad and backend != "efficient":
            gradients = torch.autograd.grad(out.sum(), given)
            assert [gradient.shape for gradient in gradients] == [t.shape for t in given]
    names = {function.name() for function in called}
    masked = backend is None or (backend == "efficient" and heads_kv == 2)
    assert ("aten::tril_" in names) == masked
    assert ("aten::_scaled_dot_product_flash_attention" in names) == (backend == "flash")
    efficient = backend == "efficient" and not masked
    assert ("aten::_efficient_attention_forward" in names) == efficient


@pytest.mark.parametrize("may_round", [True, False])
@pytest.mark.parametrize("by_cublas", [True, False])
def test_fp32_is_never_handed_to_products_that_may_be_rounded(
    by_cublas: bool, may_round: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "_may_round", lambda: may_round)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, 20, 40, generator=generator) for _ in range(3))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    asked, given = [], []

    def takes(params) -> bool:
        asked.append(params)
        return not by_cublas

    real = torch.nn.functional.scaled_dot_product_attention

    def watch(*tensors, **more):
        given.extend(tensors)
        return real(*tensors, **more)

    monkeypatch.setattr(torch.backends.cuda, "can_use_efficient_attention", takes)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watch)
    for offset in (0, 3, -3):
        out = fallback.attention(q, k[:, :2], v[:, :2], True, 0.1, offset)
        assert out.dtype == torch.float32
        expected, _ = attention_reference(q, k[:, :2], v[:, :2], 0.1, True, offset)
        torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-6)
    wide = by_cublas and may_round
    assert {tensor.dtype for tensor in given} == {torch.float64 if wide else torch.float32}
    if not may_round:
        assert not asked
        return
    # Asked of what SDPA was then given: a mask, or none.
    assert [params.attn_mask is not None for params in asked] == [False, True, False]
    assert all(params.enable_gqa for params in asked)


@pytest.mark.parametrize(
    ("switch", "rounds"),
    [
        ("pass", False),
        ("torch.backends.cuda.matmul.allow_tf32 = True", True),
        ("torch.set_float32_matmul_precision('high')", True),
        ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", True),
        ("torch.backends.cuda.matmul.fp32_precision = 'ieee'", False),
        ("torch.backends.fp32_precision = 'tf32'", True),
    ],
)
def test_tf32_is_noticed_by_whichever_switch_it_is_allowed(switch: str, rounds: bool) -> None:
    # In a process of its own: once mixed, the switches of PyTorch cannot be set back.
    code = f"import torch; from tuner import fallback; {switch}; print(fallback._may_round())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == str(rounds)


def test_no_key_gives_zeros_and_zero_gradients() -> None:
    q, k = torch.randn(1, 2, 5, 40), torch.randn(1, 2, 0, 40)
    q.requires_grad_()
    out = fallback.attention(q, k, k[..., :24], False, 0.1)
    assert out.shape == (1, 2, 5, 24)
    assert not out.count_nonzero()
    out.sum().backward()
    assert not q.grad.count_nonzero()


def test_a_reason_is_announced_once() -> None:
    fallback._announced.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for reason in ("one", "two", "one", "two"):
            fallback.announce(reason)
    assert [str(w.message) for w in caught] == [
        "served by PyTorch's SDPA: one",
        "served by PyTorch's SDPA: two",
    ]
