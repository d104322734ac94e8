"""A consumer's matmuls: started, waited for, and their stages given back.

Scores come first and the product of the block before with its values second, so that there are
scores to work on while the tensor cores are at the product.
"""

from triton.experimental import gluon  # noqa: I001  (names side by side, below)
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier, warpgroup_mma, warpgroup_mma_wait,
)  # fmt: skip

from kernels.attention.gluon_compat import barrier
from kernels.attention.hopper_pipeline import matrix, next_stage
from kernels.attention.hopper_ptx import narrow
from kernels.attention.hopper_schedule import ROWS


@gluon.constexpr_function
def product_layout(columns, ctas):
    """Of the accumulator of a 64-row wgmma with so many columns, in each of `ctas` blocks."""
    if ctas == 1:
        return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16], [[1, 0]])


@gluon.jit
def nothing(HEADDIM: gl.constexpr):
    """An accumulator of zeros."""
    ctas: gl.constexpr = gl.num_ctas()
    return gl.zeros([ROWS * ctas, HEADDIM], gl.float32, product_layout(HEADDIM, ctas))


@gluon.jit
def hold(part, pipe, HELD: gl.constexpr, BLOCK_N: gl.constexpr):
    """The first HELD columns of one of `pipe.q_parts` as the left operand of q·kᵀ, in registers:
    from there the tensor cores take them without reading shared memory for every block. If they
    are all of them, the part is no longer needed."""
    layout: gl.constexpr = gl.DotOperandLayout(0, product_layout(BLOCK_N, gl.num_ctas()), 2)
    return matrix(pipe.q_parts, part).slice(0, HELD, 1).load(layout)


@gluon.jit
def score(q, held, keys, HELD: gl.constexpr):
    """Start q·kᵀ; the first HELD columns of q are `held`."""
    count: gl.constexpr = keys.shape[0]
    others: gl.constexpr = keys.shape[1] - HELD
    ctas: gl.constexpr = gl.num_ctas()
    s = gl.zeros([ROWS * ctas, count], gl.float32, product_layout(count, ctas))
    if HELD > 0:
        first = keys.slice(0, HELD, 1).permute((1, 0))
        s = warpgroup_mma(held, first, s, use_acc=False, is_async=True)
    if others > 0:
        rest = keys.slice(HELD, others, 1).permute((1, 0))
        s = warpgroup_mma(q.slice(HELD, others, 1), rest, s, use_acc=HELD > 0, is_async=True)
    return s


@gluon.jit
def as_operand(p, HEADDIM: gl.constexpr, dtype: gl.constexpr):
    """Weights as the left operand of p·v; moves no data."""
    layout: gl.constexpr = gl.DotOperandLayout(0, product_layout(HEADDIM, gl.num_ctas()), 2)
    return gl.convert_layout(narrow(p, dtype), layout)


@gluon.jit
def start_matmuls(q, held, p, acc, k_stage, k_phase, v_stage, v_phase, pipe,
                  consumer: gl.constexpr, HELD: gl.constexpr):  # fmt: skip
    """Start the scores of one block and, after them, acc + p·v of the block before: both are
    returned unfinished."""
    mbarrier.wait(pipe.k_full.index(k_stage), k_phase)
    pipe.take_turn(consumer)
    s = score(q, held, matrix(pipe.k_stages, k_stage), HELD)
    mbarrier.wait(pipe.v_full.index(v_stage), v_phase)
    acc = warpgroup_mma(p, matrix(pipe.v_stages, v_stage), acc, is_async=True)
    pipe.pass_turn(consumer)
    # Gluon puts a barrier between two waits for the mbarriers of one ring: rather here, where the
    # scores are waited for anyhow, than between the weights of a block and the matmuls after it.
    barrier()
    return s, acc


@gluon.jit
def finish_scores(s, k_stage, pipe):
    """The scores that `start_matmuls` started, once they are there; acc may not be."""
    s = warpgroup_mma_wait(1, [s])
    pipe.release(pipe.k_slot(k_stage))
    return s


@gluon.jit
def finish_product(acc, v_stage, pipe):
    """acc as `start_matmuls` started it, once it is there."""
    acc = warpgroup_mma_wait(0, [acc])
    pipe.release(pipe.v_slot(v_stage))
    return acc


@gluon.jit
def skip_keys(count, stage, phase, pipe, consumer: gl.constexpr):
    """Let so many blocks of keys, and turns, pass unused; the stage and phase of the last."""
    for _ in range(count):
        stage, phase = next_stage(stage, phase, pipe.STAGES)
        mbarrier.wait(pipe.k_full.index(stage), phase)
        pipe.take_turn(consumer)
        pipe.pass_turn(consumer)
        pipe.release(pipe.k_slot(stage))
    barrier()  # so that there need not be one in `start_matmuls`
    return stage, phase


@gluon.jit
def skip_values(count, stage, phase, pipe):
    """Let so many blocks of values pass unread, after the one in (stage, phase)."""
    for _ in range(count):
        stage, phase = next_stage(stage, phase, pipe.STAGES)
        mbarrier.wait(pipe.v_full.index(stage), phase)
        pipe.release(pipe.v_slot(stage))
    barrier()  # so that there need not be one in `start_matmuls`
