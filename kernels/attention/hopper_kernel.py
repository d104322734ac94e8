"""Attention forward for Hopper in Gluon, whose layouts, barriers and copies are the programmer's.

The algorithm is that of portable_kernel.py: online softmax in base 2 with deferred rescale. What is
different is who does what when. A program is a producer warp (hopper_pipeline.py) and two or three
consumer warpgroups, each with 64 query rows of a tile; programs are as many as multiprocessors, and
each works through its share of the tiles (hopper_schedule.py). A consumer, per block j of keys:

    s_j = q·k_jᵀ             started (hopper_matmuls.py), then
    acc += p_{j−1}·v_{j−1}   started;
    p_j, alpha = softmax of s_j (hopper_softmax.py), while the tensor cores do the latter;
    acc *= alpha             once they have.

The weights p never leave the registers. Consumers take turns in starting their matmuls, so that
one's softmax meets another's matmuls. Blocks go from the diagonal leftwards, first those where
something is masked. The last p·v of a tile overlaps with the first scores of the next.
"""

from triton.experimental import gluon  # noqa: I001  (names side by side, below)
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier, warpgroup_mma, warpgroup_mma_wait,
)  # fmt: skip

from kernels.attention.gluon_compat import aggregate, barrier
from kernels.attention.hopper_matmuls import (
    as_operand, finish_product, finish_scores, hold, nothing, product_layout, score, skip_keys,
    skip_values, start_matmuls,
)  # fmt: skip
from kernels.attention.hopper_pipeline import matrix, next_stage, produce, start_pipeline
from kernels.attention.hopper_ptx import opaque, pin
from kernels.attention.hopper_schedule import ROWS, Plan
from kernels.attention.hopper_softmax import (
    add_parts, as_rows, half_parts, halves, hide, joined, measure, raised, rescale, row_parts,
    row_totals, sum_of_halves,
)  # fmt: skip

LN_2 = gl.constexpr(0.6931471805599453)


@aggregate
class Result:
    """Where a consumer writes, and the constants of its softmax."""

    out: gl.tensor
    lse: gl.tensor  # if LSE
    out_batch: gl.tensor
    out_head: gl.tensor
    out_row: gl.tensor
    scale: gl.tensor
    coarse: gl.tensor
    limit: gl.tensor
    stale: gl.tensor
    lowest: gl.tensor  # the maximum of no scores
    lowest_shift: gl.tensor
    LSE: gl.constexpr
    DEFER: gl.constexpr
    WHOLE_LOOP: gl.constexpr
    HALVES: gl.constexpr  # of a block's weights, computed before the matmul ahead is waited for
    Q_HELD: gl.constexpr  # columns of the queries that are kept in registers

    @gluon.constexpr_function
    def __init__(
        self, out, lse, out_batch, out_head, out_row, scale, coarse, limit, stale, lowest,
        lowest_shift, LSE, DEFER, WHOLE_LOOP, HALVES, Q_HELD,
    ):  # fmt: skip
        self.out = out
        self.lse = lse
        self.out_batch = out_batch
        self.out_head = out_head
        self.out_row = out_row
        self.scale = scale
        self.coarse = coarse
        self.limit = limit
        self.stale = stale
        self.lowest = lowest
        self.lowest_shift = lowest_shift
        self.LSE = gl.constexpr(LSE)
        self.DEFER = gl.constexpr(DEFER)
        self.WHOLE_LOOP = gl.constexpr(WHOLE_LOOP)
        self.HALVES = gl.constexpr(HALVES)
        self.Q_HELD = gl.constexpr(Q_HELD)


@gluon.constexpr_function
def store_layout(columns, ctas):
    """Eight neighbouring elements a thread and 64 neighbouring bytes a row, in the same warp's rows
    as `product_layout`."""
    registers = [[0, 1], [0, 2], [0, 4], [8, 0]]
    column = 32
    while column < columns:
        registers.append([0, column])
        column *= 2
    return gl.DistributedLinearLayout(
        registers, [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]],
        [[64, 0]] if ctas == 2 else [], [64 * ctas, columns],
    )  # fmt: skip


