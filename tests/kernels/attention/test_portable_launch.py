"""What a launch hands to the kernel, seen by a kernel that only remembers it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from kernels.attention import compiler, launching
from kernels.attention.config import Config
from kernels.attention.portable import PortableTemplate, _arguments
from kernels.attention.problem import Problem, Specialization
from kernels.attention.template import Binary, Resources

TEMPLATE = PortableTemplate()


@dataclass
class Loaded:
    """In place of compiler.Loaded."""

    kernel: Any
    calls: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    described: list[tuple[Any, ...]] = field(default_factory=list)

    def descriptor(self, index, shape, strides):
        def of(address):
            self.described.append((index, address, shape, strides))
            return (f"descriptor {index}", *shape, *strides)

        return of

    def __call__(self, blocks, stream, inputs, out, lse, after):
        assert stream == 77
        self.calls.append((blocks, (*inputs, out, lse, *after)))


class Kernel:
    """In place of Triton's CompiledKernel."""


@pytest.fixture(autouse=True)
def remembering(monkeypatch):
    loads: list[Loaded] = []

    def load(kernel):
        loads.append(Loaded(kernel))
        return loads[-1]

    monkeypatch.setattr(compiler, "Loaded", load)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 77, raising=False)
    return loads


def binary_of(causal=True, lse=False, **changes):
    specialization = Specialization(128, causal, "fp16", lse)
    config = Config(TEMPLATE.default(Problem.on_grid(128, 4096, causal), 90), **changes)
    return Binary(Kernel(), config, specialization, lambda _: Resources(0, 0, 0))


def named(binary, arguments):
    """The arguments by the kernel's names, descriptors as their first value."""
    values, given = {}, list(arguments)
    for argument in _arguments(binary.specialization, binary.config):
        taken = 9 if argument.type.startswith("tensordesc") else 1
        values[argument.name] = given[0]
        del given[:taken]
    assert not given
    return values


def tensors(seqlen_q=300, seqlen_k=300):
    q = torch.zeros(2, 4, seqlen_q, 128, dtype=torch.float16)
    k, v = torch.zeros(2, 2, 2, seqlen_k, 128, dtype=torch.float16)
    return q, k, v, torch.zeros_like(q)


@pytest.mark.parametrize("tma", [True, False])
@pytest.mark.parametrize("lse", [True, False])
def test_every_argument_has_its_place(remembering, tma, lse):
    binary = binary_of(lse=lse, tma=tma)
    q, k, v, out = tensors()
    logs = torch.zeros(2, 4, 300) if lse else None
    TEMPLATE.launch(binary, q, k, v, out, logs, 0.5)
    ((blocks, arguments),) = remembering[0].calls
    assert blocks == 5 * 2 * 4
    values = named(binary, arguments)
    assert values["out"] == out.data_ptr()
    assert values["lse"] == (logs.data_ptr() if lse else None)
    assert (values["heads"], values["group"]) == (4, 2)
    assert (values["seqlen_q"], values["seqlen_k"], values["causal_offset"]) == (300, 300, 0)
    assert values["scale"] == pytest.approx(0.5 * math.log2(math.e))
    assert values["coarse"] == 1.0
    assert (values["out_batch"], values["out_head"], values["out_row"]) == out.stride()[:3]
    if tma:
        assert values["v"] == "descriptor 2"
        assert remembering[0].described == [
            (0, q.data_ptr(), (2, 4, 300, 128), q.stride()),
            (1, k.data_ptr(), (2, 2, 300, 128), k.stride()),
            (2, v.data_ptr(), (2, 2, 300, 128), v.stride()),
        ]
    else:
        assert (values["q"], values["k"], values["v"]) == tuple(t.data_ptr() for t in (q, k, v))
        assert (values["k_batch"], values["k_head"], values["k_row"]) == k.stride()[:3]


def test_keys_hidden_from_all_rows_are_cut_off(remembering):
    binary = binary_of()
    q, k, v, out = tensors(100, 300)
    TEMPLATE.launch(binary, q, k, v, out, None, 0.5, 50)
    values = named(binary, remembering[0].calls[0][1])
    assert (values["seqlen_k"], values["causal_offset"]) == (150, 50)
    assert [shape for _, _, shape, _ in remembering[0].described][1:] == 2 * [(2, 2, 150, 128)]


@pytest.mark.parametrize("offset", [10**12, 300])
def test_far_offsets_are_the_nearest_that_means_the_same(remembering, offset):
    binary = binary_of()
    TEMPLATE.launch(binary, *tensors(), None, 0.5, offset)
    values = named(binary, remembering[0].calls[0][1])
    assert (values["seqlen_k"], values["causal_offset"]) == (300, 300)


@pytest.mark.parametrize(
    ("seqlen_k", "causal", "offset"), [(0, False, 0), (0, True, 0), (300, True, -(10**12))]
)
def test_without_a_key_to_see_nothing_runs(remembering, seqlen_k, causal, offset):
    q, k, v, out = tensors(100, seqlen_k)
    logs = torch.zeros(2, 4, 100)
    out.fill_(math.nan)
    TEMPLATE.launch(binary_of(causal, lse=True), q, k, v, out, logs, 0.5, offset)
    assert not remembering[0].calls
    assert (out == 0).all()
    assert (logs == -math.inf).all()


def test_zero_and_negative_scales(remembering):
    binary = binary_of(tma=False)
    q, k, v, out = tensors()
    for sm_scale in (0.0, -0.5):
        TEMPLATE.launch(binary, q, k, v, out, None, sm_scale)
    zero, negative = (named(binary, arguments) for _, arguments in remembering[0].calls)
    assert 0 < zero["scale"] < 1e-37
    assert zero["q"] == q.data_ptr()
    assert negative["scale"] > 0
    assert negative["q"] != q.data_ptr()


def test_a_repeated_launch_is_planned_once_and_loaded_once(remembering, monkeypatch):
    binary = binary_of()
    arguments = tensors()
    for _ in range(3):
        TEMPLATE.launch(binary, *arguments, None, 0.5)
    assert len(remembering) == 1
    assert len(remembering[0].calls) == 3
    assert len(remembering[0].described) == 3
    monkeypatch.setattr(launching, "_KEPT", 1)
    for sm_scale in (0.1, 0.2, 0.1):
        TEMPLATE.launch(binary, *arguments, None, sm_scale)
    assert len(remembering[0].described) == 4 * 3


def test_sets_of_addresses_are_bounded_over_all_launches(remembering, monkeypatch):
    binary = binary_of()
    monkeypatch.setattr(launching, "_described", {})
    monkeypatch.setattr(launching, "_KEPT_ADDRESSES", 3)
    arguments = tensors()
    scales = [0.1, 0.2, 0.3, 0.4, 0.5]
    for sm_scale in scales:  # a launch each
        TEMPLATE.launch(binary, *arguments, None, sm_scale)
    assert len(launching._described) == 2  # all were let go before the fourth
    before = len(remembering[0].described)
    TEMPLATE.launch(binary, *arguments, None, scales[-1])
    assert len(remembering[0].described) == before
    TEMPLATE.launch(binary, *arguments, None, scales[0])
    assert len(remembering[0].described) == before + 3


def test_strides_of_single_rows_and_heads_do_not_matter(remembering):
    binary = binary_of()
    odd = torch.zeros(1, 1, 1, 128, dtype=torch.float16).as_strided((1, 1, 1, 128), (7, 5, 3, 1))
    TEMPLATE.launch(binary, odd, odd, odd, odd, None, 0.5)
    assert {strides for *_, strides in remembering[0].described} == {(128, 128, 128, 1)}
