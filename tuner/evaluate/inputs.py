"""The tensors a candidate is checked and timed on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention.problem import Problem, Specialization

TORCH_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

# Not a multiple of any block, and prime, so not of any unrolling either.
ODD_SEQLEN = 1031
SHORT_SEQLEN = 17
# Rows of NaN behind every head of the odd inputs: a tile that reads past the end of its sequence
# finds them, and masking the scores does not hide a NaN in V, since 0·NaN is NaN.
_NAN_ROWS = 57

# Standard deviation of the large logits; the largest of them then come to about 2000.
_LARGE = 500.0
# Distance between the spikes of a staircase, and by how much (in e-folds) each exceeds the one
# before: kernels that defer rescaling do so up to 8·ln 2 = 5.5, so every other step forces one and
# the steps between leave a stale maximum in force.
_STRIDE = 61
_STEPS = (4.0, 7.0)


@dataclass(frozen=True)
class Inputs:
    """What one launch reads, and where it writes."""

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    causal: bool

    @property
    def sm_scale(self) -> float:
        return 1 / math.sqrt(self.q.shape[-1])


def own_shape(problem: Problem, device: str) -> Inputs:
    """Random normal inputs of the problem's own shape; candidates are timed on these."""
    draw = _drawing(device)
    dtype = TORCH_DTYPES[problem.dtype]
    shape = (problem.batch, problem.heads, problem.seqlen, problem.headdim)
    q, k, v = (draw(shape).to(dtype) for _ in range(3))
    return Inputs("its own shape", q, k, v, torch.empty_like(q), problem.causal)


def odd_shapes(specialization: Specialization, device: str) -> tuple[Inputs, Inputs]:
    """Small inputs that are hard: normal, large and staircase logits as the three batches of one
    odd seqlen, and a seqlen shorter than any block."""
    draw = _drawing(device)
    dim, causal = specialization.headdim, specialization.causal
    dtype = TORCH_DTYPES[specialization.dtype]

    shape = (3, 2, ODD_SEQLEN, dim)
    q, k, v = (draw(shape) for _ in range(3))
    q[1] *= _LARGE
    q[2], k[2] = _staircase(q[2], k[2])
    out = torch.empty(shape, dtype=dtype, device=device)
    q, k, v = (_nan_padded(tensor.to(dtype)) for tensor in (q, k, v))
    odd = Inputs("an odd seqlen", q, k, v, out, causal)

    shape = (1, 3, SHORT_SEQLEN, dim)
    q, k, v = (_nan_padded(draw(shape).to(dtype)) for _ in range(3))
    out = torch.empty(shape, dtype=dtype, device=device)
    return odd, Inputs("a short seqlen", q, k, v, out, causal)


def _staircase(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Keys whose logits form rising steps for even rows and falling ones for odd rows, so that the
    running maximum grows again and again whichever end a kernel starts from."""
    dim = q.shape[-1]
    rising = torch.ones(dim, device=q.device)
    falling = rising.clone()
    falling[::2] = -1  # orthogonal to the other
    q = 0.1 * q
    q[:, 0::2] += rising
    q[:, 1::2] += falling
    k = 0.1 * k
    spikes = range(_STRIDE - 1, k.shape[1], _STRIDE)
    heights = [0.0]
    for index in range(1, len(spikes)):
        heights.append(heights[-1] + _STEPS[index % 2])
    for position, up, down in zip(spikes, heights, reversed(heights)):
        k[:, position] += (up * rising + down * falling) / math.sqrt(dim)
    return q, k


def _nan_padded(tensor: Tensor) -> Tensor:
    batch, heads, seqlen, dim = tensor.shape
    store = tensor.new_full((batch, heads, seqlen + _NAN_ROWS, dim), math.nan)
    view = store[:, :, :seqlen]
    view.copy_(tensor)
    return view


def _drawing(device: str) -> Callable[[tuple[int, ...]], Tensor]:
    generator = torch.Generator(device).manual_seed(42)

    def draw(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    return draw
