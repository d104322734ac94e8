"""A kernel and a device for machines without a GPU: the definition of attention, on CPU tensors."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from kernels.attention.problem import Specialization
from kernels.attention.reference import attention_reference
from kernels.attention.template import Binary, Resources, Template
from tuner import backward, capture, device, forward, misses, plans, repetition, runtime, snapshot
from tuner.snapshot import Snapshot
from tuner.target import Hardware, Target
from tuner.trial import Candidate

H100 = Target(Hardware(90, 132, 80, 700), "NVIDIA H100 80GB HBM3", "3.6.0", "2.11.0", "580.1")


def at(address: int, like: torch.Tensor) -> torch.Tensor:
    """The tensor with shape and strides of `like` that lies at an address."""
    extent = 1 + sum((size - 1) * step for size, step in zip(like.shape, like.stride()))
    memory = (ctypes.c_char * (extent * like.element_size())).from_address(address)
    return torch.frombuffer(memory, dtype=like.dtype).as_strided(like.shape, like.stride())


@dataclass
class StandIn(Template):
    """In place of every template: remembers what it loaded and launched."""

    name: str = "stand-in"
    loaded: list[tuple[Candidate, Specialization]] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)
    capturing: int | None = None  # the id of a CUDA graph
    version = "stand-in"

    def load(self, candidate: Candidate, specialization: Specialization, capability: int) -> Any:
        self.loaded.append((candidate, specialization))
        binary = Binary(object(), candidate.config, specialization, lambda _: Resources(0, 0, 0))
        return plans.Plan(self, binary)

    def prepare(self, binary, q, k, v, out, sm_scale, causal_offset=0):
        shape = torch.empty(q.shape[:3], dtype=torch.float32)

        def launch(q_at, k_at, v_at, out_at, lse_at, stream):
            assert stream == 77
            assert (lse_at is not None) == binary.specialization.lse
            self.launched.append("repeated")
            tensors = (at(a, t) for a, t in zip((q_at, k_at, v_at, out_at), (q, k, v, out)))
            lse = None if lse_at is None else at(lse_at, shape)
            self.compute(binary, *tensors, lse, sm_scale, causal_offset)

        return launch

    def launch(self, binary, q, k, v, out, lse, sm_scale, causal_offset=0):
        assert (lse is not None) == binary.specialization.lse
        self.launched.append("launched")
        self.compute(binary, q, k, v, out, lse, sm_scale, causal_offset)

    def compute(self, binary, q, k, v, out, lse, sm_scale, causal_offset):
        result, logs = attention_reference(
            q, k, v, sm_scale, binary.specialization.causal, causal_offset
        )
        out.copy_(result)
        if lse is not None:
            lse.copy_(logs)

    def space(self, specialization):
        raise NotImplementedError

    reject = default = supports = compile = space


@contextlib.contextmanager
def standing_in() -> Iterator[StandIn]:
    """CPU tensors are served as if they were on an H100, by the definition."""
    template = StandIn()
    library = torch.library.Library("attention_tuner", "IMPL")
    library.impl("forward", forward._forward, "CPU")
    library.impl("backward", backward.gradients, "CPU")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "detect", lambda _: H100)
        patch.setattr(plans, "_load", template.load)
        patch.setattr(plans, "_plans", {})
        patch.setattr(plans, "_former", {})
        patch.setattr(plans, "_graph", None)
        patch.setattr(plans, "_warned", set())
        patch.setattr(plans, "_pinned", ())
        patch.setattr(misses, "_found", {})
        patch.setattr(misses, "_written", set())
        patch.setattr(snapshot, "_holder", snapshot._Holder(Snapshot({}, "empty")))
        patch.setattr(runtime, "validate", _scale)
        patch.setattr(torch.cuda, "current_device", lambda: None)
        patch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
        patch.setattr(capture, "current", lambda: template.capturing)
        patch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
        patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 77, raising=False)
        repetition.forget()
        yield template
        repetition.forget()
    library._destroy()


def _scale(q, k, v, causal, sm_scale, words=None):
    return q.shape[3] ** -0.5 if sm_scale is None else float(sm_scale)
