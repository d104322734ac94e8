"""The longer inline PTX of the Hopper kernel, run by an interpreter of the few instructions in it:
operands are where the constraints put them, and the right lanes' rows get the right factors."""

from __future__ import annotations

import math
import random
import re
import struct

import pytest

pytest.importorskip("triton")

from kernels.attention import hopper_ptx


def text(function, *arguments):
    """What a constexpr_function returns, in every Triton."""
    made = function(*arguments)
    return getattr(made, "value", made)


def as_fp32(number):
    return struct.unpack("f", struct.pack("f", number))[0]


def number_of(literal, state):
    if literal.startswith("0f"):
        return struct.unpack(">f", bytes.fromhex(literal[2:]))[0]
    return state[literal] if literal in state else int(literal)


def run(asm, operands, lane=0):
    """Run one thread, whose warp votes as it does; the registers afterwards, $i as operands[i]."""
    state = {f"${i}": value for i, value in enumerate(operands)} | {"%laneid": lane}
    skipping = None
    for line in re.split(r"[;\n]", asm.strip().removeprefix("{").removesuffix("}")):
        line = line.strip()
        while label := re.match(r"(\w+):\s*", line):
            skipping = None if skipping == label[1] else skipping
            line = line[label.end() :]
        if not line or line.startswith(".reg") or skipping:
            continue
        guard = re.match(r"@(\w+)\s+", line)
        if guard:
            line = line[guard.end() :]
            if not state[guard[1]]:
                continue
        operation, _, rest = line.partition(" ")
        if operation.startswith("bra"):
            skipping = rest.strip()
            continue
        target, *sources = (item.strip() for item in rest.split(","))
        values = [number_of(source, state) for source in sources if source != "0xffffffff"]
        state[target] = {
            "setp.eq.b32": lambda a, b: a == b,
            "setp.ge.s32": lambda a, b: a >= b,
            "setp.gt.s32": lambda a, b: a > b,
            "vote.sync.all.pred": lambda a: a,
            "mul.f32": lambda a, b: as_fp32(a * b),
            "mov.b32": lambda a: a,
            "mov.u32": lambda a: a,
            "min.s32": min,
            "sub.s32": lambda a, b: a - b,
            "and.b32": lambda a, b: a & b,
            "shl.b32": lambda a, b: a << b,
            "selp.f32": lambda a, b, p: a if p else b,
        }[operation](*values)
    return state


def row_of(element):
    """Which of its two rows an accumulator of a thread belongs to."""
    return element % 4 // 2


def tied(constraints, outputs):
    """How many operands an asm has: outputs, inputs tied to them in their order, other inputs."""
    kinds = constraints.split(",")
    assert [kind.startswith("=") for kind in kinds].count(True) == outputs
    assert kinds[outputs : 2 * outputs] == [str(i) for i in range(outputs)]
    return len(kinds)


@pytest.mark.parametrize("count", [32, 128])
def test_accumulators_are_scaled_unless_nothing_changed(count):
    operands = tied(text(hopper_ptx._scale_constraints, count), count)
    asm = text(hopper_ptx._scale_asm, count)
    acc = [as_fp32(random.uniform(-4, 4)) for _ in range(count)]
    alpha = [(0.5, 0.25)[row_of(e)] for e in range(count)]
    for busy in (0, 1):
        given = acc + acc + alpha + [busy] * count
        assert len(given) == operands
        state = run(asm, given)
        expected = [a * (f if busy else 1) for a, f in zip(acc, alpha)]
        assert [state[f"${i}"] for i in range(count)] == expected


@pytest.mark.parametrize("lane", [0, 3, 17])
def test_scores_are_hidden_from_the_end_on(lane):
    count = 16
    operands = tied(text(hopper_ptx._hide_constraints, count), count)
    asm = text(hopper_ptx._hide_asm, count)
    scores = [float(e) for e in range(count)]
    for ends in [(-3, 0), (5, 9), (31, 40), (64, 64)]:
        given = scores + scores + [ends[row_of(e)] for e in range(count)]
        assert len(given) == operands
        state = run(asm, given, lane)
        for e in range(count):
            column = 8 * (e // 4) + 2 * (lane % 4) + e % 2
            seen = column < ends[row_of(e)]
            assert state[f"${e}"] == (scores[e] if seen else -math.inf)
