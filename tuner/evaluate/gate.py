"""The correctness gate: what a candidate must compute before it is timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention.problem import Problem
from kernels.attention.reference import attention_reference
from tuner.evaluate.inputs import Inputs, odd_shapes, own_shape

# Largest |out − fp32 reference| that passes. fp16 outputs of up to 8 are rounded by 2e-3, and P by
# as much again.
TOLERANCE = 1e-2
# bf16 rounds outputs of up to 8 by 1.6e-2 alone: there the bar is twice the error that PyTorch's
# own SDPA makes in bf16 on the same inputs, up to a limit in case that is itself wrong.
_RELATIVE_TO_SDPA = 2.0
MOST = 5e-2

# Heads of the problem's own shape that are compared with the reference, which would take too long
# for all. The others are compared with PyTorch's own SDPA, which may be off itself by so many times
# what it is off in these.
_OWN_HEADS = 3
_OFF_ELSEWHERE = 2.0


@dataclass(frozen=True)
class Verdict:
    """The largest difference over all inputs, and what is wrong, empty if nothing is."""

    max_diff: float
    wrong: str = ""


class Gate:
    """Inputs of one problem with their references, computed once and kept on the device."""

    def __init__(self, problem: Problem, device: str) -> None:
        self.own = own_shape(problem, device)
        odd, short = odd_shapes(problem.specialization, device)
        rows = _spread_heads(problem.batch, problem.heads)
        self._own_probe = _Probe(self.own, rows)
        self._probes = (
            _Probe(short, _all_heads(short)),
            _Probe(odd, _all_heads(odd)),
            self._own_probe,
        )

    def check(self, launch: Callable[[Inputs], object]) -> Verdict:
        """Run `launch` on every input, into a poisoned output, and compare."""
        for probe in self._probes:
            probe.inputs.out.fill_(math.nan)
            launch(probe.inputs)
        return _judge(self._probes)

    def check_last(self) -> Verdict:
        """Compare what the last launch on the own shape left, such as after hundreds of timed ones:
        a race between warps may show only then."""
        return _judge((self._own_probe,))


class _Probe:
    """One input with the reference of the heads that are compared, and SDPA's output if these are
    not all."""

    def __init__(self, inputs: Inputs, heads: list[tuple[int, int]]) -> None:
        self.inputs = inputs
        self._heads = heads
        self._theirs: Tensor | None = None
        self._theirs_off = 0.0
        q, k, v = inputs.q, inputs.k, inputs.v
        self._references = [
            attention_reference(
                q[b : b + 1, h : h + 1],
                k[b : b + 1, h : h + 1],
                v[b : b + 1, h : h + 1],
                inputs.sm_scale,
                inputs.causal,
            )[0][0, 0]
            for b, h in heads
        ]
        self.tolerance = TOLERANCE
        some = len(heads) < q.shape[0] * q.shape[1]
        if not some and q.dtype != torch.bfloat16:
            return
        # Contiguous, lest a backend of theirs trips over the NaN behind our sequences.
        q, k, v = (tensor.contiguous() for tensor in (q, k, v))
        theirs = scaled_dot_product_attention(q, k, v, is_causal=inputs.causal)
        off = float(self._largest(theirs))
        if q.dtype == torch.bfloat16:
            bar = _RELATIVE_TO_SDPA * off
            self.tolerance = max(TOLERANCE, min(bar, MOST)) if math.isfinite(bar) else MOST
        if some and off < MOST:  # else it is itself wrong
            self._theirs, self._theirs_off = theirs, _OFF_ELSEWHERE * off

    def difference(self) -> Tensor:
        """Largest difference of what is in the output, on the device; NaN if any of it is."""
        out = self.inputs.out
        # The sum is NaN where any of its terms is, in the heads that are not compared too.
        found = self._largest(out) + out.sum(dtype=torch.float32) * 0
        if self._theirs is None:
            return found
        beside = (out - self._theirs).abs().amax().float() - self._theirs_off
        return torch.maximum(found, beside)  # NaN where one is

    def _largest(self, out: Tensor) -> Tensor:
        return torch.stack(
            [
                (out[b, h].float() - reference).abs().amax()
                for (b, h), reference in zip(self._heads, self._references)
            ]
        ).amax()


def _judge(probes: tuple[_Probe, ...]) -> Verdict:
    # One transfer for all: each would wait for the GPU.
    differences: list[float] = torch.stack([probe.difference() for probe in probes]).tolist()
    for probe, difference in zip(probes, differences):
        where = probe.inputs.name
        if math.isnan(difference):
            return Verdict(difference, f"NaN, or an element never written, on {where}")
        if not difference < probe.tolerance:
            bar = probe.tolerance
            return Verdict(difference, f"off by {difference:.2g} on {where}, {bar:.2g} is allowed")
    return Verdict(max(differences))


def _all_heads(inputs: Inputs) -> list[tuple[int, int]]:
    return [(b, h) for b in range(inputs.q.shape[0]) for h in range(inputs.q.shape[1])]


def _spread_heads(batch: int, heads: int) -> list[tuple[int, int]]:
    """The first head, the last, and some in the middle."""
    last = batch * heads - 1
    flat = {round(last * step / (_OWN_HEADS - 1)) for step in range(_OWN_HEADS)}
    return [divmod(index, heads) for index in sorted(flat)]
