"""The correctness gate on the CPU: what passes, and that each kind of mistake is seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from kernels.attention.problem import Problem  # noqa: E402
from kernels.attention.reference import attention_reference  # noqa: E402
from tuner.evaluate.gate import MOST, TOLERANCE, Gate  # noqa: E402
from tuner.evaluate.inputs import Inputs, odd_shapes  # noqa: E402

KINDS = [("fp16", True), ("fp16", False), ("bf16", True), ("bf16", False)]


@cache
def gate_of(dtype: str = "fp16", causal: bool = True) -> Gate:
    return Gate(Problem(64, 72, causal, dtype, 2, 3), "cpu")


def exact(inputs: Inputs) -> torch.Tensor:
    return attention_reference(inputs.q, inputs.k, inputs.v, inputs.sm_scale, inputs.causal)[0]


def right(inputs: Inputs) -> None:
    inputs.out.copy_(exact(inputs))


@pytest.mark.parametrize(("dtype", "causal"), KINDS)
def test_the_right_kernel_passes(dtype: str, causal: bool) -> None:
    gate = gate_of(dtype, causal)
    verdict = gate.check(right)
    assert not verdict.wrong
    assert 0 < verdict.max_diff < (TOLERANCE if dtype == "fp16" else MOST)
    assert not gate.check_last().wrong


def online(block: int, threshold: float, corrected: bool = True) -> Callable[[Inputs], None]:
    """Attention block by block with deferred rescaling, as kernels do it."""

    def launch(inputs: Inputs) -> None:
        q, k, v = (tensor.float() for tensor in (inputs.q, inputs.k, inputs.v))
        seqlen = q.shape[2]
        rows = torch.arange(seqlen)[:, None]
        stale = torch.full((*q.shape[:3], 1), -math.inf)
        total = torch.zeros((*q.shape[:3], 1))
        acc = torch.zeros_like(q)
        for start in range(0, seqlen, block):
            keys = slice(start, start + block)
            s = inputs.sm_scale / math.log(2) * (q @ k[:, :, keys].mT)
            if inputs.causal:
                hidden = torch.arange(start, start + s.shape[-1])[None] > rows
                s = s.masked_fill(hidden, -math.inf)
            top = s.amax(-1, keepdim=True)
            new = torch.where(top > stale + threshold, torch.maximum(top, stale), stale)
            new = torch.where(new.isinf(), top, new)
            safe = new.masked_fill(new.isinf(), 0.0)
            factor = torch.exp2(stale - safe) if corrected else torch.ones_like(safe)
            p = torch.exp2(s - safe)
            total = total * factor + p.sum(-1, keepdim=True)
            acc = acc * factor + p.to(inputs.v.dtype).float() @ v[:, :, keys]
            stale = new
        inputs.out.copy_(acc / total)

    return launch


@pytest.mark.parametrize(("dtype", "causal"), KINDS)
@pytest.mark.parametrize("threshold", [0.0, 8.0])
def test_deferred_rescaling_in_low_precision_passes(
    dtype: str, causal: bool, threshold: float
) -> None:
    verdict = gate_of(dtype, causal).check(online(64, threshold))
    assert not verdict.wrong, verdict


def test_a_forgotten_rescale_is_seen() -> None:
    assert "odd seqlen" in gate_of().check(online(64, 8.0, corrected=False)).wrong


def test_an_offset_of_a_twentieth_is_seen() -> None:
    def launch(inputs: Inputs) -> None:
        right(inputs)
        inputs.out[-1, -1, -1, -1] += 5e-2

    for kind in KINDS:
        assert "off by" in gate_of(*kind).check(launch).wrong


def test_an_unwritten_element_is_seen_in_heads_that_are_not_compared() -> None:
    gate = Gate(Problem(64, 72, True, "fp16", 3, 3), "cpu")

    def launch(inputs: Inputs) -> None:
        keep = inputs.out[0, 1, 5, 7].clone()
        right(inputs)
        if inputs.name == "its own shape":
            inputs.out[0, 1, 5, 7] = keep

    assert "NaN" in gate.check(launch).wrong


@pytest.mark.parametrize(("dtype", "causal"), KINDS)
def test_a_mistake_in_a_head_that_is_not_compared_is_seen(dtype: str, causal: bool) -> None:
    gate = Gate(Problem(64, 96, causal, dtype, 1, 8), "cpu")
    seen = gate.check(right)
    assert not seen.wrong
    assert seen.max_diff < (2e-3 if dtype == "fp16" else 2e-2)

    def launch(inputs: Inputs, head: int) -> None:
        right(inputs)
        if inputs.name == "its own shape":
            inputs.out[0, head, 50, 20] += 7e-2

    for head in (0, 4, 7, 1, 2, 3, 5, 6):  # the first three are compared with the reference
        verdict = gate.check(lambda inputs, head=head: launch(inputs, head))
        assert "off by" in verdict.wrong
        assert "its own shape" in verdict.wrong
    assert "off by" in gate.check_last().wrong


def no_memory(q: torch.Tensor) -> torch.Tensor:
    raise torch.OutOfMemoryError("out of memory")


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("theirs", "seen"),
    [
        (lambda right: torch.full_like(right, math.nan), False),
        (lambda right: torch.where(torch.arange(8)[:, None, None] == 3, math.nan, right), True),
        (lambda right: right + 0.2, True),
        (no_memory, False),
    ],
    ids=["NaN", "NaN in a head", "off", "no memory"],
)
def test_where_sdpa_itself_fails_it_condemns_nobody(
    monkeypatch: pytest.MonkeyPatch, dtype: str, theirs, seen: bool
) -> None:
    monkeypatch.setattr(
        "tuner.evaluate.gate.scaled_dot_product_attention",
        lambda q, k, v, is_causal: theirs(
            attention_reference(q, k, v, q.shape[-1] ** -0.5, is_causal)[0]
        ).to(q.dtype),
    )
    gate = Gate(Problem(64, 96, True, dtype, 1, 8), "cpu")
    verdict = gate.check(right)
    assert not verdict.wrong
    assert 0 < verdict.max_diff < 4e-2

    def launch(inputs: Inputs) -> None:
        right(inputs)
        if inputs.name == "its own shape":
            inputs.out[0, 3, 50, 20] += 0.5

    # It points to the wrong head, unless it is NaN in all or not there.
    assert bool(gate.check(launch).wrong) == seen


def test_a_read_past_the_end_is_seen() -> None:
    def launch(inputs: Inputs) -> None:
        q, k, v = inputs.q, inputs.k, inputs.v
        seqlen = q.shape[2]
        if k.stride(1) > seqlen * k.stride(2):  # there is something behind the end
            longer = -(-seqlen // 64) * 64
            v = v.as_strided((*v.shape[:2], longer, v.shape[3]), v.stride())
            k = k.as_strided((*k.shape[:2], longer, k.shape[3]), k.stride())
        scores = inputs.sm_scale * (q.float() @ k.float().mT)
        columns = torch.arange(k.shape[2])
        hidden = columns[None] >= seqlen
        if inputs.causal:
            hidden = hidden | (columns[None] > torch.arange(seqlen)[:, None])
        # Masked as it should be, but 0·NaN is NaN.
        p = torch.softmax(scores.masked_fill(hidden, -math.inf), -1)
        inputs.out.copy_(p @ v.float())

    assert "NaN" in gate_of().check(launch).wrong


def test_a_wrong_mask_is_seen() -> None:
    def launch(inputs: Inputs) -> None:
        out = attention_reference(inputs.q, inputs.k, inputs.v, inputs.sm_scale, True, -1)[0]
        inputs.out.copy_(out)

    assert gate_of().check(launch).wrong


def test_mistakes_after_many_launches_are_seen() -> None:
    gate = gate_of(causal=False)
    assert not gate.check(right).wrong
    gate.own.out[0, 0, 3] += 1.0
    assert "off by 1" in gate.check_last().wrong


def test_the_inputs_are_as_hard_as_they_say() -> None:
    problem = Problem(128, 4096, False, "fp16", 4, 16)
    odd, short = odd_shapes(problem.specialization, "cpu")
    scores = odd.sm_scale * (odd.q.float() @ odd.k.float().mT)
    assert 3 < scores[0].abs().max() < 10
    assert 1000 < scores[1].abs().max() < 4000
    # The running maximum of a rising row grows at nearly every spike, by more than 8 in base 2.
    maximum = scores[2, 0, 1000].cummax(-1).values / math.log(2)
    jumps = maximum.diff()
    assert (jumps > 8).sum() >= 6
    assert ((jumps > 2) & (jumps < 8)).sum() >= 6
    # And falls, block by block, when the keys are read from the end.
    backwards = scores[2, 0, 1001].flip(-1).cummax(-1).values / math.log(2)
    assert (backwards.diff() > 8).sum() >= 6
    for inputs in (odd, short):
        for tensor in (inputs.q, inputs.k, inputs.v):
            assert tensor.isfinite().all()
