"""Which tiles a program computes, in closed form: no table, no counter, no atomics.

A tile is a block of query rows of one head. Under a causal mask tile i of a head costs about i + 1,
so a fair share takes some care. The work is cut into items of falling cost:

1. units: pairs of tiles, tile T−1−i of one head and tile i of its neighbour, which cost the same
   for every i. They cover most heads, a few at a time, whose keys and values therefore stay in L2.
2. single tiles of the other heads, the longest of every head first.

Without a mask there are only single tiles, a head at a time.

Items are dealt out to the programs in turns, to and fro, so that whoever gets the largest of one
turn gets the smallest of the next. Launched with as many programs as items, each gets one.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.gluon_compat import aggregate
from kernels.attention.hopper_ptx import opaque

ROWS = gl.constexpr(64)  # of queries that one consumer holds: what a wgmma has


@gluon.jit
def divide(number, divisor):
    """number // d, where 0 ≤ number < 2³¹ and `divisor` is hopper.divisor(d): multiply and shift.

    A division proper takes some 40 instructions, one after the other.
    """
    product = number.to(gl.uint32).to(gl.int64) * (divisor & 0xFFFFFFFF)
    return (product >> (divisor >> 32)).to(gl.int32)


@aggregate
class Plan:
    """What producer and consumers alike know: the problem, its division, and who does what."""

    heads: gl.tensor
    by_heads: gl.tensor  # this and the other by_… are divisors, see `divide`
    by_group: gl.tensor  # query heads that share a head of keys and values
    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    causal_offset: gl.tensor
    programs: gl.tensor
    tiles: gl.tensor  # of one head
    by_tiles: gl.tensor
    units: gl.tensor
    unit_turns: gl.tensor  # units // programs
    items: gl.tensor
    item_turns: gl.tensor  # items // programs
    paired_heads: gl.tensor
    single_heads: gl.tensor
    by_single_heads: gl.tensor
    CAUSAL: gl.constexpr
    BLOCK_N: gl.constexpr
    CONSUMERS: gl.constexpr

    @gluon.constexpr_function
    def __init__(
        self, heads, by_heads, by_group, seqlen_q, seqlen_k, causal_offset, programs, tiles,
        by_tiles, units, unit_turns, items, item_turns, paired_heads, single_heads, by_single_heads,
        CAUSAL, BLOCK_N, CONSUMERS,
    ):  # fmt: skip
        self.heads = heads
        self.by_heads = by_heads
        self.by_group = by_group
        self.seqlen_q = seqlen_q
        self.seqlen_k = seqlen_k
        self.causal_offset = causal_offset
        self.programs = programs
        self.tiles = tiles
        self.by_tiles = by_tiles
        self.units = units
        self.unit_turns = unit_turns
        self.items = items
        self.item_turns = item_turns
        self.paired_heads = paired_heads
        self.single_heads = single_heads
        self.by_single_heads = by_single_heads
        self.CAUSAL = gl.constexpr(CAUSAL)
        self.BLOCK_N = gl.constexpr(BLOCK_N)
        self.CONSUMERS = gl.constexpr(CONSUMERS)

    @gluon.jit
    def item(self, turn):
        """The item that this program is dealt in a turn."""
        program = gl.program_id(0)
        back = self.programs - 1 - program
        return turn * self.programs + gl.where(turn & 1 == 1, back, program)

    @gluon.jit
    def unit_count(self):
        """The number of units of this program."""
        turns = opaque(self.unit_turns)
        return turns + gl.where(self.item(turns) < self.units, 1, 0)

    @gluon.jit
    def tile_count(self, unit_count):
        """The number of tiles of this program: two a unit, and the single ones."""
        turns = opaque(self.item_turns)
        return unit_count + turns + gl.where(self.item(turns) < self.items, 1, 0)

    @gluon.jit
    def split(self, which):
        """(batch, head) of batch·heads + head."""
        batch = divide(which, self.by_heads)
        return batch, which - batch * self.heads

    @gluon.jit
    def tile(self, index, unit_count):
        """This program's tile number `index`: head (batch·heads + head), first row and key blocks.

        The tiles of a head end with its last row, so the first may begin before row 0: under a
        causal mask that makes the shortest tile the ragged one. Key blocks are visited from the
        last one that any row sees down to 0; there is always one, even if no row sees a key of it.
        """
        if self.CAUSAL:
            unit = index // 2
            pairs = unit < unit_count
            item = self.item(gl.where(pairs, unit, index - unit_count))
            item = gl.where(pairs, item, item - self.units)
            quotient = divide(item, gl.where(pairs, self.by_tiles, self.by_single_heads))
            rest = item - quotient * gl.where(pairs, self.tiles, self.single_heads)
            second = index & 1
            head = gl.where(pairs, 2 * quotient + second, self.paired_heads + rest)
            of_pair = gl.where(second == 1, self.tiles - 1 - rest, rest)
            from_end = gl.where(pairs, of_pair, quotient)
        else:
            item = self.item(index)
            head = divide(item, self.by_tiles)
            from_end = item - head * self.tiles
        row = opaque(self.seqlen_q) - (from_end + 1) * (ROWS * gl.num_ctas() * self.CONSUMERS)
        blocks = gl.cdiv(opaque(self.seqlen_k), self.BLOCK_N)
        if self.CAUSAL:
            end = row + ROWS * gl.num_ctas() * self.CONSUMERS + opaque(self.causal_offset)
            blocks = gl.minimum(blocks, gl.cdiv(end, self.BLOCK_N))
        return head, row, gl.maximum(blocks, 1)

    @gluon.jit
    def first_row(self):
        """The first row that sees a key."""
        if self.CAUSAL:
            row = gl.maximum(-self.causal_offset, 0)
        else:
            row = 0
        return row

    @gluon.jit
    def spare(self, blocks, row):
        """How many of a tile's last key blocks a consumer may skip, because none of its 64 rows,
        from `row` on, sees a key of them.

        Two at most: to skip more than there are stages, a consumer would have to wait for keys that
        come after values whose stage it has not released.
        """
        seen = gl.cdiv(row + ROWS * gl.num_ctas() + opaque(self.causal_offset), self.BLOCK_N)
        return gl.maximum(gl.minimum(blocks - gl.maximum(seen, 1), 2), 0)

    @gluon.jit
    def whole(self, left, row):
        """How many of a tile's first `left` blocks a consumer need not mask: all or none."""
        if self.CAUSAL:
            left = gl.where(left * self.BLOCK_N <= row + opaque(self.causal_offset) + 1, left, 0)
        return left
