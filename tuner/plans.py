"""How calls of one shape are served: found once, by the records in force or a pinned config, and
kept until those change."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kernels.attention import registry
from kernels.attention.problem import HEADDIMS, Problem, Specialization
from kernels.attention.template import Binary, CompileError, Template
from tuner import capture, caution, device, liveness, misses, repetition, snapshot
from tuner.resolve import Resolution
from tuner.target import Target
from tuner.trial import Candidate

_KEPT = 65536  # plans; a seqlen that grows token by token takes one for each

DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


class UntunedWarning(UserWarning):
    """Attention runs by a config that was not tuned for this kernel, Triton and hardware."""


@dataclass(frozen=True)
class Plan:
    """How calls of one shape are served: by a binary of a template, or (None) by SDPA."""

    template: Template | None
    binary: Binary | None
    refusal: str = ""


_Key = tuple[Any, ...]
_plans: dict[_Key, Plan] = {}
# A CUDA graph within which plans were renewed, and those it began with.
_graph: int | None = None
_former: dict[_Key, Plan] = {}
_pinned: tuple[Candidate, ...] = ()
_warned: set[tuple[Any, ...]] = set()
_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def plan_for(q: Tensor, k: Tensor, v: Tensor, causal: bool, lse: bool) -> Plan:
    """How a call with these tensors, (batch, heads, seqlen, headdim) each, is served."""
    key = _key(q, k, v, causal, lse)
    return _plans.get(key) or _make(key, q, k, v, causal, lse)


def known(q: Tensor, k: Tensor, v: Tensor, causal: bool, lse: bool) -> Plan | None:
    """The plan for such a call, if there is one already."""
    return _plans.get(_key(q, k, v, causal, lse))


def renew(change: Callable[[], None]) -> None:
    """Make `change` to what plans follow from; every shape is planned anew at its next call, except
    inside a CUDA graph that the caller is capturing, which goes on as it began. (One that another
    thread is capturing follows the change: nothing tells which began before.)"""
    global _graph, _former
    with _lock:
        change()
        graph = capture.current()
        # The earliest that a graph began with, should there be several renewals within it.
        before = _former if graph is not None and graph == _graph else {}
        _graph, _former = graph, {} if graph is None else {**_plans, **before}
        _plans.clear()
        repetition.forget()


def pin(candidates: tuple[Candidate, ...]) -> None:
    """Serve by the first of `candidates` that can, instead of what the records say; call it within
    `renew`."""
    global _pinned
    _pinned = candidates


def resolution_for(target: Target, problem: Problem) -> Resolution:
    """Which config serves `problem` on `target`: a pinned one, else the records' choice.

    Raises:
        LookupError: no template serves it.
    """
    for candidate in _pinned:
        if liveness.refusal(candidate, problem, target.hardware.capability) is None:
            return Resolution("pinned", candidate, "tuner.pin() says so")
    resolution = snapshot.current().resolve(target, problem)
    if _pinned:
        return replace(resolution, reason=f"the pinned config cannot; {resolution.reason}")
    return resolution


def _key(q: Tensor, k: Tensor, v: Tensor, causal: bool, lse: bool) -> _Key:
    return (q.device.index, q.dtype, q.shape, k.shape, v.shape[3], causal, lse)


def _make(key: _Key, q: Tensor, k: Tensor, v: Tensor, causal: bool, lse: bool) -> Plan:
    with _lock:
        plan = _plans.get(key)
        if plan is not None:
            return plan
        graph = capture.current()
        if graph is None:
            renew_if_changed()
        elif graph == _graph and key in _former:
            return _former[key]
        if len(_plans) >= _KEPT:
            _plans.clear()
        plan = _plans[key] = _find(q, k, v, causal, lse)
        return plan


def renew_if_changed(at_once: bool = False) -> None:
    """Take up the records again if the database changed since they were read. Looks every few
    seconds at most, unless `at_once`."""
    with _lock:
        fresh = snapshot.newer(at_once)
        if fresh is not None:
            renew(lambda: snapshot.replace(fresh))


def _find(q: Tensor, k: Tensor, v: Tensor, causal: bool, lse: bool) -> Plan:
    if q.dtype not in DTYPES:
        return Plan(None, None, f"the inputs are {q.dtype}, templates take float16 and bfloat16")
    batch, heads, seqlen_q, headdim = q.shape
    if v.shape[3] != headdim:
        refusal = f"v has headdim {v.shape[3]} and q {headdim}, but both must be one of {HEADDIMS}"
        return Plan(None, None, refusal)
    target = device.detect(q.device.index)
    try:
        problem = Problem(
            headdim, max(seqlen_q, k.shape[2], 1), causal, DTYPES[q.dtype],
            max(batch, 1), max(heads, 1),
        )  # fmt: skip
        resolution = resolution_for(target, problem)
    except LookupError as error:
        return Plan(None, None, str(error))
    caution.debug("%s: %s, %s", problem, resolution.source, resolution.reason)
    if q.numel() and k.numel():
        _report(target, problem, resolution, square=seqlen_q == k.shape[2])
    capability = target.hardware.capability
    specialization = replace(problem.specialization, lse=lse)
    tried = resolution.candidate
    try:
        return _load(tried, specialization, capability)
    except CompileError as error:
        template = registry.get(tried.template)
        default = Candidate(tried.template, template.default(problem, capability))
        if tried == default:
            return Plan(None, None, _uncompiled(default, error))
        said = " ".join(str(error).split())
        caution.log(f"{tried} does not compile here ({said}): using the default")
    try:
        return _load(default, specialization, capability)
    except CompileError as error:
        return Plan(None, None, _uncompiled(default, error))


def _uncompiled(candidate: Candidate, error: CompileError) -> str:
    return f"the {candidate.template} kernel does not compile here: {error}"


def _report(target: Target, problem: Problem, resolution: Resolution, square: bool) -> None:
    """Note a problem that has no record of its own; warn of one that has none near either.

    Args:
        square: there are as many keys as queries, as in all that a search can measure. A decoder's
            steps, each with a key more, are nothing to tune by.
    """
    source = resolution.source
    if square and source not in ("exact", "pinned"):
        misses.note(problem, target, source)
    key = (problem.specialization, target.hardware)
    if source in ("stale", "family", "default") and key not in _warned:
        _warned.add(key)
        caution.warn(
            f"attention for {problem} runs by a {source} config: {resolution.reason} "
            "(`tuner search` tunes it; said once for this headdim, mask and dtype)",
            UntunedWarning,
        )


@lru_cache(maxsize=256)
def _load(candidate: Candidate, specialization: Specialization, capability: int) -> Plan:
    """One binary for all shapes that share it: an unseen seqlen compiles and loads nothing."""
    template = registry.get(candidate.template)
    return Plan(template, template.compile(specialization, candidate.config, capability))
