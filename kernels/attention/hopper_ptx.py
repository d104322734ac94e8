"""The few instructions that Gluon has no word for, as inline PTX, each with its reason.

How many scores `hide_from` and how many accumulators `scale_unless_idle` handles is a compile-time
choice, so their texts are generated.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def named_barrier_wait(barrier, THREADS: gl.constexpr):
    """Wait until THREADS threads, this warpgroup's included, have come to a hardware barrier.

    Gluon's own barriers span one partition; two partitions meet only here. Triton uses the barriers
    from 0 upwards, one more than there are consumers.
    """
    gl.inline_asm_elementwise(
        "bar.sync $1, $2; mov.b32 $0, 0;", "=r,r,r", [barrier, THREADS], gl.int32, False, 1
    )


@gluon.jit
def named_barrier_arrive(barrier, THREADS: gl.constexpr):
    """Count this warpgroup's threads in at a hardware barrier, without waiting."""
    gl.inline_asm_elementwise(
        "bar.arrive $1, $2; mov.b32 $0, 0;", "=r,r,r", [barrier, THREADS], gl.int32, False, 1
    )


@gluon.jit
def pin(value, size):
    """Keep whatever waits after this call behind the computation of `value`, two fp32 a thread.

    ptxas moves a wait for the tensor cores (wgmma.wait_group) up, ahead of arithmetic that does not
    depend on it, so that nothing overlaps any more. It does not move it across a volatile store.
    This one is never executed: `size` is a size, which ptxas does not know to be positive.
    """
    gl.inline_asm_elementwise(
        "{ .reg .pred never; setp.lt.s32 never, $4, 0;\n"
        "@never st.volatile.shared.v2.f32 [$4], {$2, $3}; mov.b32 $0, 0; mov.b32 $1, 0; }",
        "=r,=r,f,f,r,r", [value, size], gl.int32, False, 2,
    )  # fmt: skip


@gluon.constexpr_function
def _scale_asm(count):
    return (
        f"{{ .reg .pred idle; setp.eq.b32 idle, ${3 * count}, 0;\n@idle bra.uni DONE;\n"
        + "".join(f"mul.f32 ${i}, ${i}, ${2 * count + i};\n" for i in range(count))
        + "DONE: }"
    )


@gluon.constexpr_function
def _scale_constraints(count):
    ties = [str(i) for i in range(count)]
    return ",".join(["=f"] * count + ties + ["f"] * count + ["r"] * count)


@gluon.jit
def narrow(value, dtype: gl.constexpr):
    """`value` in 16 bits, converted here and not where it is used.

    LLVM moves a conversion down to its use, behind whatever else needs registers in between.
    """
    if dtype == gl.float16:
        value = gl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [value], gl.float16, False, 2
        )
    else:
        value = gl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [value], gl.bfloat16, False, 2
        )
    return value


@gluon.jit
def rounded_product(a, b):
    """a·b in fp32, rounded before it goes into a sum.

    Where LLVM fuses the product of a row's maximum into a difference, the same maximum subtracted
    from itself is not 0 but a rounding error: alpha is not 1, and nothing is ever deferred.
    """
    return gl.inline_asm_elementwise(
        "mul.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], gl.float32, True, 1
    )


@gluon.jit
def opaque(scalar):
    """`scalar`, int32 or fp32, of which the compiler no longer knows that it is the same in every
    partition.

    Otherwise LLVM computes what follows from it once, at the kernel's entry, where registers are
    few, and keeps it in local memory.
    """
    kind: gl.constexpr = "=f,f" if scalar.dtype == gl.float32 else "=r,r"
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", kind, [scalar], scalar.dtype, False, 1)


@gluon.constexpr_function
def _hide_asm(count):
    """Accumulator e of a thread lies in column 8·(e div 4) + 2·(lane mod 4) + e mod 2, in the first
    of the thread's two rows if e mod 4 is 0 or 1, else in the second (wgmma's fragment of D)."""
    hide = "".join(
        f"setp.gt.s32 p, {'left0' if e % 4 < 2 else 'left1'}, {8 * (e // 4) + e % 2};\n"
        f"selp.f32 ${e}, ${e}, 0fFF800000, p;\n"
        for e in range(count)
    )
    return (
        "{ .reg .pred p; .reg .b32 lane, left0, left1;\n"
        f"min.s32 left0, ${2 * count}, ${2 * count + 2}; setp.ge.s32 p, left0, {2 * count};\n"
        "vote.sync.all.pred p, p, 0xffffffff;\n@p bra.uni DONE;\n"
        "mov.u32 lane, %laneid; and.b32 lane, lane, 3; shl.b32 lane, lane, 1;\n"
        f"sub.s32 left0, ${2 * count}, lane; sub.s32 left1, ${2 * count + 2}, lane;\n"
        f"{hide}DONE: }}"
    )


@gluon.constexpr_function
def _hide_constraints(count):
    ties = [str(i) for i in range(count)]
    return ",".join(["=f"] * count + ties + ["r"] * count)


@gluon.jit
def hide_from(s, end, COUNT: gl.constexpr):
    """The scores s, −∞ in the columns from `end` (one per row, as wide as s) on.

    Written with gl.where, the comparisons of a whole block become bits that LLVM packs and unpacks,
    at five instructions a score; this takes two, and none in a warp that has nothing to hide. COUNT
    is the number of scores of a thread.
    """
    asm: gl.constexpr = _hide_asm(COUNT)
    constraints: gl.constexpr = _hide_constraints(COUNT)
    return gl.inline_asm_elementwise(asm, constraints, [s, end], gl.float32, True, COUNT)


@gluon.jit
def any_in_warp(flag):
    """For two rows per thread: 1 for both if `flag` (0 or 1) is set for any row of the warp."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 either; or.b32 either, $2, $3; setp.ne.b32 p, either, 0;\n"
        "vote.sync.any.pred p, p, 0xffffffff; selp.b32 $0, 1, 0, p; mov.b32 $1, $0; }",
        "=r,=r,r,r", [flag], gl.int32, False, 2,
    )  # fmt: skip


@gluon.jit
def scale_unless_idle(acc, alpha, busy, COUNT: gl.constexpr):
    """acc·alpha, skipped by a branch where `busy` is 0, which it is for whole warps or not at all.

    Gluon has no branch on a value that differs between warps. COUNT is the number of accumulators
    of a thread.
    """
    asm: gl.constexpr = _scale_asm(COUNT)
    constraints: gl.constexpr = _scale_constraints(COUNT)
    return gl.inline_asm_elementwise(asm, constraints, [acc, alpha, busy], gl.float32, True, COUNT)
