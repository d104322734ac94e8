"""The forward that people call: it reads the records in force and launches what they say.

Nothing is tuned here and no tuning library is loaded. The first call of a shape resolves its config
and loads the kernel; one like an earlier call costs a dictionary lookup and a launch, as repetition
says.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.attention import registry
from kernels.attention.layout import aligned, readable
from kernels.attention.problem import Problem, Specialization
from kernels.attention.template import Binary, CompileError, Template
from tuner import device, fallback, snapshot
from tuner.repetition import forget, remember, repeat
from tuner.resolve import Resolution
from tuner.snapshot import Snapshot
from tuner.target import Target
from tuner.trial import Candidate
from tuner.validation import validate

_logger = logging.getLogger("tuner")

_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


def custom_attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = True,
    sm_scale: float | None = None,
    *,
    strict: bool = False,
) -> Tensor:
    """softmax(sm_scale·q·kᵀ + mask)·v by the fastest kernel known for this shape and device.

    Args:
        q: (batch, nheads, seqlen, headdim), fp16 or bf16, on a CUDA device.
        k, v: the same, or with fewer heads (a divisor) and another seqlen.
        causal: query i sees keys j ≤ i (top-left alignment, as SDPA).
        sm_scale: factor on q·kᵀ; None is 1/√headdim.
        strict: raise where no template serves the call, instead of SDPA with one warning.

    Returns:
        (batch, nheads, seqlen, headdim) in q's dtype and layout. Inputs that a kernel cannot read
        in place (last stride not 1, rows not aligned to 16 bytes) are copied. Gradients are those
        of SDPA, by recomputation; there are none of second order, and none inside one graph of
        torch.compile. The same call gives the same bits; so does the same sequence in another
        batch, unless another config serves that (see `lookup`).

    Raises:
        TypeError, ValueError: an argument is wrong; one sentence names it.
        NotImplementedError: strict, and no template serves the call; or fullgraph=True of
            torch.compile, and a gradient is to be recorded.
    """
    if not torch.compiler.is_compiling():
        out = repeat(q, k, v, causal, sm_scale)
        if out is not None:
            return out
    scale = validate(q, k, v, causal, sm_scale)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        if torch.compiler.is_compiling():
            raise NotImplementedError(
                "gradients are recorded outside of torch.compile's graphs only"
            )
        out = _Differentiable.apply(q, k, v, causal, scale, strict)  # type: ignore[no-untyped-call]
    else:
        out = _operator(q, k, v, causal, scale, strict)
        if not torch.compiler.is_compiling():
            _remember(q, k, v, causal, sm_scale, scale)
    return out


def lookup(
    headdim: int,
    seqlen: int,
    causal: bool = True,
    dtype: str = "fp16",
    batch: int | None = None,
    heads: int | None = None,
    target: Target | None = None,
) -> Resolution:
    """Which config would serve this problem, from which record, and why.

    Args:
        batch, heads: by default those of the benchmark grid (16384 tokens, hidden size 2048).
        target: by default the current CUDA device.

    Raises:
        ValueError: a field is out of its domain.
        LookupError: no template serves it.
        RuntimeError: no target is given and there is no CUDA device.
    """
    problem = Problem.on_grid(headdim, seqlen, causal, dtype, batch, heads)
    if target is None:
        if not torch.cuda.is_available():
            raise RuntimeError("there is no CUDA device here: give a target")
        target = device.detect(torch.cuda.current_device())
    return snapshot.current().resolve(target, problem)


def use(database: str | Path | None = None) -> str:
    """Read the records again, from `database` over the shipped ones (None: TUNER_DB, else the
    user's own). Shapes met before are resolved anew at their next call; captured CUDA graphs keep
    what they captured.

    Returns:
        The snapshot's digest, equal wherever the same records are in force.
    """
    fresh = Snapshot.load(database)
    with _plans_lock:
        snapshot.replace(fresh)
        _plans.clear()
        forget()
    return fresh.digest


@dataclass(frozen=True)
class _Plan:
    """How calls of one shape are served: by a binary of a template, or (None) by SDPA."""

    template: Template | None
    binary: Binary | None
    refusal: str = ""


_Key = tuple[Any, ...]
_plans: dict[_Key, _Plan] = {}
_plans_lock = threading.RLock()


def _renew_lock() -> None:
    global _plans_lock
    _plans_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float, strict: bool
) -> Tensor:
    shape = q.shape
    key = (q.device.index, q.dtype, shape, k.shape, v.shape[3], causal)
    plan = _plans.get(key)
    if plan is None:
        plan = _make_plan(key, q, k, v, causal)
    if plan.template is None:
        if strict:
            raise NotImplementedError(plan.refusal)
        if q.numel() == 0:
            return _like(q, v)
        fallback.announce(plan.refusal)
        return _in_layout_of(q, v, fallback.attention(q, k, v, causal, sm_scale))
    out = torch.empty_like(q)
    if out.numel() == 0:
        return out
    if k.shape[2] == 0:
        return out.zero_()
    index = q.device.index
    if index == torch.cuda.current_device():
        _launch(plan, q, k, v, out, sm_scale)
    else:
        with torch.cuda.device(index):
            _launch(plan, q, k, v, out, sm_scale)
    return out


def _launch(plan: _Plan, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sm_scale: float) -> None:
    template, binary = plan.template, plan.binary
    assert template is not None
    assert binary is not None
    q, k, v = (readable(tensor) for tensor in (q, k, v))
    target = readable(out)
    template.launch(binary, q, k, v, target, None, sm_scale)
    if target is not out:
        out.copy_(target)


def _remember(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float | None, scale: float
) -> None:
    """Let calls like this one, which has just been served, go straight to the launch."""
    if type(q) is not Tensor or scale < 0 or q.numel() == 0:
        return
    plan = _plans.get((q.device.index, q.dtype, q.shape, k.shape, v.shape[3], causal))
    if plan is None or plan.template is None or plan.binary is None:
        return
    out = torch.empty_like(q)
    if not all(aligned(tensor) for tensor in (q, k, v, out)):
        return
    with torch.cuda.device(q.device):
        launch = plan.template.prepare(plan.binary, q, k, v, out, scale)
    if launch is not None:
        remember(q, k, v, causal, sm_scale, launch)


def _make_plan(key: _Key, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> _Plan:
    with _plans_lock:
        plan = _plans.get(key)
        if plan is None:
            plan = _plans[key] = _find_plan(q, k, v, causal)
        return plan


def _find_plan(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> _Plan:
    if q.dtype not in _DTYPES:
        return _Plan(None, None, f"the inputs are {q.dtype}, templates take float16 and bfloat16")
    batch, heads, seqlen_q, headdim = q.shape
    if v.shape[3] != headdim:
        return _Plan(
            None, None, f"v has headdim {v.shape[3]} and q {headdim}, no template takes both"
        )
    target = device.detect(q.device.index)
    try:
        problem = Problem(
            headdim, max(seqlen_q, k.shape[2], 1), causal, _DTYPES[q.dtype],
            max(batch, 1), max(heads, 1),
        )  # fmt: skip
        resolution = snapshot.current().resolve(target, problem)
    except LookupError as error:
        return _Plan(None, None, str(error))
    _logger.debug("%s: %s, %s", problem, resolution.source, resolution.reason)
    capability = target.hardware.capability
    tried = resolution.candidate
    try:
        return _load(tried, problem.specialization, capability)
    except CompileError as error:
        template = registry.get(tried.template)
        default = Candidate(tried.template, template.default(problem, capability))
        _logger.warning("%s does not compile here (%s): using the default", tried, error)
    try:
        return _load(default, problem.specialization, capability)
    except CompileError as error:
        return _Plan(None, None, f"the {default.template} kernel does not compile here: {error}")


@lru_cache(maxsize=256)
def _load(candidate: Candidate, specialization: Specialization, capability: int) -> _Plan:
    """One binary for all shapes that share it: an unseen seqlen compiles and loads nothing."""
    template = registry.get(candidate.template)
    return _Plan(template, template.compile(specialization, candidate.config, capability))


def _like(q: Tensor, v: Tensor) -> Tensor:
    """An uninitialised output: q's layout, v's headdim."""
    if v.shape[3] == q.shape[3]:
        return torch.empty_like(q)
    return q.new_empty((*q.shape[:3], v.shape[3]))


def _in_layout_of(q: Tensor, v: Tensor, result: Tensor) -> Tensor:
    # SDPA's backends return layouts of their own; what the fake kernel promised must hold.
    out = _like(q, v)
    return result if result.stride() == out.stride() else out.copy_(result)


class _Differentiable(torch.autograd.Function):
    """Our forward; SDPA's backward by recomputation."""

    @staticmethod
    def forward(
        context: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float, strict: bool
    ) -> Tensor:
        context.save_for_backward(q, k, v)
        context.causal, context.sm_scale = causal, sm_scale
        out: Tensor = _operator(q, k, v, causal, sm_scale, strict)
        return out

    @staticmethod
    @once_differentiable  # a second derivative is an error, not zeros
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        needed = context.needs_input_grad[:3]
        with torch.enable_grad():
            q, k, v = inputs = [
                tensor.detach().requires_grad_(need)
                for tensor, need in zip(context.saved_tensors, needed)
            ]
            out = fallback.attention(q, k, v, context.causal, context.sm_scale)
        found = iter(torch.autograd.grad(out, [t for t in inputs if t.requires_grad], gradients[0]))
        return (*(next(found) if need else None for need in needed), None, None, None)


# Library, not the custom_op decorator: dispatch costs 2–3 µs a call instead of 11–15.
_library = torch.library.Library("attention_tuner", "DEF")
_library.define(
    "forward(Tensor q, Tensor k, Tensor v, bool causal, float sm_scale, bool strict) -> Tensor"
)
_library.impl("forward", _forward, "CUDA")
# What torch.compile and torch.export see: shape, dtype and strides.
_library.impl("forward", lambda q, _k, v, *_: _like(q, v), "Meta")
_operator: Callable[..., Tensor] = torch.ops.attention_tuner.forward.default
