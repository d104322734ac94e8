"""The portable attention forward in Triton's `tl` language.

One program computes BLOCK_M rows of `out = softmax(sm_scale·q·kᵀ + mask)·v` for one head, walking
over blocks of BLOCK_N keys with the online softmax (Milakov and Gimelshein 2018; Dao,
FlashAttention-2, algorithm 1). In base 2, with `scale = sm_scale·log₂e`, every row keeps

    m      the largest score q·k seen so far, unscaled
    shift  m·scale as it was rounded to fp32
    l      Σ 2^(s·scale − shift)
    acc    Σ 2^(s·scale − shift) · v

and one block of scores s does

    m′     = max(m, max s)                        shift′ = m′·scale
    p      = 2^(s·scale − shift′)                 one fused multiply-add, one exponential
    alpha  = 2^(shift − shift′)
    l      = l·alpha + Σ p                        acc = acc·alpha + p·v

Any `shift` gives the same quotient acc / l, because both sides use the same one. Three things
follow from that freedom:

*Deferred rescale* (DEFER; after FlashAttention-4). A row keeps its stale m until the maximum has
grown by more than log₂ 8 = 3, so p ≤ 8 and alpha is nearly always 1; a warp none of whose rows has
grown branches around the multiplication of acc.

*Giant scores.* The fused multiply-add is exact, but shift is rounded, by up to 2^(e−24) at
magnitude 2^e: p = 2^(that error) where it should be 1. Beyond |m·scale| = 2^27 the error could
overflow p in fp16, and neighbouring fp32 scores lie a factor of at least 2^8 apart. There a row
multiplies by `coarse`, the next power of two ≥ scale, which makes shift exact.

*Rows that see no key* have shift = −∞ and l = 0; they are written as zeros with lse = −∞.

Causality: row i sees the keys j ≤ i + causal_offset. The blocks that every row of the tile sees
entirely are swept without any mask; only those on the diagonal, and a last one that passes the
end of the keys, are swept by the masked instance of the same loop.

What is not finite: a score that a mask hides is replaced before it is used, so nothing in a hidden
key of k leaks, and a NaN in a visible one makes its row NaN. A value in v is multiplied by the
weight 0 for the rows that do not see it, so a NaN or infinity there reaches the rows before it
whose tile visits its block and that see other keys: fewer than max(BLOCK_M, BLOCK_N) of them, as in
other flash kernels. Keys hidden from all rows are never read.
"""

import os

import triton
import triton.language as tl

# The interpreter acts at import. Its bf16 dot is wrong (Triton 3.6) and it has no inline assembly,
# so the kernel takes another road there.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")

# log₂ 8: how far a row's maximum may grow before its stale value is replaced.
STALE = tl.constexpr(3.0)

# |m·scale| from which shift is made exact by a power of two.
GIANT = tl.constexpr(134217728.0)

LN_2 = tl.constexpr(0.6931471805599453)

# Whether any lane of the warp has an alpha other than 1.
VOTE = tl.constexpr(
    "{ .reg .pred grown; setp.neu.f32 grown, $1, 0f3F800000;\n"
    "vote.sync.any.pred grown, grown, 0xffffffff; selp.b32 $0, 1, 0, grown; }"
)

# 32 accumulators times their alphas, branched around if no flag is set. Operands: $0 to $31 the
# accumulators, tied to the inputs $32 to $63; $64 to $95 alphas; $96 to $127 flags. (The flags are
# copies of few registers, so ptxas folds the chain of or.)
_PACK = 32
PACK = tl.constexpr(_PACK)
MULTIPLY_IF = tl.constexpr(
    "{ .reg .pred grown; .reg .b32 any; mov.b32 any, 0;\n"
    + "".join(f"or.b32 any, any, ${3 * _PACK + i};\n" for i in range(_PACK))
    + "setp.ne.b32 grown, any, 0; @!grown bra.uni DONE;\n"
    + "".join(f"mul.f32 ${i}, ${i}, ${2 * _PACK + i};\n" for i in range(_PACK))
    + "DONE: }"
)
MULTIPLY_IF_OPERANDS = tl.constexpr(
    ",".join(["=f"] * _PACK + [str(i) for i in range(_PACK)] + ["f"] * _PACK + ["r"] * _PACK)
)


@triton.jit
def dot(a, b, acc):
    """acc + a·b in fp32 from fp16 or bf16."""
    if INTERPRETED:
        acc += tl.dot(a.to(tl.float32), b.to(tl.float32))
    else:
        acc = tl.dot(a, b, acc)
    return acc