@gluon.jit
def begin_weights(s, factor, shift, size, HALVES: gl.constexpr):
    """What of the weights of scores s is computed before a wait for the tensor cores that follows,
    and the scores of which they are not; for `size` see `pin`."""
    if HALVES == 2:
        early = raised(s, factor, shift)
        rest = s
    elif HALVES == 1:
        left, rest = halves(s)
        early = raised(left, factor, shift)
        pin(half_parts(early), size)
    else:
        pin(shift, size)
        early = s
        rest = s
    return early, rest


@gluon.jit
def end_weights(early, rest, factor, shift, HALVES: gl.constexpr):
    """The weights that `begin_weights` began with, and their `row_parts`; not for 2 HALVES."""
    if HALVES == 1:
        late = raised(rest, factor, shift)
        fresh = sum_of_halves(early, late)
        weights = gl.convert_layout(
            joined(early, late), product_layout(2 * rest.shape[1], gl.num_ctas())
        )
    else:
        weights = raised(rest, factor, shift)
        fresh = row_parts(weights)
    return weights, fresh


@gluon.jit
def store(acc, row_max, shift, parts, which, row, plan, result):
    """Write acc / l, and the logarithm of l, of 64 rows from `row` on, of those that exist."""
    headdim: gl.constexpr = acc.shape[1]
    l = row_totals(parts, row_max)
    acc = acc * as_rows(1.0 / gl.where(l != 0.0, l, 1.0), acc)
    layout: gl.constexpr = store_layout(headdim, gl.num_ctas())
    rows = row + gl.arange(0, ROWS * gl.num_ctas(), gl.SliceLayout(1, layout))
    columns = gl.arange(0, headdim, gl.SliceLayout(0, layout))
    batch, head = plan.split(which)
    out = result.out + batch.to(gl.int64) * result.out_batch + head.to(gl.int64) * result.out_head
    inner = rows.to(gl.int64)[:, None] * result.out_row + columns[None, :]
    value = gl.convert_layout(acc.to(out.dtype.element_ty), layout)
    first = plan.first_row()
    sees = (rows >= first) & (rows < plan.seqlen_q)
    gl.store(out + inner, value, mask=sees[:, None])
    if plan.CAUSAL:  # noqa: SIM102  (only one of them is known to the compiler)
        if row < first:
            # Rows that see no key, of which acc is 0 times whatever the values are.
            sees_none = (rows >= 0) & (rows < first)
            gl.store(out + inner, gl.zeros_like(value), mask=sees_none[:, None])
    if result.LSE:
        exact = gl.where(gl.abs(row_max) < result.limit, shift, row_max * result.scale)
        natural = (exact + gl.log2(l)) * LN_2
        plain: gl.constexpr = row_max.type.layout
        rows = row + gl.arange(0, ROWS * gl.num_ctas(), plain)
        exists = (rows >= 0) & (rows < plan.seqlen_q)
        gl.store(result.lse + which.to(gl.int64) * plan.seqlen_q + rows, natural, mask=exists)


