"""How queries, keys and values travel through shared memory, and the warp that brings them.

K, V and Q each pass through a ring of stages. A stage has two barriers: `full`, where the copy
reports that it has landed, and `empty`, where the consumers report that they are done reading. Fill
number f of a ring lies in its stage f mod its length.

`full` is an mbarrier, which tells a fill from the next by its phase, (f div length) mod 2. `empty`
is one of the sixteen hardware barriers of a block, at which consumers arrive and the producer
waits: Gluon puts a barrier among a warpgroup's threads before every arrival at an mbarrier, which
costs up to 6 % (docs/hopper.md).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernels.attention.gluon_compat import aggregate, barrier, load_tile
from kernels.attention.hopper_ptx import named_barrier_arrive, named_barrier_wait
from kernels.attention.hopper_schedule import ROWS, divide

# Triton counts the hardware barriers it uses up from 0; we count down.
HARDWARE_BARRIERS = gl.constexpr(16)


@gluon.constexpr_function
def first_hardware_barrier(stages, q_buffers, consumers):
    """The barrier of slot 0; slots are the stages of K, then of V, then of Q. The last barriers are
    the consumers' turns."""
    return HARDWARE_BARRIERS.value - consumers - q_buffers - 2 * stages


@aggregate
class Pipeline:
    """The rings, their barriers, and the order of the consumers."""

    q_parts: gl.shared_memory_descriptor  # (Q_BUFFERS · CONSUMERS, 1, 1, 64, headdim)
    k_stages: gl.shared_memory_descriptor  # (STAGES, 1, 1, BLOCK_N, headdim)
    v_stages: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor  # each in an allocation of its own: Gluon puts a barrier
    k_full: gl.shared_memory_descriptor  # between two waits in one
    v_full: gl.shared_memory_descriptor
    pair_empty: gl.shared_memory_descriptor  # the producers of both blocks of a cluster, per slot
    CONSUMERS: gl.constexpr
    STAGES: gl.constexpr
    Q_BUFFERS: gl.constexpr
    PING_PONG: gl.constexpr

    @gluon.constexpr_function
    def __init__(
        self, q_parts, k_stages, v_stages, q_full, k_full, v_full, pair_empty,
        CONSUMERS, STAGES, Q_BUFFERS, PING_PONG,
    ):  # fmt: skip
        self.q_parts = q_parts
        self.k_stages = k_stages
        self.v_stages = v_stages
        self.q_full = q_full
        self.k_full = k_full
        self.v_full = v_full
        self.pair_empty = pair_empty
        self.CONSUMERS = gl.constexpr(CONSUMERS)
        self.STAGES = gl.constexpr(STAGES)
        self.Q_BUFFERS = gl.constexpr(Q_BUFFERS)
        self.PING_PONG = gl.constexpr(PING_PONG)

    @gluon.jit
    def k_slot(self, stage):
        return stage

    @gluon.jit
    def v_slot(self, stage):
        return self.STAGES + stage

    @gluon.jit
    def q_slot(self, stage):
        return 2 * self.STAGES + stage

    @gluon.jit
    def release(self, slot):
        """Consumer: report that it is done reading a slot."""
        first: gl.constexpr = first_hardware_barrier(self.STAGES, self.Q_BUFFERS, self.CONSUMERS)
        named_barrier_arrive(first + slot, 128 * self.CONSUMERS + 32)

    @gluon.jit
    def wait_empty(self, slot):
        """Producer: wait until every consumer is done with a slot's last use, which is waited for
        once."""
        first: gl.constexpr = first_hardware_barrier(self.STAGES, self.Q_BUFFERS, self.CONSUMERS)
        named_barrier_wait(first + slot, 128 * self.CONSUMERS + 32)

    @gluon.jit
    def take_turn(self, consumer: gl.constexpr):
        """Consumer: wait until the one before has issued its matmuls."""
        if self.PING_PONG:
            named_barrier_wait(HARDWARE_BARRIERS - self.CONSUMERS + consumer, 256)

    @gluon.jit
    def pass_turn(self, consumer: gl.constexpr):
        """Consumer: let the next one issue its matmuls."""
        if self.PING_PONG:
            following: gl.constexpr = (consumer + 1) % self.CONSUMERS
            named_barrier_arrive(HARDWARE_BARRIERS - self.CONSUMERS + following, 256)


@gluon.jit
def stages_of(source, COUNT: gl.constexpr):
    """Room for so many blocks of a descriptor."""
    shape: gl.constexpr = [COUNT] + source.block_type.shape  # noqa: RUF005
    return gl.allocate_shared_memory(source.dtype, shape, source.layout)


@gluon.constexpr_function
def barrier_layout(ctas, shared):
    if ctas == 1:
        return mbarrier.MBarrierLayout()
    return mbarrier.MBarrierLayout([[0]] if shared else [[1]])


@gluon.jit
def barriers(COUNT: gl.constexpr, SHARED: gl.constexpr = False):
    """So many mbarriers, each of which waits for one arrival; in each block of a cluster, or SHARED
    by its blocks: then it waits for one of each."""
    ctas: gl.constexpr = gl.num_ctas()
    layout: gl.constexpr = barrier_layout(ctas, SHARED)
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1 if SHARED else ctas], layout)
    for index in gl.static_range(COUNT):
        mbarrier.init(made.index(index), count=1)
    return made


