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
# for all. In the others PyTorch's own SDPA says where to look: where an output is this far from it,
# in fp16 and bf16, the reference decides.
_OWN_HEADS = 3
_SUSPICIOUS = {torch.float16: TOLERANCE, torch.bfloat16: MOST}


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
        self._references = {head: self._reference(head) for head in heads}
        self._theirs: Tensor | None = None
        self.tolerance = TOLERANCE
        batch, count = inputs.q.shape[:2]
        some = len(heads) < batch * count
        if not some and inputs.q.dtype != torch.bfloat16:
            return
        theirs = _sdpa(inputs)
        if inputs.q.dtype == torch.bfloat16:
            off = math.nan if theirs is None else float(self._largest(theirs))
            bar = _RELATIVE_TO_SDPA * off
            self.tolerance = max(TOLERANCE, min(bar, MOST)) if math.isfinite(bar) else MOST
        if some:
            self._theirs = theirs

    def differences(self) -> Tensor:
        """On the device, the largest difference from the reference, NaN if anything in the output
        is; and from SDPA, in all heads."""
        out = self.inputs.out
        # The sum is NaN where any of its terms is, in the heads that are not compared too.
        found = self._largest(out) + out.sum(dtype=torch.float32) * 0
        if self._theirs is None:
            return torch.stack([found, torch.zeros_like(found)])
        return torch.stack([found, self._beside(self._theirs).amax().float()])

    def suspicious(self, beside: float) -> bool:
        """Whether an output so far from SDPA may be wrong; one is, or theirs, if that is NaN."""
        return not beside < _SUSPICIOUS[self.inputs.q.dtype]

    def second_opinion(self) -> float:
        """The largest difference from the reference in the head that is furthest from SDPA."""
        assert self._theirs is not None
        # NaN counts as the largest. Theirs, that is: of our own `differences` knows.
        flat = int(self._beside(self._theirs).flatten(2).amax(2).argmax())
        batch, head = divmod(flat, self.inputs.q.shape[1])
        reference = self._reference((batch, head))
        return float((self.inputs.out[batch, head].float() - reference).abs().amax())

    def _reference(self, head: tuple[int, int]) -> Tensor:
        b, h = head
        q, k, v = (
            tensor[b : b + 1, h : h + 1] for tensor in (self.inputs.q, self.inputs.k, self.inputs.v)
        )
        return attention_reference(q, k, v, self.inputs.sm_scale, self.inputs.causal)[0][0, 0]

    def _largest(self, out: Tensor) -> Tensor:
        return torch.stack(
            [
                (out[b, h].float() - reference).abs().amax()
                for (b, h), reference in self._references.items()
            ]
        ).amax()

    def _beside(self, theirs: Tensor) -> Tensor:
        return torch.sub(self.inputs.out, theirs).abs_()


def _sdpa(inputs: Inputs) -> Tensor | None:
    """PyTorch's own output; None where it has none, such as for want of memory."""
    # Contiguous, lest a backend of theirs trips over the NaN behind our sequences.
    q, k, v = (tensor.contiguous() for tensor in (inputs.q, inputs.k, inputs.v))
    try:
        return scaled_dot_product_attention(q, k, v, is_causal=inputs.causal)
    except RuntimeError:  # a context that is broken breaks what comes next, too
        return None


def _judge(probes: tuple[_Probe, ...]) -> Verdict:
    # One transfer for all: each would wait for the GPU.
    differences: list[list[float]] = torch.stack([probe.differences() for probe in probes]).tolist()
    most = 0.0
    for probe, (difference, beside) in zip(probes, differences):
        where, bar = probe.inputs.name, probe.tolerance
        if math.isnan(difference):
            return Verdict(difference, f"NaN, or an element never written, on {where}")
        if probe.suspicious(beside):
            difference = max(difference, probe.second_opinion())
        if not difference < bar:
            return Verdict(difference, f"off by {difference:.2g} on {where}, {bar:.2g} is allowed")
        most = max(most, difference)
    return Verdict(most)


def _all_heads(inputs: Inputs) -> list[tuple[int, int]]:
    return [(b, h) for b in range(inputs.q.shape[0]) for h in range(inputs.q.shape[1])]


def _spread_heads(batch: int, heads: int) -> list[tuple[int, int]]:
    """The first head, the last, and some in the middle."""
    last = batch * heads - 1
    flat = {round(last * step / (_OWN_HEADS - 1)) for step in range(_OWN_HEADS)}
    return [divmod(index, heads) for index in sorted(flat)]
