"""The Hopper template: attention forward in Gluon, Triton's lower dialect, for sm_90 alone.

The kernel is hopper_kernel.py. This module says which configs it has, why some cannot run, how one
is compiled without a GPU and how it is launched. Importing it loads neither Triton nor torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kernels.attention import compiler, launching
from kernels.attention.base_2 import in_base_2
from kernels.attention.capability import limits
from kernels.attention.compiler import Argument
from kernels.attention.config import Config
from kernels.attention.launching import Work, strides_of, visible
from kernels.attention.layout import ALIGNMENT
from kernels.attention.problem import DTYPES, HEADDIMS, Problem, Specialization
from kernels.attention.template import Binary, Launch, Resources, Space, Template
from kernels.attention.version import version_hash

if TYPE_CHECKING:
    from torch import Tensor

_CAPABILITY = 90  # wgmma is sm_90a alone: nothing before has it, nothing after keeps it
_ALIGNMENT = ALIGNMENT // 2  # in elements, of 2 bytes
_ROWS = 64  # of queries in a consumer
_MAX_FP32 = 2.0**127 * (2 - 2.0**-23)
_GIANT = 2.0**27  # |m·scale| from which the shift is made exact by a power of two
_STALE = 3.0  # log₂ 8: how far a row's maximum may grow before its stale value is replaced

# Registers of a consumer's thread and of the producer's warpgroup, per number of consumers. They
# use up the 65536 there are, in the steps of 8 that setmaxnreg takes, and at least 24.
_REGISTERS = {2: (240, 24), 3: (160, 32)}

_HARDWARE_BARRIERS = 16

# Shared memory beside the queries, keys and values: what turns a consumer's output around, and
# barriers.
_SCRATCH, _BARRIERS = 2048, 512

# Columns of a consumer's queries that may stay in registers. More of them pay nowhere.
_Q_HELD = {64: (0, 64), 128: (0, 64), 256: (0,)}

# What a tile costs beside its blocks, as a share of the cost of one tile's worth of them.
_OVERHEAD = 0.6

# From here on a tile of 192 rows beats one of 128 at headdim 64: fewer hide less of a mask.
_TALL_SEQLEN = 2048

# From here on a loop of its own for blocks without a mask pays under a causal mask: in a short
# sequence few blocks have none, and the code of two loops no longer fits the instruction caches.
_LONG_SEQLEN = 2048

# Shapes that a process keeps the arithmetic of: it takes up to half a millisecond.
_REMEMBERED = 1024

_CONSTEXPRS = 14  # of hopper_kernel.attention_forward


class HopperTemplate(Template):
    """See the module and Template."""

    name = "hopper"
    added: ClassVar = {"q_held": 0}

    @cached_property
    def version(self) -> str:
        kernel = version_hash(Path(__file__).with_name("hopper_kernel.py"), ["attention_forward"])
        numbers = f"{kernel} {_REGISTERS} {_GIANT} {_STALE}"  # which decide what it computes, too
        return sha256(numbers.encode()).hexdigest()[:12]

    def space(self, specialization: Specialization) -> Space:
        return {
            "BLOCK_N": (64, 128),
            "consumers": (2, 3),
            "stages": (2, 3, 4),
            "q_buffers": (1, 2),
            "ping_pong": (False, True),
            "defer_rescale": (False, True),
            "whole_loop": (False, True),
            "early_halves": (0, 1, 2),
            "q_held": _Q_HELD[specialization.headdim],
        }

    def supports(self, specialization: Specialization, capability: int) -> str | None:
        if specialization.headdim not in HEADDIMS:
            return f"headdim is {specialization.headdim}, but must be one of {HEADDIMS}"
        if specialization.dtype not in DTYPES:
            return f"dtype is {specialization.dtype}, but must be one of {DTYPES}"
        if capability != _CAPABILITY:
            return f"sm_{capability} has no wgmma; only sm_{_CAPABILITY} has"
        return None

    def reject(self, specialization: Specialization, config: Config, capability: int) -> str | None:
        if (reason := self.unfit(specialization, config, capability)) is not None:
            return reason
        block_n, consumers, stages, q_buffers = (
            int(config[name]) for name in ("BLOCK_N", "consumers", "stages", "q_buffers")
        )
        headdim, have = specialization.headdim, limits(capability)
        # Accumulator and scores in fp32, weights and queries in 16 bits; the rest is addresses and
        # row state.
        q_held = int(config["q_held"])
        needed = headdim // 2 + block_n // 2 + block_n // 4 + q_held // 4
        if needed > _REGISTERS[consumers][0] - 24:
            return f"acc, s, p and q alone take {needed} of {_REGISTERS[consumers][0]} registers"
        early_halves = int(config["early_halves"])
        if q_held and consumers == 3:
            return f"{_REGISTERS[consumers][0]} registers are too few for q_held"
        if config["whole_loop"]:
            if block_n == 128 and consumers == 3 and early_halves > (not specialization.causal):
                return (
                    f"two loops over blocks of 128 keys spill {_REGISTERS[consumers][0]} registers"
                )
        elif early_halves == 1:
            return "early_halves 1 is part of whole_loop"
        shared = _shared_memory(headdim, config)
        if shared > have.shared_memory:
            return f"q, k and v take {shared} bytes of {have.shared_memory} of shared memory"
        ours, theirs = consumers + q_buffers + 2 * stages, 1 + consumers
        if ours + theirs > _HARDWARE_BARRIERS:
            return f"{ours} barriers and Triton's {theirs} exceed {_HARDWARE_BARRIERS}"
        return None

    def block_warps(self, config: Config) -> int:
        """Four a consumer, and four for the producer: Triton rounds its one up to a warpgroup."""
        return 4 * int(config["consumers"]) + 4

    def block_rows(self, config: Config) -> int:
        """A warpgroup's for each consumer."""
        return _ROWS * int(config["consumers"])

    def estimate(
        self,
        specialization: Specialization,
        config: Config,
        capability: int,  # noqa: ARG002
    ) -> Resources:
        """As Template.estimate. The registers are those of a thread in the mean, as the compiler
        says, too."""
        consumers = int(config["consumers"])
        own, producers = _REGISTERS[consumers]
        return Resources(
            registers=(consumers * own + producers) // (consumers + 1),
            spills=0,
            shared_memory=_shared_memory(specialization.headdim, config),
        )

    def default(self, problem: Problem, capability: int) -> Config:  # noqa: ARG002
        block_n, consumers, stages, q_buffers = {
            64: (128, 3, 3, 2), 128: (128, 2, 2, 2), 256: (64, 2, 2, 1),
        }[problem.headdim]  # fmt: skip
        if problem.headdim == 64 and problem.seqlen < _TALL_SEQLEN:
            consumers, stages = 2, 4
        whole_loop = problem.headdim < 256 and (
            not problem.causal or problem.seqlen >= _LONG_SEQLEN
        )
        return Config(
            BLOCK_N=block_n, consumers=consumers, stages=stages, q_buffers=q_buffers,
            ping_pong=True, defer_rescale=True, whole_loop=whole_loop,
            early_halves=1 if whole_loop and (consumers == 2 or not problem.causal) else 0,
            q_held=0,
        )  # fmt: skip

    def compile(self, specialization: Specialization, config: Config, capability: int) -> Binary:
        from kernels.attention.hopper_kernel import attention_forward

        source = compiler.source(attention_forward, _arguments(specialization, config), gluon=True)
        # The warps of the first consumer; Triton adds those of the others.
        kernel = compiler.compile_kernel(source, capability, {"num_warps": 4})
        return Binary(kernel, config, specialization, compiler.resources)

    def prepare(
        self,
        binary: Binary,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        sm_scale: float,
        causal_offset: int = 0,
    ) -> Launch | None:
        """As Template.prepare. Keys that causality hides from every row are not read at all."""
        return launching.prepare(work_out, binary, q, k, v, out, sm_scale, causal_offset)


