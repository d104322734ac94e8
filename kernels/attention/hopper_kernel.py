"""Attention forward for Hopper in Triton's Gluon dialect."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.attention.gluon_compat import thread_barrier
from kernels.attention.hopper_pipeline import (
    first_row,
    key_blocks,
    matrix,
    next_stage,
    produce,
    release,
    rings,
    start_rings,
)
from kernels.attention.hopper_ptx import named_barrier_arrive, named_barrier_wait, opaque, pin
from kernels.attention.hopper_schedule import tile_at, tile_count
from kernels.attention.hopper_softmax import (
    ROWS,
    as_rows,
    hide,
    rescale,
    row_parts,
    row_totals,
    weigh,
    weigh_first,
)

LN_2 = gl.constexpr(0.6931471805599453)

# There are sixteen hardware barriers. Triton counts up from 0, we down from 15.
HARDWARE_BARRIERS = gl.constexpr(16)


@gluon.constexpr_function
def product_layout(columns):
    """Of the accumulator of a 64-row wgmma with so many columns."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])


@gluon.constexpr_function
def store_layout(columns):
    """Eight neighbouring elements a thread, 64 neighbouring bytes a row; the same rows a warp as
    `product_layout`, so that converting takes shuffles only."""
    registers = [[0, 1], [0, 2], [0, 4], [8, 0]]
    column = 32
    while column < columns:
        registers.append([0, column])
        column *= 2
    return gl.DistributedLinearLayout(
        registers, [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, columns]
    )


@gluon.jit
def take_turn(consumer: gl.constexpr, CONSUMERS: gl.constexpr, PING_PONG: gl.constexpr):
    """Wait until the consumer before this one has issued its matmuls."""
    if PING_PONG:
        named_barrier_wait(HARDWARE_BARRIERS - CONSUMERS + consumer, 256)


@gluon.jit
def pass_turn(consumer: gl.constexpr, CONSUMERS: gl.constexpr, PING_PONG: gl.constexpr):
    """Let the next consumer issue its matmuls."""
    if PING_PONG:
        named_barrier_arrive(
            HARDWARE_BARRIERS - CONSUMERS + (consumer + 1) % CONSUMERS, 256
        )


@gluon.jit
def score(q, keys):
    """Start q·kᵀ."""
    count: gl.constexpr = keys.shape[0]
    nothing = gl.zeros([ROWS, count], gl.float32, product_layout(count))
    return warpgroup_mma(q, keys.permute((1, 0)), nothing, use_acc=False, is_async=True)


@gluon.jit
def as_operand(p, like, dtype: gl.constexpr):
    """Weights as the left operand of p·v, whose result is like `like`; moves no data."""
    layout: gl.constexpr = gl.DotOperandLayout(0, like.type.layout, 2)
    return gl.convert_layout(p.to(dtype), layout)


@gluon.jit
def sweep(acc, p, row_max, shift, parts, q, k_stages, v_stages, k_full, k_empty, v_full, v_empty,
          stage, phase, last_block, end_block, first_hidden, seqlen_k,
          scale, coarse, limit, stale,
          consumer: gl.constexpr, CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr,
          STAGES: gl.constexpr, PING_PONG: gl.constexpr, DEFER: gl.constexpr,
          MASKED: gl.constexpr, CAUSAL: gl.constexpr, K_FREE: gl.constexpr, V_FREE: gl.constexpr):  # fmt: skip
    """The blocks last_block down to end_block + 1: scores of each, and p·v of the one before it."""
    for block in range(last_block, end_block, -1):
        v_stage = stage
        v_phase = phase
        stage, phase = next_stage(stage, phase, STAGES)
        mbarrier.wait(k_full.index(stage), phase)
        take_turn(consumer, CONSUMERS, PING_PONG)
        s = score(q, matrix(k_stages, stage))
        mbarrier.wait(v_full.index(v_stage), v_phase)
        acc = warpgroup_mma(p, matrix(v_stages, v_stage), acc, is_async=True)
        pass_turn(consumer, CONSUMERS, PING_PONG)
        s = warpgroup_mma_wait(1, [s])
        release(k_empty, stage, K_FREE, CONSUMERS)
        if MASKED:
            s = hide(s, block * BLOCK_N, first_hidden, seqlen_k, CAUSAL)
        weights, alpha, row_max, shift = weigh(
            s, row_max, shift, scale, coarse, limit, stale, MASKED, DEFER
        )
        parts = parts * as_rows(alpha, parts) + row_parts(weights)
        pin(parts, seqlen_k)
        acc = warpgroup_mma_wait(0, [acc])
        release(v_empty, v_stage, V_FREE, CONSUMERS)
        acc = rescale(acc, alpha, DEFER)
        p = as_operand(weights, acc, p.dtype)
    return acc, p, row_max, shift, parts, stage, phase