@triton.jit
def tile(
    source, batch, head, start, row, length,
    ROWS: tl.constexpr, HEADDIM: tl.constexpr, TMA: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """The rows start to start + ROWS of one head, (ROWS, HEADDIM); if BOUNDED, zeros from `length`.

    `source` is a descriptor of (batch, heads, length, headdim), which gives zeros by itself, or a
    pointer to the head's row 0 with the stride `row`.
    """
    if TMA:
        block = source.load([batch, head, start, 0]).reshape(ROWS, HEADDIM)
    else:
        rows = tl.arange(0, ROWS)
        within = rows[:, None] * row + tl.arange(0, HEADDIM)[None, :]
        pointers = source + start.to(tl.int64) * row + within
        if BOUNDED:
            block = tl.load(pointers, mask=(start + rows < length)[:, None], other=0.0)
        else:
            block = tl.load(pointers)
    return block


@triton.jit
def rescale(acc, alpha, DEFER: tl.constexpr):
    """acc·alpha; with DEFER, a warp in which every alpha is 1 branches around it."""
    if DEFER and not INTERPRETED:
        grown = tl.inline_asm_elementwise(VOTE, "=r,f", [alpha], tl.int32, True, 1)
        acc = tl.inline_asm_elementwise(
            MULTIPLY_IF, MULTIPLY_IF_OPERANDS, [acc, alpha[:, None], grown[:, None]],
            tl.float32, True, PACK,
        )  # fmt: skip
    else:
        acc = acc * alpha[:, None]
    return acc


@triton.jit
def sweep(
    m, shift, l, acc, q, k, v, batch, head_kv, k_row, v_row, seqlen_k, first_hidden, start, stop,
    scale, coarse,
    HEADDIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr,
    DEFER: tl.constexpr, SUM_LATE: tl.constexpr, STAGES: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """The online softmax over the key blocks start to stop: the new (m, shift, l, acc).

    Row r of the tile sees the keys before first_hidden + r, if CAUSAL, and before seqlen_k; only
    the MASKED instance looks at that. SUM_LATE adds up p after the product p·v, not before it.
    """
    for block in tl.range(start, stop, num_stages=STAGES):
        first = block * BLOCK_N
        keys = tile(k, batch, head_kv, first, k_row, seqlen_k, BLOCK_N, HEADDIM, TMA, MASKED)
        s = dot(q, tl.trans(keys), tl.zeros([BLOCK_M, BLOCK_N], tl.float32))
        if MASKED:
            key = first + tl.arange(0, BLOCK_N)[None, :]
            if CAUSAL:
                hidden = tl.minimum(first_hidden + tl.arange(0, BLOCK_M), seqlen_k)[:, None]
            else:
                hidden = seqlen_k
            s = tl.where(key < hidden, s, float("-inf"))

        top = tl.max(s, 1)
        if DEFER:
            m = tl.where(top > m + STALE / scale, top, m)
        else:
            m = tl.maximum(m, top)
        factor = tl.where(tl.abs(m) < GIANT / scale, scale, coarse)
        old_shift = shift
        shift = m * factor
        # For a row that has seen nothing yet, any finite shift gives p = 0 and alpha = 0. And what
        # is chosen is not fused: a maximum that has not changed leaves a difference of exactly 0.
        used = tl.where(m == float("-inf"), 0.0, shift)
        p = tl.math.exp2(s * factor[:, None] - used[:, None])
        alpha = tl.math.exp2(old_shift - used)

        if not SUM_LATE:
            l = l * alpha + tl.sum(p, 1)
        acc = rescale(acc, alpha, DEFER)
        values = tile(v, batch, head_kv, first, v_row, seqlen_k, BLOCK_N, HEADDIM, TMA, MASKED)
        acc = dot(p.to(values.dtype), values, acc)
        if SUM_LATE:
            l = l * alpha + tl.sum(p, 1)
    return m, shift, l, acc


@triton.jit
def tile_of_program(tiles, HEADS_TOGETHER: tl.constexpr):
    """(tile, head over all batches) of this program.

    Heads go in gangs of HEADS_TOGETHER, small enough for their k and v to stay in L2. Within a
    gang, all heads do their first tile, then all their second, and so on.
    """
    heads = tl.num_programs(0) // tiles
    gang = tl.program_id(0) // (tiles * HEADS_TOGETHER)
    first_head = gang * HEADS_TOGETHER
    together = tl.minimum(heads - first_head, HEADS_TOGETHER)
    within = tl.program_id(0) - first_head * tiles
    return within // together, first_head + within % together


@triton.jit
def attention_forward(
    q, k, v, out, lse,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    out_batch, out_head, out_row,
    heads, group, seqlen_q, seqlen_k, causal_offset, scale, coarse,
    HEADDIM: tl.constexpr, CAUSAL: tl.constexpr, LSE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr, TMA: tl.constexpr,
    DEFER: tl.constexpr, SUM_LATE: tl.constexpr, DIAGONAL_FIRST: tl.constexpr,
    HEADS_TOGETHER: tl.constexpr,
):  # fmt: skip
    """One tile of BLOCK_M query rows of one head. Grid: (tiles · heads · batch,).

    Args:
        q, k, v: 4-d tensor descriptors if TMA, else pointers with the strides that follow.
        out, lse: pointers; lse is contiguous, fp32, and used if LSE.
        heads, group: query heads, and how many of them share a head of k and v.
        scale, coarse: |sm_scale|·log₂e > 0, and the next power of two ≥ it.
    """
    tiles = tl.cdiv(seqlen_q, BLOCK_M)
    index, batch_head = tile_of_program(tiles, HEADS_TOGETHER)
    if CAUSAL:
        index = tiles - 1 - index  # the longest first, so that the last to end are short
    batch = batch_head // heads
    head = batch_head % heads
    head_kv = head // group
    start_m = index * BLOCK_M
    rows = start_m + tl.arange(0, BLOCK_M)

    if not TMA:
        q += batch.to(tl.int64) * q_batch + head.to(tl.int64) * q_head
        k += batch.to(tl.int64) * k_batch + head_kv.to(tl.int64) * k_head
        v += batch.to(tl.int64) * v_batch + head_kv.to(tl.int64) * v_head
    queries = tile(q, batch, head, start_m, q_row, seqlen_q, BLOCK_M, HEADDIM, TMA, True)

    # Key blocks 0 to whole are seen entirely by every row; whole to stop need the mask.
    whole = seqlen_k // BLOCK_N
    stop = tl.cdiv(seqlen_k, BLOCK_N)
    first_hidden = start_m + causal_offset + 1  # from the tile's first row
    if CAUSAL:
        whole = tl.maximum(tl.minimum(whole, first_hidden // BLOCK_N), 0)
        last_hidden = first_hidden + BLOCK_M - 1
        stop = tl.maximum(tl.minimum(stop, (last_hidden + BLOCK_N - 1) // BLOCK_N), 0)

    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    shift = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEADDIM], tl.float32)
    if DIAGONAL_FIRST:
        m, shift, l, acc = sweep(
            m, shift, l, acc, queries, k, v, batch, head_kv, k_row, v_row, seqlen_k, first_hidden,
            whole, stop, scale, coarse,
            HEADDIM, BLOCK_M, BLOCK_N, TMA, DEFER, SUM_LATE, STAGES, True, CAUSAL,
        )  # fmt: skip
    m, shift, l, acc = sweep(
        m, shift, l, acc, queries, k, v, batch, head_kv, k_row, v_row, seqlen_k, first_hidden,
        0, whole, scale, coarse,
        HEADDIM, BLOCK_M, BLOCK_N, TMA, DEFER, SUM_LATE, STAGES, False, CAUSAL,
    )  # fmt: skip
    if not DIAGONAL_FIRST:
        m, shift, l, acc = sweep(
            m, shift, l, acc, queries, k, v, batch, head_kv, k_row, v_row, seqlen_k, first_hidden,
            whole, stop, scale, coarse,
            HEADDIM, BLOCK_M, BLOCK_N, TMA, DEFER, SUM_LATE, STAGES, True, CAUSAL,
        )  # fmt: skip

    # A row that saw no key is 0, also where a value of a block that its tile visited is not finite.
    blind = l == 0.0
    acc = tl.where(blind[:, None], 0.0, acc * (1.0 / tl.where(blind, 1.0, l))[:, None])
    out += batch.to(tl.int64) * out_batch + head.to(tl.int64) * out_head
    out += start_m.to(tl.int64) * out_row
    within = tl.arange(0, BLOCK_M)[:, None] * out_row + tl.arange(0, HEADDIM)[None, :]
    tl.store(out + within, acc.to(out.dtype.element_ty), mask=(rows < seqlen_q)[:, None])
    if LSE:
        # Where shift used coarse it is no logarithm.
        exact = tl.where(tl.abs(m) < GIANT / scale, shift, m * scale)
        pointers = lse + batch_head.to(tl.int64) * seqlen_q + rows
        tl.store(pointers, (exact + tl.math.log2(l)) * LN_2, mask=rows < seqlen_q)
