"""Which tiles a program computes, in closed form: no table, no counter, no atomics.

A tile is a block of query rows of one head. Under a causal mask tile i of a head costs about i + 1,
so a fair share takes some care. The work is cut into items of falling cost:

1. units: pairs of tiles, tile T−1−i of one head and tile i of its neighbour, which cost the same for
   every i. They cover the first `paired_heads` heads, a few heads at a time, whose keys and values
   therefore stay in L2.
2. single tiles of the other heads, longest first, `together` heads at a time.

Items are dealt out to the programs in turns, to and fro, so that whoever gets the largest of one
turn gets the smallest of the next. Launched with as many programs as items, each gets one.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def _item(turn, programs):
    """The item that this program, one of `programs`, is dealt in a turn."""
    program = gl.program_id(0)
    backwards = turn % 2
    return turn * programs + gl.where(backwards == 1, programs - 1 - program, program)


@gluon.jit
def _turns(items, programs):
    """How many of the first `items` items this program is dealt."""
    whole = items // programs
    return whole + gl.where(_item(whole, programs) < items, 1, 0)


@gluon.jit
def tile_count(programs, tiles, all_heads, paired_heads):
    """The number of tiles of this program."""
    units = paired_heads // 2 * tiles
    singles = (all_heads - paired_heads) * tiles
    return _turns(units, programs) + _turns(units + singles, programs)


@gluon.jit
def tile_at(index, programs, tiles, all_heads, paired_heads, together):
    """Head (batch·heads + head) and tile in it of this program's tile number `index`."""
    units = paired_heads // 2 * tiles
    paired = _turns(units, programs)
    if index < 2 * paired:
        unit = _item(index // 2, programs)
        second = index % 2
        i = unit % tiles
        head = unit // tiles * 2 + second
        tile = gl.where(second == 1, i, tiles - 1 - i)
    else:
        single = _item(index - paired, programs) - units
        gang = single // (together * tiles)
        first = paired_heads + gang * together
        together = gl.minimum(together, all_heads - first)
        within = single - gang * together * tiles
        tile = tiles - 1 - within // together
        head = first + within % together
    return head, tile