@gluon.jit
def store(out, lse, acc, row_max, shift, parts, which, heads, row, seqlen_q,
          out_batch, out_head, out_row, scale, limit, LSE: gl.constexpr):  # fmt: skip
    """Write acc / l, and its logarithm, of 64 rows from `row` on, of those that exist."""
    headdim: gl.constexpr = acc.shape[1]
    l = row_totals(parts, row_max)
    seen = l != 0.0  # else no key was seen, and acc is 0
    acc = acc * as_rows(1.0 / gl.where(seen, l, 1.0), acc)
    layout: gl.constexpr = store_layout(headdim)
    rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, headdim, gl.SliceLayout(0, layout))
    batch = which // heads
    head = which % heads
    out += batch.to(gl.int64) * out_batch + head.to(gl.int64) * out_head
    inner = rows.to(gl.int64)[:, None] * out_row + columns[None, :]
    exists = (rows >= 0) & (rows < seqlen_q)
    value = gl.convert_layout(acc.to(out.dtype.element_ty), layout)
    gl.store(out + inner, value, mask=exists[:, None])
    if LSE:
        exact = gl.where(gl.abs(row_max) < limit, shift, row_max * scale)
        natural = (exact + gl.log2(l)) * LN_2
        plain: gl.constexpr = row_max.type.layout
        rows = row + gl.arange(0, ROWS, plain)
        exists = (rows >= 0) & (rows < seqlen_q)
        gl.store(lse + which.to(gl.int64) * seqlen_q + rows, natural, mask=exists)