def _shared_memory(headdim: int, config: Config) -> int:
    """Bytes of a block: q, k and v, what conversions take, and barriers."""
    consumers = int(config["consumers"])
    rows = consumers * _ROWS * int(config["q_buffers"])
    keys = 2 * int(config["stages"]) * int(config["BLOCK_N"])
    return 2 * headdim * (rows + keys) + _SCRATCH * consumers + _BARRIERS


def work_out(
    config: Mapping[str, Any],
    causal: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sm_scale: float,
    causal_offset: int,
) -> Work | None:
    """See launching.WorkOut."""
    batch, heads, seqlen_q, headdim = q.shape
    _, heads_kv, seqlen_k, _ = k.shape
    if causal:
        seqlen_k, causal_offset = visible(seqlen_q, seqlen_k, causal_offset)
    if batch * heads * seqlen_q == 0 or seqlen_k <= 0:
        return None
    keys = (batch, heads_kv, seqlen_k, headdim)
    shapes = ((batch, heads, seqlen_q, headdim), keys, keys)
    scale, coarse = in_base_2(sm_scale)
    limit = min(_GIANT / scale, _MAX_FP32)
    lowest = -_MAX_FP32 / max(1.0, coarse)
    tiles = -(-seqlen_q // (_ROWS * int(config["consumers"])))
    all_heads = batch * heads
    programs, head_pairs = schedule(tiles, all_heads, _multiprocessors(q.device.index), causal)
    single_heads = all_heads - 2 * head_pairs
    units, items = head_pairs * tiles, (head_pairs + single_heads) * tiles
    after = (
        *strides_of(out)[:3],
        heads, divisor(heads), divisor(heads // heads_kv),
        seqlen_q, seqlen_k, causal_offset if causal else 0,
        programs, tiles, divisor(tiles), units, units // programs, items, items // programs,
        2 * head_pairs, single_heads, divisor(max(1, single_heads)),
        scale, coarse, limit, _STALE / scale, lowest, lowest * coarse,
        *(None,) * _CONSTEXPRS,
    )  # fmt: skip
    strides = tuple(strides_of(tensor) for tensor in (q, k, v))
    return Work(programs, after, shapes, strides)


@cache
def _multiprocessors(device: int) -> int:
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@lru_cache(_REMEMBERED)
def divisor(number: int) -> int:
    """`number` as hopper_schedule.divide takes it: a factor, and above its 32 bits a shift.

    Granlund and Montgomery, Division by Invariant Integers using Multiplication (1994).
    """
    shift = 31 + (number - 1).bit_length()
    return shift << 32 | -(-(1 << shift) // number)


@lru_cache(_REMEMBERED)
def schedule(tiles: int, all_heads: int, multiprocessors: int, causal: bool) -> tuple[int, int]:
    """How hopper_schedule.py is to deal out the tiles: to how many programs, and pairs of heads.

    Under a causal mask the single tiles at the end even out what the pairs before leave uneven: of
    the numbers of heads to keep for that, the smallest that is as good as the best.
    """
    programs = min(multiprocessors, tiles * all_heads)
    if not causal:
        return programs, 0
    least, single_heads = math.inf, all_heads
    for heads in _candidates(tiles, all_heads, programs):
        makespan = _makespan(tiles, (all_heads - heads) // 2, heads, programs)
        if makespan < least * 0.998:
            least, single_heads = makespan, heads
    head_pairs = (all_heads - single_heads) // 2
    # A program without an item would wait for ever: there is at least one for each.
    return min(programs, (head_pairs + single_heads) * tiles), head_pairs


def _candidates(tiles: int, all_heads: int, programs: int) -> list[int]:
    """Numbers of heads whose tiles are dealt out singly: about 1½ to 8 turns' worth of tiles, or
    all, and such that an even number is left."""
    few = max(1, -(-3 * programs // (2 * tiles)))
    many = max(few, 8 * programs // tiles)
    step = max(1, (many - few) // 16)
    chosen = {min(all_heads, n + (all_heads - n) % 2) for n in range(few, many + 1, step)}
    return sorted(chosen)


def _makespan(tiles: int, head_pairs: int, single_heads: int, programs: int) -> float:
    """The time of the busiest program, where tile i takes i + 1, and every tile a bit more.

    Looks at every fourth program: neighbours differ little.
    """
    units, singles = head_pairs * tiles, single_heads * tiles
    turns = -(-(units + singles) // programs)
    most = 0.0
    for program in range(0, programs, 4):
        time = 0.0
        for turn in range(units // programs, turns):
            item = turn * programs + (programs - 1 - program if turn % 2 else program)
            if item < units:
                time += tiles + 1 + 2 * _OVERHEAD
            elif item < units + singles:
                time += tiles - (item - units) // single_heads + _OVERHEAD
        most = max(most, time)
    return most + units // programs * (tiles + 1 + 2 * _OVERHEAD)


def _arguments(specialization: Specialization, config: Config) -> list[Argument]:
    """The parameters of hopper_kernel.attention_forward for one binary.

    Integers are not specialised: one binary serves every seqlen, batch and stride.
    """
    dtype, headdim = specialization.dtype, specialization.headdim
    layout = "NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)"
    arguments = [
        Argument(name, f"tensordesc<{dtype}[1,1,{rows},{headdim}],{layout}>")
        for name, rows in (("q", _ROWS), ("k", config["BLOCK_N"]), ("v", config["BLOCK_N"]))
    ]
    arguments.append(Argument("out", f"*{dtype}", divisible_by=16))
    arguments.append(
        Argument("lse", "*fp32", divisible_by=4)
        if specialization.lse
        else Argument("lse", "constexpr")
    )
    arguments += [
        Argument(f"out_{dimension}", "i64", divisible_by=_ALIGNMENT)
        for dimension in ("batch", "head", "row")
    ]
    arguments += [
        Argument(name, "i64" if name.startswith("by_") else "i32")
        for name in ("heads", "by_heads", "by_group", "seqlen_q", "seqlen_k", "causal_offset",
                     "programs", "tiles", "by_tiles", "units", "unit_turns", "items", "item_turns",
                     "paired_heads", "single_heads", "by_single_heads")
    ]  # fmt: skip
    arguments += [
        Argument(name, "fp32")
        for name in ("scale", "coarse", "limit", "stale", "lowest", "lowest_shift")
    ]
    consumer_registers, producer_registers = _REGISTERS[int(config["consumers"])]
    constants = {
        "HEADDIM": headdim,
        "CAUSAL": specialization.causal,
        "LSE": specialization.lse,
        "BLOCK_N": config["BLOCK_N"],
        "CONSUMERS": config["consumers"],
        "STAGES": config["stages"],
        "Q_BUFFERS": config["q_buffers"],
        "PING_PONG": config["ping_pong"],
        "DEFER": config["defer_rescale"],
        "WHOLE_LOOP": config["whole_loop"],
        "HALVES": config["early_halves"],
        "Q_HELD": config["q_held"],
        "CONSUMER_REGISTERS": consumer_registers,
        "PRODUCER_REGISTERS": producer_registers,
    }
    return arguments + [Argument(name, "constexpr", value) for name, value in constants.items()]
