"""What the entry points accept. A refusal is one sentence: the argument, what came, what may."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kernels.attention.printable import shown

# Of a scale: times log2(e), and the next power of two, must be finite in fp32 too.
_LARGEST = torch.finfo(torch.float32).max / 4
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Words:
    """What an entry point calls its arguments, and where its tensors keep heads and positions."""

    q: str = "q"
    k: str = "k"
    v: str = "v"
    causal: str = "causal"
    scale: str = "sm_scale"
    heads: int = 1  # dimensions
    seqlen: int = 2

    @property
    def layout(self) -> str:
        return "(batch, nheads, seqlen, headdim)" if self.heads == 1 else (
            "(batch, seqlen, nheads, headdim)"
        )  # fmt: skip


OURS = Words()
SDPA = Words("query", "key", "value", "is_causal", "scale")
FLASH = Words(scale="softmax_scale", heads=2, seqlen=1)


def validate(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float | None, words: Words = OURS
) -> float:
    """Check the arguments of an attention forward, laid out as `words` says; return the scale to
    use.

    Plain attribute reads only, so that torch.compile traces through it.

    Raises:
        TypeError: not tensors, not floating point, mixed dtypes, or a wrong kind of number.
        ValueError: wrong rank, device, or shapes that do not fit together.
    """
    for name, tensor in ((words.q, q), (words.k, k), (words.v, v)):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{name} is of type {type(tensor).__name__}, but must be a torch.Tensor"
            )
        if tensor.is_nested or tensor.layout != torch.strided:
            kind = "nested" if tensor.is_nested else str(tensor.layout)
            raise TypeError(f"{name} is {kind}, but must be a dense tensor (torch.strided)")
        if tensor.dim() != 4:
            raise ValueError(
                f"{name} has {tensor.dim()} dimensions, but must have 4: {words.layout}"
            )
        if tensor.dtype not in _FLOATS:
            raise TypeError(
                f"{name} is {tensor.dtype}, but must be torch.float16 or torch.bfloat16"
            )
        if not tensor.is_cuda:
            raise ValueError(f"{name} is on {tensor.device}, but must be on a CUDA device")
    for name, tensor in ((words.k, k), (words.v, v)):
        if tensor.dtype != q.dtype:
            raise TypeError(f"{name} is {tensor.dtype}, but must have {words.q}'s dtype {q.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}, but must be on {words.q}'s {q.device}")
        if tensor.shape[0] != q.shape[0]:
            raise ValueError(
                f"{name} has batch {tensor.shape[0]}, but must have {words.q}'s batch {q.shape[0]}"
            )
    if k.shape[3] != q.shape[3]:
        raise ValueError(
            f"{words.k} has headdim {k.shape[3]}, but must have {words.q}'s headdim {q.shape[3]}"
        )
    for name, tensor in ((words.q, q), (words.v, v)):
        if tensor.shape[3] == 0:
            raise ValueError(f"{name} has headdim 0, but must have at least 1")
    heads, seqlen = words.heads, words.seqlen
    if v.shape[heads] != k.shape[heads] or v.shape[seqlen] != k.shape[seqlen]:
        raise ValueError(
            f"{words.v} has (nheads, seqlen) {(v.shape[heads], v.shape[seqlen])}, but must have "
            f"{words.k}'s {(k.shape[heads], k.shape[seqlen])}"
        )
    ours, theirs = q.shape[heads], k.shape[heads]
    if theirs != ours and (theirs == 0 or ours % theirs != 0):
        raise ValueError(
            f"{words.k} has {theirs} heads, but their number must divide {words.q}'s {ours}"
        )
    if not isinstance(causal, bool):
        raise TypeError(f"{words.causal} is {shown(causal)}, but must be True or False")
    return _scale(q.shape[3], sm_scale, words.scale)


def _scale(headdim: int, given: float | None, name: str) -> float:
    if given is None:
        return 1 / math.sqrt(headdim)
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise TypeError(f"{name} is {shown(given)}, but must be an int, a float or None")
    if not abs(given) <= _LARGEST:  # nor is NaN
        raise ValueError(f"{name} is {shown(given)}, but must be finite, also in fp32")
    return float(given)


def validate_flag(name: str, value: object) -> None:
    """Check an argument that turns something on or off.

    Raises:
        TypeError: it is neither True nor False.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {shown(value)}, but must be True or False")


def refuse_tangents(q: Tensor, k: Tensor, v: Tensor, words: Words = OURS) -> None:
    """Check that nothing differentiates but torch.autograd in reverse: the operator, which has no
    forward-mode derivative, would drop a tangent without a word, and torch.func's transforms do not
    take what torch.library registers.

    Raises:
        NotImplementedError: a tensor has a tangent, or is torch.func's.
    """
    named = ((words.q, q), (words.k, k), (words.v, v))
    if forward_ad._current_level >= 0:
        for name, tensor in named:
            if forward_ad.unpack_dual(tensor).tangent is not None:
                raise NotImplementedError(
                    f"{name} has a tangent, but attention has no forward-mode derivative"
                )
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        for name, tensor in named:
            if torch.is_grad_enabled() and _differentiated_by_func(tensor):
                raise NotImplementedError(
                    f"{name} is differentiated by torch.func, but must be by torch.autograd"
                )


def _differentiated_by_func(tensor: Tensor) -> bool:
    """Whether a transform differentiates by it, maybe within others; they wrap what they do not."""
    wrapped = torch._C._functorch
    while wrapped.is_functorch_wrapped_tensor(tensor):
        if wrapped.is_gradtrackingtensor(tensor) and tensor.requires_grad:
            return True
        tensor = wrapped.get_unwrapped(tensor)
    return False