@gluon.jit
def consume(common, result,
            consumer: gl.constexpr, HEADDIM: gl.constexpr, CAUSAL: gl.constexpr,
            LSE: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr,
            STAGES: gl.constexpr, Q_BUFFERS: gl.constexpr, PING_PONG: gl.constexpr,
            DEFER: gl.constexpr, Q_FREE: gl.constexpr, K_FREE: gl.constexpr,
            V_FREE: gl.constexpr):  # fmt: skip
    """One warpgroup: 64 rows of each tile."""
    q_parts, k_stages, v_stages, q_full, q_empty, k_full, k_empty, v_full, v_empty, heads, all_heads, seqlen_q, seqlen_k, causal_offset, programs, paired_heads, together = common
    out, lse, out_batch, out_head, out_row, scale, coarse, limit, stale = result
    BLOCK_M: gl.constexpr = 64 * CONSUMERS
    dtype: gl.constexpr = k_stages.dtype
    seqlen_q = opaque(seqlen_q)
    all_heads = opaque(all_heads)
    causal_offset = opaque(causal_offset)
    tiles = gl.cdiv(seqlen_q, BLOCK_M)

    count = tile_count(programs, tiles, all_heads, paired_heads)
    which, tile = tile_at(0, programs, tiles, all_heads, paired_heads, together)
    row = first_row(tile, tiles, seqlen_q, BLOCK_M)
    blocks = key_blocks(row, seqlen_k, causal_offset, BLOCK_M, BLOCK_N, CAUSAL)
    first_hidden = row + ROWS * consumer + 1 + causal_offset
    if consumer == CONSUMERS - 1:
        pass_turn(consumer, CONSUMERS, PING_PONG)

    stage = 0
    phase = 0
    q_stage = 0
    q_phase = 0
    acc = gl.zeros([ROWS, HEADDIM], gl.float32, product_layout(HEADDIM))
    mbarrier.wait(q_full.index(0), 0)
    mbarrier.wait(k_full.index(0), 0)
    s = score(matrix(q_parts, consumer), matrix(k_stages, 0))
    s = warpgroup_mma_wait(0, [s])
    release(k_empty, 0, K_FREE, CONSUMERS)
    s = hide(s, (blocks - 1) * BLOCK_N, first_hidden, seqlen_k, CAUSAL)
    weights, row_max, shift = weigh_first(s, scale, coarse, limit)
    parts = row_parts(weights)
    p = as_operand(weights, acc, dtype)

    for index in range(count):
        whole = seqlen_k // BLOCK_N
        if CAUSAL:
            whole = gl.minimum(whole, gl.maximum(first_hidden, 0) // BLOCK_N)
        whole = gl.minimum(whole, blocks - 1)
        q = matrix(q_parts, q_stage * CONSUMERS + consumer)
        acc, p, row_max, shift, parts, stage, phase = sweep(
            acc, p, row_max, shift, parts, q, k_stages, v_stages, k_full, k_empty, v_full, v_empty,
            stage, phase, blocks - 2, whole - 1, first_hidden, seqlen_k, scale, coarse, limit,
            stale, consumer, CONSUMERS, BLOCK_N, STAGES, PING_PONG, DEFER, True, CAUSAL, K_FREE, V_FREE,
        )  # fmt: skip
        acc, p, row_max, shift, parts, stage, phase = sweep(
            acc, p, row_max, shift, parts, q, k_stages, v_stages, k_full, k_empty, v_full, v_empty,
            stage, phase, whole - 1, -1, first_hidden, seqlen_k, scale, coarse, limit,
            stale, consumer, CONSUMERS, BLOCK_N, STAGES, PING_PONG, DEFER, False, CAUSAL, K_FREE, V_FREE,
        )  # fmt: skip
        release(q_empty, q_stage, Q_FREE, CONSUMERS)

        # The last block's p·v, while the first scores of the next tile are computed.
        done = which
        done_row = row + ROWS * consumer
        done_max = row_max
        done_shift = shift
        done_parts = parts
        v_stage = stage
        v_phase = phase
        if index + 1 < count:
            which, tile = tile_at(index + 1, programs, tiles, all_heads, paired_heads, together)
            row = first_row(tile, tiles, seqlen_q, BLOCK_M)
            blocks = key_blocks(row, seqlen_k, causal_offset, BLOCK_M, BLOCK_N, CAUSAL)
            first_hidden = row + ROWS * consumer + 1 + causal_offset
            stage, phase = next_stage(stage, phase, STAGES)
            q_stage, q_phase = next_stage(q_stage, q_phase, Q_BUFFERS)
            mbarrier.wait(q_full.index(q_stage), q_phase)
            mbarrier.wait(k_full.index(stage), phase)
            take_turn(consumer, CONSUMERS, PING_PONG)
            s = score(matrix(q_parts, q_stage * CONSUMERS + consumer), matrix(k_stages, stage))
            mbarrier.wait(v_full.index(v_stage), v_phase)
            acc = warpgroup_mma(p, matrix(v_stages, v_stage), acc, is_async=True)
            pass_turn(consumer, CONSUMERS, PING_PONG)
            s = warpgroup_mma_wait(1, [s])
            release(k_empty, stage, K_FREE, CONSUMERS)
            s = hide(s, (blocks - 1) * BLOCK_N, first_hidden, seqlen_k, CAUSAL)
            weights, row_max, shift = weigh_first(s, scale, coarse, limit)
            parts = row_parts(weights)
            pin(parts, seqlen_k)
            acc = warpgroup_mma_wait(0, [acc])
            p = as_operand(weights, acc, dtype)
        else:
            take_turn(consumer, CONSUMERS, PING_PONG)
            mbarrier.wait(v_full.index(v_stage), v_phase)
            acc = warpgroup_mma(p, matrix(v_stages, v_stage), acc, is_async=True)
            pass_turn(consumer, CONSUMERS, PING_PONG)
            acc = warpgroup_mma_wait(0, [acc])
        release(v_empty, v_stage, V_FREE, CONSUMERS)
        store(out, lse, acc, done_max, done_shift, done_parts, done, heads, done_row, seqlen_q,
              out_batch, out_head, out_row, scale, limit, LSE)  # fmt: skip
        acc = gl.zeros([ROWS, HEADDIM], gl.float32, product_layout(HEADDIM))
    if consumer == 0:
        take_turn(consumer, CONSUMERS, PING_PONG)


@gluon.jit
def attention_forward(
    q, k, v, out, lse, out_batch, out_head, out_row,
    heads, group, all_heads, seqlen_q, seqlen_k, causal_offset, programs, paired_heads,
    together, scale, coarse, limit, stale,
    HEADDIM: gl.constexpr, CAUSAL: gl.constexpr, LSE: gl.constexpr, BLOCK_N: gl.constexpr,
    CONSUMERS: gl.constexpr, STAGES: gl.constexpr, Q_BUFFERS: gl.constexpr,
    PING_PONG: gl.constexpr, DEFER: gl.constexpr,
    BARRIERS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Attention forward of `programs` programs; see the module."""
    Q_FREE: gl.constexpr = 16 - CONSUMERS - Q_BUFFERS if BARRIERS else -1
    K_FREE: gl.constexpr = 16 - CONSUMERS - Q_BUFFERS - STAGES if BARRIERS else -1
    V_FREE: gl.constexpr = 16 - CONSUMERS - Q_BUFFERS - 2 * STAGES if BARRIERS else -1
    q_parts = gl.allocate_shared_memory(
        q.dtype, [Q_BUFFERS * CONSUMERS] + q.block_type.shape, q.layout
    )
    k_stages = gl.allocate_shared_memory(k.dtype, [STAGES] + k.block_type.shape, k.layout)
    v_stages = gl.allocate_shared_memory(v.dtype, [STAGES] + v.block_type.shape, v.layout)
    q_full = rings(Q_BUFFERS)
    q_empty = rings(Q_BUFFERS)
    k_full = rings(STAGES)
    k_empty = rings(STAGES)
    v_full = rings(STAGES)
    v_empty = rings(STAGES)
    start_rings(q_full, q_empty, Q_BUFFERS, CONSUMERS)
    start_rings(k_full, k_empty, STAGES, CONSUMERS)
    start_rings(v_full, v_empty, STAGES, CONSUMERS)
    thread_barrier()

    common = (
        q_parts, k_stages, v_stages, q_full, q_empty, k_full, k_empty, v_full, v_empty,
        heads, all_heads, seqlen_q, seqlen_k, causal_offset, programs, paired_heads, together,
    )  # fmt: skip
    result = (out, lse, out_batch, out_head, out_row, scale, coarse, limit, stale)
    if CONSUMERS == 3:
        gl.warp_specialize(
            [
                (consume, (common, result, 0, HEADDIM, CAUSAL, LSE, BLOCK_N, CONSUMERS, STAGES, Q_BUFFERS, PING_PONG, DEFER, Q_FREE, K_FREE, V_FREE)),
                (consume, (common, result, 1, HEADDIM, CAUSAL, LSE, BLOCK_N, CONSUMERS, STAGES, Q_BUFFERS, PING_PONG, DEFER, Q_FREE, K_FREE, V_FREE)),
                (consume, (common, result, 2, HEADDIM, CAUSAL, LSE, BLOCK_N, CONSUMERS, STAGES, Q_BUFFERS, PING_PONG, DEFER, Q_FREE, K_FREE, V_FREE)),
                (produce, (common, q, k, v, group, CAUSAL, BLOCK_N, CONSUMERS, STAGES, Q_BUFFERS, Q_FREE, K_FREE, V_FREE)),
            ],
            [4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (common, result, 0, HEADDIM, CAUSAL, LSE, BLOCK_N, CONSUMERS, STAGES, Q_BUFFERS, PING_PONG, DEFER, Q_FREE, K_FREE, V_FREE)),
                (consume, (common, result, 1, HEADDIM, CAUSAL, LSE, BLOCK_N, CONSUMERS, STAGES, Q_BUFFERS, PING_PONG, DEFER, Q_FREE, K_FREE, V_FREE)),
                (produce, (common, q, k, v, group, CAUSAL, BLOCK_N, CONSUMERS, STAGES, Q_BUFFERS, Q_FREE, K_FREE, V_FREE)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )
