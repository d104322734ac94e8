"""The portable template: attention forward in Triton's `tl` language, for sm_80 and newer.

The kernel is portable_kernel.py. This module says which configs it has, why some cannot run, how
one is compiled without a GPU and how it is launched. Importing it loads neither Triton nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.attention import compiler, launching
from kernels.attention.base_2 import in_base_2
from kernels.attention.capability import limits, supported
from kernels.attention.compiler import Argument
from kernels.attention.config import Config, Value
from kernels.attention.launching import Work, strides_of, visible
from kernels.attention.layout import ALIGNMENT
from kernels.attention.problem import DTYPES, HEADDIMS, Problem, Specialization
from kernels.attention.template import Binary, Launch, Resources, Space, Template
from kernels.attention.version import version_hash

if TYPE_CHECKING:
    from torch import Tensor

_ALIGNMENT = ALIGNMENT // 2  # in elements, of 2 bytes
_OTHER_REGISTERS = 40  # of a thread, besides acc and s: p, the statistics of rows, addresses

_CONSTEXPRS = 11  # of portable_kernel.attention_forward

# The default tiles: BLOCK_M, BLOCK_N, num_warps, num_stages, maxnreg, diagonal_first. Those for
# Hopper are the fastest without spills of some 500 configs on an H100: D64 S4096, D128 S8192 and
# D256 S16384, causal, and a few of them at other lengths. (At D256, full or short, 64×128 with 4
# warps and one stage is up to 15 % faster, but spills some 50 to 100 bytes.) The others fit and
# are plausible: nobody has timed them.
_TILES = {
    "sm_90": {
        64: (64, 128, 4, 2, 168, False),
        128: (64, 128, 4, 1, 168, True),
        256: (128, 64, 8, 2, 0, False),
    },
    "sm_90, causal and short": {
        64: (64, 64, 4, 2, 0, True),
        128: (64, 128, 4, 1, 168, True),
        256: (128, 64, 8, 2, 0, False),
    },
    "sm_100 to sm_103": {
        64: (128, 64, 4, 3, 0, False),
        128: (128, 128, 8, 3, 0, False),
        256: (128, 64, 8, 2, 0, False),
    },
    "others": {
        64: (128, 64, 4, 2, 0, False),
        128: (128, 64, 8, 2, 0, False),
        256: (64, 32, 4, 1, 0, False),
    },
}


class PortableTemplate(Template):
    """See the module and Template."""

    name = "portable"

    @cached_property
    def version(self) -> str:
        return version_hash(Path(__file__).with_name("portable_kernel.py"), ["attention_forward"])

    def space(self, specialization: Specialization) -> Space:
        """Tiles and pipelining (BLOCK_M, BLOCK_N, num_warps, num_stages), and

        maxnreg: registers a thread, 0 for as many as it likes; fewer let more blocks share a
            multiprocessor, so that one's softmax meets another's matrix products.
        defer_rescale: see portable_kernel.
        tma: tensor descriptors, not pointers.
        diagonal_first: the masked blocks before the others.
        heads_together: heads whose tiles are interleaved.
        sum_late: add up p after p·v (headdim 256, where the registers do not decide).
        """
        headdim = specialization.headdim
        space: dict[str, tuple[Value, ...]] = {
            "BLOCK_M": (64, 128),
            "BLOCK_N": (64, 128) if headdim == 64 else (32, 64, 128),
            "num_warps": (4, 8),
            "num_stages": (1, 2, 3) if headdim == 256 else (1, 2, 3, 4, 5),
            "maxnreg": (0, 168) if headdim == 256 else (0, 128, 168),
            "defer_rescale": (False, True),
            "tma": (False, True),
            "diagonal_first": (False, True) if specialization.causal else (False,),
            "heads_together": (1, 4, 8) if headdim == 256 else (1, 8),
        }
        if headdim == 256:
            space["sum_late"] = (False, True)
        return space

    def supports(self, specialization: Specialization, capability: int) -> str | None:
        if specialization.headdim not in HEADDIMS:
            return f"headdim is {specialization.headdim}, but must be one of {HEADDIMS}"
        if specialization.dtype not in DTYPES:
            return f"dtype is {specialization.dtype}, but must be one of {DTYPES}"
        if capability not in supported():
            return f"capability is sm_{capability}, but must be one of {supported()}"
        return None

    def reject(self, specialization: Specialization, config: Config, capability: int) -> str | None:
        if (reason := self.unfit(specialization, config, capability)) is not None:
            return reason
        have, headdim = limits(capability), specialization.headdim
        block_m, warps, maxnreg = (
            int(config[name]) for name in ("BLOCK_M", "num_warps", "maxnreg")
        )
        threads = 32 * warps
        if config["tma"] and capability < 90:
            return f"sm_{capability} has no TMA"
        if block_m < 16 * warps:
            return f"{warps} warps have fewer than 16 of {block_m} rows each"
        needed = _registers(headdim, config)
        if needed > have.registers_thread - _OTHER_REGISTERS:
            return f"acc and s alone take {needed} registers a thread"
        shared = _shared_memory(headdim, config)
        if shared > have.shared_memory:
            return f"q, k and v take {shared} bytes of {have.shared_memory} of shared memory"
        if maxnreg:
            if needed > maxnreg - 24:
                return f"acc and s alone take {needed} of maxnreg={maxnreg} registers"
            resident = have.registers // (threads * maxnreg)
            if resident <= have.registers // (threads * have.registers_thread):
                return f"maxnreg={maxnreg} lets no further block onto a multiprocessor"
            if resident * (shared + 1024) > have.shared_memory_sm:
                return f"shared memory has no room for the {resident} blocks of maxnreg={maxnreg}"
        return None

    def estimate(
        self, specialization: Specialization, config: Config, capability: int
    ) -> Resources | None:
        headdim, most = specialization.headdim, limits(capability).registers_thread
        registers = _registers(headdim, config) + _OTHER_REGISTERS
        return Resources(
            registers=min(registers, int(config["maxnreg"]) or most),
            spills=0,
            shared_memory=_shared_memory(headdim, config),
        )

    def default(self, problem: Problem, capability: int) -> Config:
        if capability == 90:
            short = problem.causal and problem.seqlen <= 1024
            tiles = _TILES["sm_90, causal and short" if short else "sm_90"]
        else:
            tiles = _TILES["sm_100 to sm_103" if 100 <= capability < 110 else "others"]
        block_m, block_n, warps, stages, maxnreg, diagonal_first = tiles[problem.headdim]
        config: dict[str, Value] = {
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "num_warps": warps,
            "num_stages": stages,
            "maxnreg": maxnreg,
            "defer_rescale": False,
            "tma": 90 <= capability < 110,
            "diagonal_first": diagonal_first and problem.causal,
            "heads_together": 8,
        }
        if problem.headdim == 256:
            config["sum_late"] = capability == 90
        return Config(config)

    def compile(self, specialization: Specialization, config: Config, capability: int) -> Binary:
        from kernels.attention.portable_kernel import attention_forward

        options = {"num_warps": config["num_warps"], "num_stages": config["num_stages"]}
        if config["maxnreg"]:
            options["maxnreg"] = config["maxnreg"]
        source = compiler.source(attention_forward, _arguments(specialization, config))
        kernel = compiler.compile_kernel(source, capability, options)
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
    blocks = -(-seqlen_q // int(config["BLOCK_M"])) * batch * heads
    if blocks == 0 or seqlen_k <= 0:
        return None
    strides = tuple(strides_of(tensor) for tensor in (q, k, v, out))
    scale, coarse = in_base_2(sm_scale)
    after = (
        *(stride for of in strides for stride in of[:3]),
        heads, heads // heads_kv, seqlen_q, seqlen_k, causal_offset if causal else 0,
        scale, coarse, *(None,) * _CONSTEXPRS,
    )  # fmt: skip
    if not config["tma"]:
        return Work(blocks, after)
    keys = (batch, heads_kv, seqlen_k, headdim)
    shapes = ((batch, heads, seqlen_q, headdim), keys, keys)
    return Work(blocks, after, shapes, strides[:3])


def _registers(headdim: int, config: Config) -> int:
    """32-bit registers of a thread that acc and s alone take."""
    threads = 32 * int(config["num_warps"])
    return int(config["BLOCK_M"]) * (headdim + int(config["BLOCK_N"])) // threads


def _shared_memory(headdim: int, config: Config) -> int:
    """Bytes of q and of the buffers of k and v."""
    stages = int(config["num_stages"])
    buffers = 2 * stages if stages > 1 else 1  # unpipelined, k and v take turns in one
    return 2 * headdim * (int(config["BLOCK_M"]) + buffers * int(config["BLOCK_N"]))


def _arguments(specialization: Specialization, config: Config) -> list[Argument]:
    """The parameters of portable_kernel.attention_forward for one binary.

    Integers are not specialised: one binary serves every seqlen, batch and stride.
    """
    dtype, headdim = specialization.dtype, specialization.headdim
    arguments = []
    for name, block in zip("qkv", ("BLOCK_M", "BLOCK_N", "BLOCK_N")):
        if config["tma"]:
            arguments.append(Argument(name, f"tensordesc<{dtype}[1,1,{config[block]},{headdim}]>"))
        else:
            arguments.append(Argument(name, f"*{dtype}", divisible_by=16))
    arguments.append(Argument("out", f"*{dtype}", divisible_by=16))
    arguments.append(
        Argument("lse", "*fp32", divisible_by=4)
        if specialization.lse
        else Argument("lse", "constexpr")
    )
    for name in ("q", "k", "v", "out"):
        for dimension, kind in (("batch", "i64"), ("head", "i64"), ("row", "i32")):
            if name == "out":
                arguments.append(Argument(f"out_{dimension}", "i64", divisible_by=_ALIGNMENT))
            elif config["tma"]:
                arguments.append(Argument(f"{name}_{dimension}", "constexpr", 0))
            else:
                arguments.append(Argument(f"{name}_{dimension}", kind, divisible_by=_ALIGNMENT))
    arguments += [
        Argument(name, "i32")
        for name in ("heads", "group", "seqlen_q", "seqlen_k", "causal_offset")
    ]
    arguments += [Argument("scale", "fp32"), Argument("coarse", "fp32")]
    constants = {
        "HEADDIM": headdim,
        "CAUSAL": specialization.causal,
        "LSE": specialization.lse,
        "BLOCK_M": config["BLOCK_M"],
        "BLOCK_N": config["BLOCK_N"],
        "STAGES": config["num_stages"],
        "TMA": config["tma"],
        "DEFER": config["defer_rescale"],
        "SUM_LATE": config.get("sum_late", False),
        "DIAGONAL_FIRST": config["diagonal_first"],
        "HEADS_TOGETHER": config["heads_together"],
    }
    return arguments + [Argument(name, "constexpr", value) for name, value in constants.items()]
