"""Which tiles a program computes, in closed form: no table, no counter, no atomics.

A tile is a block of query rows of one head. Under a causal mask tile i of a head costs about i + 1,
so a fair share takes some care. The work is cut into items of falling cost:

1. units: pairs of tiles, tile T−1−i of one head and tile i of its neighbour, which cost the same
   for every i. They cover the first `head_pairs` pairs of heads, a few heads at a time, whose keys
   and values therefore stay in L2.
2. single tiles of the other heads, longest first, `together` heads at a time.

Items are dealt out to the programs in turns, to and fro, so that whoever gets the largest of one
turn gets the smallest of the next. Launched with as many programs as items, each gets one.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.gluon_compat import aggregate
from kernels.attention.hopper_ptx import opaque

ROWS = gl.constexpr(64)  # of queries that one consumer holds: what a wgmma has


@aggregate
class Plan:
    """What producer and consumers alike know: the problem, its division, and who does what."""

    heads: gl.tensor
    group: gl.tensor  # query heads that share a head of keys and values
    all_heads: gl.tensor  # batch · heads
    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    causal_offset: gl.tensor
    programs: gl.tensor
    head_pairs: gl.tensor
    together: gl.tensor
    CAUSAL: gl.constexpr
    BLOCK_N: gl.constexpr
    CONSUMERS: gl.constexpr

    @gluon.constexpr_function
    def __init__(
        self, heads, group, all_heads, seqlen_q, seqlen_k, causal_offset,
        programs, head_pairs, together, CAUSAL, BLOCK_N, CONSUMERS,
    ):  # fmt: skip
        self.heads = heads
        self.group = group
        self.all_heads = all_heads
        self.seqlen_q = seqlen_q
        self.seqlen_k = seqlen_k
        self.causal_offset = causal_offset
        self.programs = programs
        self.head_pairs = head_pairs
        self.together = together
        self.CAUSAL = gl.constexpr(CAUSAL)
        self.BLOCK_N = gl.constexpr(BLOCK_N)
        self.CONSUMERS = gl.constexpr(CONSUMERS)

    @gluon.jit
    def tiles(self):
        """Tiles of one head."""
        return gl.cdiv(opaque(self.seqlen_q), ROWS * self.CONSUMERS)

    @gluon.jit
    def item(self, turn):
        """The item that this program is dealt in a turn."""
        program = gl.program_id(0)
        back = self.programs - 1 - program
        return turn * self.programs + gl.where(turn % 2 == 1, back, program)

    @gluon.jit
    def turns(self, items):
        """How many of the first `items` items this program is dealt."""
        whole = items // self.programs
        return whole + gl.where(self.item(whole) < items, 1, 0)

    @gluon.jit
    def count(self):
        """The number of tiles of this program."""
        tiles = self.tiles()
        units = self.head_pairs * tiles
        singles = (self.all_heads - 2 * self.head_pairs) * tiles
        return self.turns(units) + self.turns(units + singles)

    @gluon.jit
    def tile(self, index):
        """This program's tile number `index`: head (batch·heads + head), first row and key blocks.

        The tiles of a head end with its last row, so the first may begin before row 0: under a
        causal mask that makes the shortest tile the ragged one. Key blocks are visited from the
        last one that any row sees down to 0; there is always one, even if no row sees a key of it.
        """
        tiles = self.tiles()
        units = self.head_pairs * tiles
        paired = self.turns(units)
        if index < 2 * paired:
            unit = self.item(index // 2)
            second = index % 2
            i = unit % tiles
            head = unit // tiles * 2 + second
            from_end = gl.where(second == 1, tiles - 1 - i, i)
        else:
            single = self.item(index - paired) - units
            gang = single // (self.together * tiles)
            first = 2 * self.head_pairs + gang * self.together
            together = gl.minimum(self.together, self.all_heads - first)
            within = single - gang * self.together * tiles
            head = first + within % together
            from_end = within // together
        row = opaque(self.seqlen_q) - (from_end + 1) * (ROWS * self.CONSUMERS)
        blocks = gl.cdiv(opaque(self.seqlen_k), self.BLOCK_N)
        if self.CAUSAL:
            end = row + ROWS * self.CONSUMERS + self.causal_offset
            blocks = gl.minimum(blocks, gl.cdiv(end, self.BLOCK_N))
        return head, row, gl.maximum(blocks, 1)
