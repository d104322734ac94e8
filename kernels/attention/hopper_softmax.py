"""The online softmax of one block of scores, as in portable_kernel.py, with lazy row sums.

A warpgroup holds 64 query rows; every thread holds parts of two of them. Row maxima are needed at
once and cost shuffles; row sums are needed once per tile, so each thread keeps its own part (four
threads share a row) until `row_totals`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.hopper_ptx import (
    any_in_warp,
    hide_from,
    opaque,
    rounded_product,
    scale_unless_idle,
)
from kernels.attention.hopper_schedule import ROWS

LANES = gl.constexpr(4)  # that share a row


@gluon.jit
def hide(s, first_key, row, plan):
    """The scores s of rows from `row` and keys from `first_key` on, −∞ where there is no such key
    or a row must not see it."""
    layout: gl.constexpr = gl.SliceLayout(1, s.type.layout)
    end = plan.seqlen_k + gl.zeros([ROWS * gl.num_ctas()], gl.int32, layout)
    if plan.CAUSAL:
        first_hidden = row + opaque(plan.causal_offset) + 1
        end = gl.minimum(end, first_hidden + gl.arange(0, ROWS * gl.num_ctas(), layout))
    count: gl.constexpr = s.shape[1] // 2
    return hide_from(s, (end - first_key)[:, None], count)


@gluon.jit
def halves(p):
    """The left and the right half of the columns; moves no data."""
    columns: gl.constexpr = p.shape[1]
    return gl.split(p.reshape([p.shape[0], 2, columns // 2]).permute((0, 2, 1)))


@gluon.jit
def joined(left, right):
    """What `halves` took apart, in some layout."""
    columns: gl.constexpr = left.shape[1]
    return gl.join(left, right).permute((0, 2, 1)).reshape([left.shape[0], 2 * columns])


@gluon.jit
def half_parts(p):
    """Each thread's own part of the row sums of p, (64, 4)."""
    return gl.sum(gl.sum(p.reshape([p.shape[0], p.shape[1] // 8, LANES, 2]), 3), 1)


@gluon.jit
def sum_of_halves(left, right):
    """Each thread's own part of the row sums of what `halves` took apart."""
    parts = half_parts(left)
    return parts + gl.convert_layout(half_parts(right), parts.type.layout)


@gluon.jit
def row_parts(p):
    """Each thread's own part of the row sums of p, (64, 4)."""
    left, right = halves(p)
    return sum_of_halves(left, right)


@gluon.jit
def add_parts(parts, alpha, fresh):
    """parts·alpha + fresh."""
    fresh = gl.convert_layout(fresh, parts.type.layout)
    return gl.fma(parts, as_rows(alpha, parts), fresh)


@gluon.jit
def row_totals(parts, like):
    """The row sums of `row_parts`, as a vector like `like`."""
    layout: gl.constexpr = like.type.layout
    return gl.convert_layout(gl.sum(parts, 1), layout)


@gluon.jit
def as_rows(vector, like):
    """`vector`, one value per row, as a column beside the matrix `like`; moves no data."""
    layout: gl.constexpr = gl.SliceLayout(1, like.type.layout)
    return gl.convert_layout(vector, layout)[:, None]


@gluon.jit
def shift_of(row_max, scale, coarse, limit):
    """What a row's scores are multiplied by, and what is subtracted from them then.

    Beyond `limit` the factor is the next power of two, so that the shift is exact.
    """
    factor = gl.where(gl.abs(row_max) < limit, scale, coarse)
    return factor, rounded_product(row_max, factor)


@gluon.jit
def measure(s, row_max, shift, scale, coarse, limit, stale, DEFER: gl.constexpr):
    """Factor for a block of scores s, and the rows' alpha, new maximum and new shift.

    A row that has seen nothing yet has a finite maximum, `lowest` of hopper.py, and a finite shift:
    scores of −∞ get weight 0 without a case of their own.
    """
    top = gl.max(s, 1)
    if DEFER:
        row_max = gl.where(top > row_max + stale, top, row_max)
    else:
        row_max = gl.maximum(row_max, top)
    factor, new_shift = shift_of(row_max, scale, coarse, limit)
    alpha = gl.exp2(shift - new_shift)
    return factor, alpha, row_max, new_shift


@gluon.jit
def raised(s, factor, shift):
    """The weights of scores s, of a block or of a part of its columns."""
    return gl.exp2(gl.fma(s, as_rows(factor, s), -as_rows(shift, s)))


@gluon.jit
def rescale(acc, alpha, DEFER: gl.constexpr):
    """acc·alpha; with DEFER, a warp in which every alpha is 1 branches around it."""
    if DEFER:
        busy = any_in_warp(gl.where(alpha == 1.0, 0, 1))
        count: gl.constexpr = acc.shape[1] // 2
        acc = scale_unless_idle(acc, as_rows(alpha, acc), as_rows(busy, acc), count)
    else:
        acc = acc * as_rows(alpha, acc)
    return acc
