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

Causality: row i sees keys j ≤ i + causal_offset. The blocks that every row of the tile sees
entirely are swept without any mask; only those on the diagonal, and a last one that passes the
end of the keys, are swept by the masked instance of the same loop.
"""

import os

import triton
import triton.language as tl

# The interpreter decorates at import. Its bf16 dot is wrong (Triton 3.6) and it has no inline
# assembly, so kernels take another road there.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")

# log₂ 8: how far a row's maximum may grow before its stale value is replaced.
STALE = tl.constexpr(3.0)

# |m·scale| from which shift is made exact by a power of two.
GIANT = tl.constexpr(134217728.0)

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def dot(a, b):
    """a·b in fp32 from fp16 or bf16."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b)


# 32 accumulators, multiplied by their alphas unless no lane of the warp has grown. Operands: $0–$31
# the accumulators, tied to $32–$63; $64–$95 alphas; $96–$127 flags, the same in all lanes.
_PACK = 32
PACK = tl.constexpr(_PACK)
SKIP_ASM = tl.constexpr(
    "{ .reg .pred grown; .reg .b32 any; mov.b32 any, 0;\n"
    + "".join(f"or.b32 any, any, ${3 * _PACK + i};\n" for i in range(_PACK))
    + "setp.ne.b32 grown, any, 0;\n@!grown bra.uni DONE;\n"
    + "".join(f"mul.f32 ${i}, ${i}, ${2 * _PACK + i};\n" for i in range(_PACK))
    + "DONE: }"
)
SKIP_CONSTRAINTS = tl.constexpr(
    ",".join(["=f"] * _PACK + [str(i) for i in range(_PACK)] + ["f"] * _PACK + ["r"] * _PACK)
)
VOTE_ASM = tl.constexpr(
    "{ .reg .pred p; setp.neu.f32 p, $1, 0f3F800000; vote.sync.any.pred p, p, 0xffffffff;\n"
    "selp.b32 $0, 1, 0, p; }"
)


@triton.jit
def rescale(acc, alpha, DEFER: tl.constexpr):
    """acc·alpha per row; with DEFER, a warp in which every alpha is 1 branches around it."""
    if DEFER == 0 or INTERPRETED:
        acc = acc * alpha[:, None]
    elif DEFER == 1:
        grown = tl.inline_asm_elementwise(VOTE_ASM, "=r,f", [alpha], tl.int32, True, 1)
        acc = tl.inline_asm_elementwise(
            SKIP_ASM, SKIP_CONSTRAINTS, [acc, alpha[:, None], grown[:, None]], tl.float32, True, PACK
        )
    elif DEFER == 2:
        if tl.min(alpha, 0) < 1.0:
            acc = acc * alpha[:, None]
    elif DEFER == 3:
        acc = acc * alpha[:, None]
    return acc