@gluon.jit
def consume(plan, pipe, result, consumer: gl.constexpr, HEADDIM: gl.constexpr):
    """One warpgroup: 64 rows of each tile.

    One loop over the blocks of all tiles, so that a tile's last p·v overlaps with the first scores
    of the next one, and because every consumer's code has to fit the instruction caches. With
    WHOLE_LOOP, blocks of which nothing is hidden nevertheless have a loop of their own. Which one a
    block passes through depends on what else its program computes; the result must not, to the last
    bit: sums and products are fused in the same way everywhere.
    """
    dtype: gl.constexpr = pipe.k_stages.dtype
    q_held: gl.constexpr = result.Q_HELD
    unit_count = plan.unit_count()
    count = plan.tile_count(unit_count)
    which, row, left = plan.tile(0, unit_count)
    row += ROWS * gl.num_ctas() * consumer
    if consumer == pipe.CONSUMERS - 1:
        pipe.pass_turn(consumer)  # the first turn of all is the first consumer's

    stage = 0
    phase = 0
    q_stage = 0
    q_phase = 0
    mbarrier.wait(pipe.q_full.index(0), 0)
    q = matrix(pipe.q_parts, consumer)
    held = 0
    if q_held > 0:
        held = hold(consumer, pipe, q_held, plan.BLOCK_N)
    if q_held == HEADDIM:
        pipe.release(pipe.q_slot(0))
    mbarrier.wait(pipe.k_full.index(0), 0)
    s = score(q, held, matrix(pipe.k_stages, 0), q_held)
    s = warpgroup_mma_wait(0, [s])
    pipe.release(pipe.k_slot(0))
    left -= 1  # of the tile's blocks, the number that have no scores yet
    if q_held < HEADDIM:  # noqa: SIM102  (only one of them is known to the compiler)
        if left == 0:
            pipe.release(pipe.q_slot(0))
    s = hide(s, left * plan.BLOCK_N, row, plan)
    lowest = opaque(result.lowest)
    factor, alpha, row_max, shift = measure(s, lowest, result.lowest_shift, result.scale,
        result.coarse, result.limit, result.stale, result.DEFER)  # fmt: skip
    weights = raised(s, factor, shift)
    parts = row_parts(weights)
    acc = nothing(HEADDIM)
    p = as_operand(weights, HEADDIM, dtype)
    barrier()  # so that there need not be one in `start_matmuls`

    index = 1
    while (left > 0) | (index < count):
        # p holds the weights of the block before, which is the last of its tile if `ends`.
        ends = left == 0
        done_which = which
        done_row = row
        v_stage = stage
        v_phase = phase
        spare = 0
        if ends:
            which, row, left = plan.tile(index, unit_count)
            row += ROWS * gl.num_ctas() * consumer
            index += 1
            q_stage, q_phase = next_stage(q_stage, q_phase, pipe.Q_BUFFERS)
            mbarrier.wait(pipe.q_full.index(q_stage), q_phase)
            if q_held > 0:
                part = q_stage * pipe.CONSUMERS + consumer
                held = hold(part, pipe, q_held, plan.BLOCK_N)
            if q_held == HEADDIM:
                pipe.release(pipe.q_slot(q_stage))
            if plan.CAUSAL:
                spare = plan.spare(left, row)
                left -= spare
                stage, phase = skip_keys(spare, stage, phase, pipe, consumer)
        left -= 1
        stage, phase = next_stage(stage, phase, pipe.STAGES)
        q = matrix(pipe.q_parts, q_stage * pipe.CONSUMERS + consumer)
        s, acc = start_matmuls(q, held, p, acc, stage, phase, v_stage, v_phase, pipe, consumer,
                               q_held)  # fmt: skip
        s = finish_scores(s, stage, pipe)
        if q_held < HEADDIM and not result.WHOLE_LOOP:  # noqa: SIM102  (see above)
            if left == 0:
                pipe.release(pipe.q_slot(q_stage))
        s = hide(s, left * plan.BLOCK_N, row, plan)
        done_max = row_max
        done_shift = shift
        done_parts = parts
        row_max = gl.where(ends, lowest, row_max)
        shift = gl.where(ends, result.lowest_shift, shift)
        factor, alpha, row_max, shift = measure(s, row_max, shift, result.scale, result.coarse,
            result.limit, result.stale, result.DEFER)  # fmt: skip
        # One half before a tile's end and one after it would need registers for both.
        halves_here: gl.constexpr = 2 * (result.HALVES // 2)
        weights, rest = begin_weights(s, factor, shift, plan.heads, halves_here)
        if halves_here == 2:
            parts = add_parts(gl.where(ends, 0.0, parts), alpha, row_parts(weights))
            pin(parts, plan.heads)
            p = as_operand(weights, HEADDIM, dtype)
        acc = finish_product(acc, v_stage, pipe)
        if ends:
            if plan.CAUSAL:
                skip_values(spare, v_stage, v_phase, pipe)
            store(acc, done_max, done_shift, done_parts, done_which, done_row, plan, result)
            acc = nothing(HEADDIM)
        else:
            acc = rescale(acc, alpha, result.DEFER)
        if halves_here == 0:
            weights, fresh = end_weights(weights, rest, factor, shift, 0)
            parts = add_parts(gl.where(ends, 0.0, parts), alpha, fresh)
            p = as_operand(weights, HEADDIM, dtype)
        if result.WHOLE_LOOP:
            next_k, next_phase = next_stage(stage, phase, pipe.STAGES)
            for _ in range(plan.whole(left, row)):
                v_stage = stage
                v_phase = phase
                stage = next_k
                phase = next_phase
                s, acc = start_matmuls(q, held, p, acc, stage, phase, v_stage, v_phase, pipe,
                                       consumer, q_held)  # fmt: skip
                s = finish_scores(s, stage, pipe)
                # Here and not before the matmuls, which would wait for it.
                next_k, next_phase = next_stage(stage, phase, pipe.STAGES)
                factor, alpha, row_max, shift = measure(s, row_max, shift, result.scale,
                    result.coarse, result.limit, result.stale, result.DEFER)  # fmt: skip
                weights, others = begin_weights(s, factor, shift, plan.heads, result.HALVES)
                if result.HALVES == 2:
                    parts = add_parts(parts, alpha, row_parts(weights))
                    pin(parts, plan.heads)
                    p = as_operand(weights, HEADDIM, dtype)
                acc = finish_product(acc, v_stage, pipe)
                acc = rescale(acc, alpha, result.DEFER)
                if result.HALVES < 2:
                    weights, fresh = end_weights(weights, others, factor, shift, result.HALVES)
                    parts = add_parts(parts, alpha, fresh)
                    p = as_operand(weights, HEADDIM, dtype)
            left -= plan.whole(left, row)
            if q_held < HEADDIM:  # noqa: SIM102  (see above)
                if left == 0:
                    pipe.release(pipe.q_slot(q_stage))

    pipe.take_turn(consumer)
    mbarrier.wait(pipe.v_full.index(stage), phase)
    acc = warpgroup_mma(p, matrix(pipe.v_stages, stage), acc, is_async=True)
    pipe.pass_turn(consumer)
    acc = finish_product(acc, stage, pipe)
    store(acc, row_max, shift, parts, which, row, plan, result)
    if consumer == 0:
        pipe.take_turn(consumer)  # which nobody will use


@gluon.jit
def attention_forward(
    q, k, v, out, lse, out_batch, out_head, out_row,
    heads, by_heads, by_group, seqlen_q, seqlen_k, causal_offset, programs, tiles, by_tiles,
    units, unit_turns, items, item_turns, paired_heads, single_heads, by_single_heads,
    scale, coarse, limit, stale, lowest, lowest_shift,
    HEADDIM: gl.constexpr, CAUSAL: gl.constexpr, LSE: gl.constexpr, BLOCK_N: gl.constexpr,
    CONSUMERS: gl.constexpr, STAGES: gl.constexpr, Q_BUFFERS: gl.constexpr,
    PING_PONG: gl.constexpr, DEFER: gl.constexpr, WHOLE_LOOP: gl.constexpr, HALVES: gl.constexpr,
    Q_HELD: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """The share of one of `programs` programs.

    q, k and v are descriptors of (batch, heads, seqlen, headdim) that load 64 rows, BLOCK_N keys
    and BLOCK_N values of one head; for limit and stale see hopper_softmax.py.
    """
    plan = Plan(
        heads, by_heads, by_group, seqlen_q, seqlen_k, causal_offset, programs, tiles, by_tiles,
        units, unit_turns, items, item_turns, paired_heads, single_heads, by_single_heads,
        CAUSAL, BLOCK_N, CONSUMERS,
    )  # fmt: skip
    result = Result(
        out, lse if LSE else out, out_batch, out_head, out_row,
        scale, coarse, limit, stale, lowest, lowest_shift, LSE, DEFER, WHOLE_LOOP, HALVES, Q_HELD,
    )  # fmt: skip
    pipe = start_pipeline(q, k, v, CONSUMERS, STAGES, Q_BUFFERS, PING_PONG)
    if CONSUMERS == 3:
        gl.warp_specialize(
            [(consume, (plan, pipe, result, 0, HEADDIM)),
             (consume, (plan, pipe, result, 1, HEADDIM)),
             (consume, (plan, pipe, result, 2, HEADDIM)),
             (produce, (plan, pipe, q, k, v))],
            [4, 4, 1], [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [(consume, (plan, pipe, result, 0, HEADDIM)),
             (consume, (plan, pipe, result, 1, HEADDIM)),
             (produce, (plan, pipe, q, k, v))],
            [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
