"""The producer: one warp that brings Q, K and V into shared memory by TMA.

K and V each pass through a ring of stages. Stage number n of a ring is guarded by two mbarriers,
`full` (the copy has landed) and `empty` (every consumer is done reading). A fill of a ring is
numbered from 0 on over all tiles of the program; fill f lies in stage f mod STAGES, and is the
(f div STAGES)-th to do so: mbarriers tell odd from even by the phase.

Queries lie in a ring of their own, one part of 64 rows per consumer.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from kernels.attention.hopper_ptx import named_barrier_arrive, named_barrier_wait, opaque
from kernels.attention.hopper_schedule import tile_at, tile_count


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    """Stage and phase of the fill after the one in (stage, phase)."""
    wraps = stage == STAGES - 1
    return gl.where(wraps, 0, stage + 1), gl.where(wraps, phase ^ 1, phase)


@gluon.jit
def matrix(stages, stage):
    """One stage, (1, 1, rows, headdim) as TMA writes it, as a matrix."""
    block = stages.index(stage)
    return block.reshape([block.shape[2], block.shape[3]])


@gluon.jit
def rings(count: gl.constexpr):
    """`count` uninitialised mbarriers."""
    return gl.allocate_shared_memory(gl.int64, [count, 1], mbarrier.MBarrierLayout())


@gluon.jit
def start_rings(full, empty, COUNT: gl.constexpr, CONSUMERS: gl.constexpr):
    """Initialise the barriers of a ring: one arrival fills a stage, one per consumer empties it."""
    for stage in gl.static_range(COUNT):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=CONSUMERS)


@gluon.jit
def release(empty, stage, HARDWARE: gl.constexpr, CONSUMERS: gl.constexpr):
    """Tell the producer that this consumer is done reading a stage."""
    if HARDWARE >= 0:
        named_barrier_arrive(HARDWARE + stage, 128 * CONSUMERS + 32)
    else:
        mbarrier.arrive(empty.index(stage), count=1)


@gluon.jit
def acquire(empty, stage, fills, COUNT: gl.constexpr,
            HARDWARE: gl.constexpr, CONSUMERS: gl.constexpr):  # fmt: skip
    """Wait until the stage of fill number `fills` is free."""
    if fills >= COUNT:
        if HARDWARE >= 0:
            named_barrier_wait(HARDWARE + stage, 128 * CONSUMERS + 32)
        else:
            mbarrier.wait(empty.index(stage), (fills // COUNT - 1) % 2)


@gluon.jit
def first_row(tile, tiles, seqlen_q, BLOCK_M: gl.constexpr):
    """The first row of a tile. The tiles end with the last row, so the first may begin before 0:
    under a causal mask that makes the shortest tile the ragged one."""
    return seqlen_q - (tiles - tile) * BLOCK_M


@gluon.jit
def key_blocks(row, seqlen_k, causal_offset,
               BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):  # fmt: skip
    """The number of key blocks that the tile beginning at `row` visits, the last one first.

    A tile that sees no key visits one block, of which it sees nothing.
    """
    blocks = gl.cdiv(seqlen_k, BLOCK_N)
    if CAUSAL:
        blocks = gl.minimum(blocks, gl.cdiv(row + BLOCK_M + causal_offset, BLOCK_N))
    return gl.maximum(blocks, 1)


@gluon.jit
def fill(source, batch, head, row, full, stages, stage):
    """Refill one stage of a ring with the block beginning at `row`.

    Rows before the first and after the last of a head read as zeros.
    """
    mbarrier.expect(full.index(stage), source.block_type.nbytes)
    tma.async_copy_global_to_shared(
        source, [batch, head, row, 0], full.index(stage), stages.index(stage)
    )


@gluon.jit
def fill_queries(source, batch, head, row, full, parts, stage, CONSUMERS: gl.constexpr):
    """As `fill`, for a tile of queries: 64 rows for each consumer."""
    mbarrier.expect(full.index(stage), CONSUMERS * source.block_type.nbytes)
    for consumer in gl.static_range(CONSUMERS):
        tma.async_copy_global_to_shared(
            source, [batch, head, row + 64 * consumer, 0], full.index(stage),
            parts.index(stage * CONSUMERS + consumer),
        )  # fmt: skip


@gluon.jit
def produce(common, q, k, v, group,
            CAUSAL: gl.constexpr, BLOCK_N: gl.constexpr, CONSUMERS: gl.constexpr,
            STAGES: gl.constexpr, Q_BUFFERS: gl.constexpr, Q_FREE: gl.constexpr,
            K_FREE: gl.constexpr, V_FREE: gl.constexpr):  # fmt: skip
    """Bring in what the consumers need, in the order in which room for it becomes free.

    The V of a block comes after the K of the next, also across tiles: K is released when the
    scores are there, V only after the softmax that follows.
    """
    q_parts, k_stages, v_stages, q_full, q_empty, k_full, k_empty, v_full, v_empty, heads, all_heads, seqlen_q, seqlen_k, causal_offset, programs, paired_heads, together = common
    BLOCK_M: gl.constexpr = 64 * CONSUMERS
    seqlen_q = opaque(seqlen_q)
    all_heads = opaque(all_heads)
    causal_offset = opaque(causal_offset)
    tiles = gl.cdiv(seqlen_q, BLOCK_M)
    stage = 0
    fills = 0
    q_stage = 0
    last_stage = 0
    last_batch = 0
    last_head = 0
    count = tile_count(programs, tiles, all_heads, paired_heads)
    for index in range(count):
        which, tile = tile_at(index, programs, tiles, all_heads, paired_heads, together)
        batch = which // heads
        head = which % heads
        head_kv = head // group
        row = first_row(tile, tiles, seqlen_q, BLOCK_M)
        blocks = key_blocks(row, seqlen_k, causal_offset, BLOCK_M, BLOCK_N, CAUSAL)
        if index == 0:
            fill_queries(q, batch, head, row, q_full, q_parts, 0, CONSUMERS)
        acquire(k_empty, stage, fills, STAGES, K_FREE, CONSUMERS)
        fill(k, batch, head_kv, (blocks - 1) * BLOCK_N, k_full, k_stages, stage)
        if index > 0:
            acquire(v_empty, last_stage, fills - 1, STAGES, V_FREE, CONSUMERS)
            fill(v, last_batch, last_head, 0, v_full, v_stages, last_stage)
            acquire(q_empty, q_stage, index, Q_BUFFERS, Q_FREE, CONSUMERS)
            fill_queries(q, batch, head, row, q_full, q_parts, q_stage, CONSUMERS)
        for block in range(blocks - 1, 0, -1):
            last_stage = stage
            stage = gl.where(stage == STAGES - 1, 0, stage + 1)
            fills += 1
            acquire(k_empty, stage, fills, STAGES, K_FREE, CONSUMERS)
            fill(k, batch, head_kv, (block - 1) * BLOCK_N, k_full, k_stages, stage)
            acquire(v_empty, last_stage, fills - 1, STAGES, V_FREE, CONSUMERS)
            fill(v, batch, head_kv, block * BLOCK_N, v_full, v_stages, last_stage)
        last_stage = stage
        last_batch = batch
        last_head = head_kv
        stage = gl.where(stage == STAGES - 1, 0, stage + 1)
        fills += 1
        q_stage = gl.where(q_stage == Q_BUFFERS - 1, 0, q_stage + 1)
    acquire(v_empty, last_stage, fills - 1, STAGES, V_FREE, CONSUMERS)
    fill(v, last_batch, last_head, 0, v_full, v_stages, last_stage)
    if K_FREE >= 0:
        # Leave no hardware barrier half arrived at.
        for stage in range(gl.minimum(fills, STAGES)):
            named_barrier_wait(K_FREE + stage, 128 * CONSUMERS + 32)
            named_barrier_wait(V_FREE + stage, 128 * CONSUMERS + 32)
        for stage in range(gl.minimum(count, Q_BUFFERS)):
            named_barrier_wait(Q_FREE + stage, 128 * CONSUMERS + 32)