@gluon.jit
def start_pipeline(q, k, v, CONSUMERS: gl.constexpr, STAGES: gl.constexpr, Q_BUFFERS: gl.constexpr,
                   PING_PONG: gl.constexpr):  # fmt: skip
    """A Pipeline for blocks of the descriptors q, k and v, all of whose slots are empty."""
    q_parts = stages_of(q, Q_BUFFERS * CONSUMERS)
    k_stages = stages_of(k, STAGES)
    v_stages = stages_of(v, STAGES)
    q_full = barriers(Q_BUFFERS)
    k_full = barriers(STAGES)
    v_full = barriers(STAGES)
    pair_empty = k_full
    if gl.num_ctas() == 2:
        pair_empty = barriers(2 * STAGES, True)
    barrier()
    return Pipeline(
        q_parts, k_stages, v_stages, q_full, k_full, v_full, pair_empty,
        CONSUMERS, STAGES, Q_BUFFERS, PING_PONG,
    )  # fmt: skip


@gluon.jit
def next_stage(stage, phase, LENGTH: gl.constexpr):
    """Stage and phase of a ring's fill after the one in (stage, phase)."""
    wraps = stage == LENGTH - 1
    return gl.where(wraps, 0, stage + 1), gl.where(wraps, phase ^ 1, phase)


@gluon.jit
def matrix(stages, stage):
    """One stage, (1, 1, rows, headdim) as TMA writes it, as a matrix."""
    block = stages.index(stage)
    return block.reshape([block.shape[2], block.shape[3]])


@gluon.jit
def copy(source, batch, head, row, stages, stage, full, SHARED: gl.constexpr):
    """Start copying the block from `row` on. Rows that a head does not have read as zeros."""
    if SHARED and gl.num_ctas() == 2:
        load_tile(source, [batch, head, row, 0], full, stages.index(stage), multicast=True)
    else:
        load_tile(source, [batch, head, row, 0], full, stages.index(stage))


@gluon.jit
def fill(source, batch, head, row, stages, full, stage, slot, fills, pipe):
    """Fill number `fills` of the ring of K or V, once its stage is empty."""
    full = full.index(stage)
    if fills >= pipe.STAGES:
        pipe.wait_empty(slot)
        # What comes is for both blocks, into room that both have.
        if gl.num_ctas() == 2:
            mbarrier.arrive(pipe.pair_empty.index(slot))
            mbarrier.wait(pipe.pair_empty.index(slot), (fills // pipe.STAGES - 1) & 1)
    mbarrier.expect(full, source.block_type.nbytes)
    copy(source, batch, head, row, stages, stage, full, True)


@gluon.jit
def fill_queries(source, batch, head, row, stage, fills, pipe):
    """Fill number `fills` of the ring of Q: a part of 64 rows for each consumer."""
    slot = pipe.q_slot(stage)
    if fills >= pipe.Q_BUFFERS:
        pipe.wait_empty(slot)
    full = pipe.q_full.index(stage)
    mbarrier.expect(full, pipe.CONSUMERS * source.block_type.nbytes // gl.num_ctas())
    for consumer in gl.static_range(pipe.CONSUMERS):
        part = stage * pipe.CONSUMERS + consumer
        first = row + ROWS * gl.num_ctas() * consumer
        copy(source, batch, head, first, pipe.q_parts, part, full, False)


@gluon.jit
def produce(plan, pipe, q, k, v):
    """Bring in what the consumers need, in the order in which room for it becomes free.

    The V of a block comes after the K of the next, also across tiles: K is released when the
    scores are there, V only after the softmax that follows.
    """
    fills = 0
    stage = 0
    q_stage = 0
    last_stage = 0
    last_batch = 0
    last_head = 0
    count = plan.tile_count(plan.unit_count())
    for index in range(count):
        # Counted again for every tile: registers are few here, and time is not.
        which, row, blocks = plan.tile(index, plan.unit_count())
        batch, head = plan.split(which)
        head_kv = divide(head, plan.by_group)
        if index == 0:
            fill_queries(q, batch, head, row, 0, 0, pipe)
        fill(k, batch, head_kv, (blocks - 1) * plan.BLOCK_N, pipe.k_stages, pipe.k_full,
             stage, pipe.k_slot(stage), fills, pipe)  # fmt: skip
        if index > 0:
            fill(v, last_batch, last_head, 0, pipe.v_stages, pipe.v_full,
                 last_stage, pipe.v_slot(last_stage), fills - 1, pipe)  # fmt: skip
            fill_queries(q, batch, head, row, q_stage, index, pipe)
        for block in range(blocks - 1, 0, -1):
            last_stage = stage
            stage = gl.where(stage == pipe.STAGES - 1, 0, stage + 1)
            fills += 1
            fill(k, batch, head_kv, (block - 1) * plan.BLOCK_N, pipe.k_stages, pipe.k_full,
                 stage, pipe.k_slot(stage), fills, pipe)  # fmt: skip
            fill(v, batch, head_kv, block * plan.BLOCK_N, pipe.v_stages, pipe.v_full,
                 last_stage, pipe.v_slot(last_stage), fills - 1, pipe)  # fmt: skip
        last_stage = stage
        last_batch = batch
        last_head = head_kv
        stage = gl.where(stage == pipe.STAGES - 1, 0, stage + 1)
        fills += 1
        q_stage = gl.where(q_stage == pipe.Q_BUFFERS - 1, 0, q_stage + 1)
    fill(v, last_batch, last_head, 0, pipe.v_stages, pipe.v_full,
         last_stage, pipe.v_slot(last_stage), fills - 1, pipe)  # fmt: skip
    # Leave no hardware barrier half arrived at.
    for stage in range(gl.minimum(fills, pipe.STAGES)):
        pipe.wait_empty(pipe.k_slot(stage))
        pipe.wait_empty(pipe.v_slot(stage))
    for stage in range(gl.minimum(count, pipe.Q_BUFFERS)):
        pipe.wait_empty(pipe.q_slot(stage))