@triton.jit
def tile(source, batch, head, start, row, length, BLOCK: tl.constexpr, HEADDIM: tl.constexpr,
         TMA: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """Rows start to start + BLOCK of one head, (BLOCK, HEADDIM); rows past `length` read as zeros.

    `source` is a 4-d tensor descriptor, or a pointer to the head's row 0 with `row` the stride.
    """
    if TMA:
        block = source.load([batch, head, start, 0]).reshape(BLOCK, HEADDIM)
    else:
        rows = tl.arange(0, BLOCK)
        inner = rows[:, None] * row + tl.arange(0, HEADDIM)[None, :]
        pointers = source + start.to(tl.int64) * row + inner
        if MASKED:
            block = tl.load(pointers, mask=(start + rows < length)[:, None], other=0.0)
        else:
            block = tl.load(pointers)
    return block


@triton.jit
def sweep(m, shift, l, acc, q, k, v, batch, head_kv, k_row, v_row, length, first_hidden, start, stop,
          scale, coarse, limit,
          HEADDIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr,
          DEFER: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, STAGES: tl.constexpr,
          CLEAN: tl.constexpr, GUARD: tl.constexpr, UNROLL: tl.constexpr):  # fmt: skip
    """The online softmax over the key blocks start to stop; returns the new (m, shift, l, acc).

    Row r of the tile sees the keys before first_hidden + r and before `length`; only the MASKED
    instance looks at that.
    """
    for block in tl.range(start, stop, num_stages=STAGES, loop_unroll_factor=UNROLL):
        first = block * BLOCK_N
        keys = tile(k, batch, head_kv, first, k_row, length, BLOCK_N, HEADDIM, TMA, MASKED)
        s = dot(q, tl.trans(keys))
        if CLEAN and MASKED:
            values = tile(v, batch, head_kv, first, v_row, length, BLOCK_N, HEADDIM, TMA, MASKED)
            finite = tl.abs(values.to(tl.float32)) < float("inf")
            values = tl.where(finite, values, 0.0)
            poison = tl.where(tl.min(finite.to(tl.int32), 1) == 1, 0.0, float("nan"))
            s += poison[None, :]
        if MASKED:
            column = first + tl.arange(0, BLOCK_N)
            if CAUSAL:
                row_end = tl.minimum(first_hidden + tl.arange(0, BLOCK_M), length)
                seen = column[None, :] < row_end[:, None]
            else:
                seen = (column < length)[None, :]
            s = tl.where(seen, s, float("-inf"))

        top = tl.max(s, 1)
        if DEFER:
            new_m = tl.where(top > m + STALE / scale, top, m)
        else:
            new_m = tl.maximum(m, top)
        if GUARD:
            factor = tl.where(tl.abs(new_m) < limit, scale, coarse)
            new_shift = new_m * factor
            factor2 = factor[:, None]
        else:
            new_shift = new_m * scale
            factor2 = scale
        if MASKED:
            # A row that has seen nothing yet: any finite shift gives p = 0 and alpha = 0.
            used = tl.where(new_m == float("-inf"), 0.0, new_shift)
        else:
            used = new_shift
        alpha = tl.math.exp2(shift - used)
        p = tl.math.exp2(s * factor2 - used[:, None])
        l = l * alpha + tl.sum(p, 1)
        acc = rescale(acc, alpha, DEFER)
        if not (CLEAN and MASKED):
            values = tile(v, batch, head_kv, first, v_row, length, BLOCK_N, HEADDIM, TMA, MASKED)
        if INTERPRETED:
            acc += dot(p.to(values.dtype), values)
        else:
            acc = tl.dot(p.to(values.dtype), values, acc)
        m = new_m
        shift = new_shift
    return m, shift, l, acc


@triton.jit
def attention_forward(
    q, k, v, out, lse,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    out_batch, out_head, out_row,
    heads, group, seqlen_q, seqlen_k, causal_offset, scale, coarse,
    HEADDIM: tl.constexpr, CAUSAL: tl.constexpr, LSE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TMA: tl.constexpr, DEFER: tl.constexpr,
    DIAGONAL_FIRST: tl.constexpr, STAGES: tl.constexpr,
    CLEAN: tl.constexpr, GUARD: tl.constexpr, UNROLL: tl.constexpr, HEADS_TOGETHER: tl.constexpr,
):  # fmt: skip
    """One tile of BLOCK_M query rows of one head. Grid: (tiles · heads · batch,)."""
    tiles = tl.cdiv(seqlen_q, BLOCK_M)
    index = tl.program_id(0)
    if HEADS_TOGETHER == 1:
        tile_index = index % tiles
        head_index = index // tiles
    else:
        total = tl.num_programs(0) // tiles
        together = tl.minimum(HEADS_TOGETHER, total)
        gang = index // (tiles * together)
        first_head = gang * together
        together = tl.minimum(together, total - first_head)
        within = index - first_head * tiles
        tile_index = within // together
        head_index = first_head + within % together
    if CAUSAL:
        tile_index = tiles - 1 - tile_index  # the longest first
    batch = head_index // heads
    head = head_index % heads
    head_kv = head // group
    start_m = tile_index * BLOCK_M
    rows = start_m + tl.arange(0, BLOCK_M)

    if not TMA:
        q += batch.to(tl.int64) * q_batch + head.to(tl.int64) * q_head
        k += batch.to(tl.int64) * k_batch + head_kv.to(tl.int64) * k_head
        v += batch.to(tl.int64) * v_batch + head_kv.to(tl.int64) * v_head
    query = tile(q, batch, head, start_m, q_row, seqlen_q, BLOCK_M, HEADDIM, TMA, True)

    stop = tl.cdiv(seqlen_k, BLOCK_N)
    whole = seqlen_k // BLOCK_N
    first_hidden = start_m + 1 + causal_offset
    if CAUSAL:
        whole = tl.maximum(tl.minimum(whole, first_hidden // BLOCK_N), 0)
        last_hidden = first_hidden - 1 + BLOCK_M
        stop = tl.maximum(tl.minimum(stop, (last_hidden + BLOCK_N - 1) // BLOCK_N), 0)

    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    shift = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEADDIM], tl.float32)
    limit = GIANT / scale
    if DIAGONAL_FIRST:
        m, shift, l, acc = sweep(
            m, shift, l, acc, query, k, v, batch, head_kv, k_row, v_row, seqlen_k, first_hidden,
            whole, stop, scale, coarse, limit, HEADDIM, BLOCK_M, BLOCK_N, TMA, DEFER, True, CAUSAL, STAGES, CLEAN, GUARD, 1)  # fmt: skip
    m, shift, l, acc = sweep(
        m, shift, l, acc, query, k, v, batch, head_kv, k_row, v_row, seqlen_k, first_hidden,
        0, whole, scale, coarse, limit, HEADDIM, BLOCK_M, BLOCK_N, TMA, DEFER, False, CAUSAL, STAGES, CLEAN, GUARD, UNROLL)  # fmt: skip
    if not DIAGONAL_FIRST:
        m, shift, l, acc = sweep(
            m, shift, l, acc, query, k, v, batch, head_kv, k_row, v_row, seqlen_k, first_hidden,
            whole, stop, scale, coarse, limit, HEADDIM, BLOCK_M, BLOCK_N, TMA, DEFER, True, CAUSAL, STAGES, CLEAN, GUARD, 1)  # fmt: skip

    l = tl.where(l == 0.0, 1.0, l)  # no key seen: acc is 0
    acc = acc * (1.0 / l)[:, None]
    out += batch.to(tl.int64) * out_batch + head.to(tl.int64) * out_head
    out += start_m.to(tl.int64) * out_row
    inner = tl.arange(0, BLOCK_M)[:, None] * out_row + tl.arange(0, HEADDIM)[None, :]
    tl.store(out + inner, acc.to(out.dtype.element_ty), mask=(rows < seqlen_q)[:, None])
    if LSE:
        exact = tl.where(tl.abs(m) < limit, shift, m * scale)
        natural = (exact + tl.math.log2(l)) * LN_2
        tl.store(lse + head_index.to(tl.int64) * seqlen_q + rows, natural, mask=rows < seqlen_q)
