"""The portable template: attention forward in Triton's `tl` language, for sm_80 and newer.

The kernel is portable_kernel.py. This module says which configs it has, why some cannot run, how
one is compiled without a GPU and how it is launched. Importing it loads neither Triton nor torch.
"""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kernels.attention import compiler
from kernels.attention.capability import limits, supported
from kernels.attention.compiler import Argument
from kernels.attention.config import Config, Value
from kernels.attention.layout import MAX_ROW_STRIDE
from kernels.attention.problem import DTYPES, HEADDIMS, Problem, Specialization
from kernels.attention.template import Binary, Space, Template
from kernels.attention.version import version_hash

if TYPE_CHECKING:
    from torch import Tensor

_LOG2_E = math.log2(math.e)
_ALIGNMENT = 8  # elements of 2 bytes in 16 bytes
_MIN_SCALE = 2.0**-126  # stands for 0, whose product with a masked score of −∞ would be NaN

_PLANS_KEPT = 1024  # per loaded kernel; each belongs to one set of shapes, strides and addresses
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


class _Loaded:
    """A binary on one device, with the launches it has planned."""

    __slots__ = ("kernel", "plans")

    def __init__(self, kernel: compiler.Loaded) -> None:
        self.kernel = kernel
        # A plan is (blocks, arguments before out, arguments after lse).
        self.plans: dict[Any, tuple[int, tuple[Any, ...], tuple[Any, ...]]] = {}


# CompiledKernel -> device index -> loaded.
_loaded: WeakKeyDictionary[Any, dict[int, _Loaded]] = WeakKeyDictionary()


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
            "num_stages": (1, 2, 3),
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
        reason = self.supports(specialization, capability)
        if reason is not None:
            return reason
        space = self.space(specialization)
        if set(config) != set(space):
            return f"parameters are {sorted(config)}, but must be {sorted(space)}"
        for name, value in config.items():
            # True == 1, but not in a config.
            if (type(value), value) not in [(type(choice), choice) for choice in space[name]]:
                return f"{name} is {value!r}, but must be one of {space[name]}"
        have, headdim = limits(capability), specialization.headdim
        block_m, block_n, warps, stages, maxnreg = (
            int(config[name])
            for name in ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "maxnreg")
        )
        threads = 32 * warps
        if config["tma"] and capability < 90:
            return f"sm_{capability} has no TMA"
        if block_m < 16 * warps:
            return f"{warps} warps have fewer than 16 of {block_m} rows each"
        needed = block_m * (headdim + block_n) // threads
        if needed > have.registers_thread - 40:
            return f"acc and s alone take {needed} registers a thread"
        # Unpipelined, k and v take turns in one buffer.
        buffers = 2 * stages if stages > 1 else 1
        shared = 2 * headdim * (block_m + buffers * block_n)
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
        return Binary(compiler.resources(kernel), kernel, config, specialization)

    def launch(
        self,
        binary: Binary,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor | None,
        sm_scale: float,
        causal_offset: int = 0,
    ) -> None:
        """As Template.launch. Enqueues one kernel and never synchronises; the caller has made q's
        device current.

        A negative sm_scale costs a negated copy of q. Keys that causality hides from every row are
        not read at all.

        Args:
            q, k, v, out: each aligned (see layout.py); views are fine, also a stride of 0.
            lse: contiguous.

        Raises:
            ValueError: a config without tma, and a row stride of 2^24 or more.
        """
        device = q.device.index
        kernels = _loaded.get(binary.kernel)
        if kernels is None:
            kernels = _loaded.setdefault(binary.kernel, {})
        loaded = kernels.get(device)
        if loaded is None:
            loaded = kernels[device] = _Loaded(compiler.Loaded(binary.kernel))

        if sm_scale < 0:
            q, sm_scale = q.neg(), -sm_scale
        key = (
            q.data_ptr(), k.data_ptr(), v.data_ptr(), q.shape, k.shape,
            q.stride(), k.stride(), v.stride(), out.stride(), sm_scale, causal_offset,
        )  # fmt: skip
        plan = loaded.plans.get(key)
        if plan is None:
            if len(loaded.plans) >= _PLANS_KEPT:
                loaded.plans.clear()
            plan = _plan(loaded.kernel, binary, q, k, v, out, sm_scale, causal_offset)
            loaded.plans[key] = plan
        blocks, before, after = plan
        if blocks == 0:
            out.zero_()
            if lse is not None:
                lse.fill_(-math.inf)
            return
        from torch._C import _cuda_getCurrentRawStream

        results = (out.data_ptr(), None if lse is None else lse.data_ptr())
        loaded.kernel(blocks, _cuda_getCurrentRawStream(device), before + results + after)


def _plan(
    kernel: compiler.Loaded,
    binary: Binary,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sm_scale: float,
    causal_offset: int,
) -> tuple[int, tuple[Any, ...], tuple[Any, ...]]:
    """The grid and arguments of a launch, but for the addresses of out and lse.

    The grid is 0 where no row sees a key.
    """
    config, causal = binary.config, binary.specialization.causal
    batch, heads, seqlen_q, headdim = q.shape
    _, heads_kv, seqlen_k, _ = k.shape
    if causal:
        # Beyond these bounds nothing changes, and the kernel's integers are 32-bit.
        causal_offset = min(causal_offset, seqlen_k)
        seqlen_k = min(seqlen_k, seqlen_q + causal_offset)
    blocks = -(-seqlen_q // int(config["BLOCK_M"])) * batch * heads
    if blocks == 0 or seqlen_k <= 0:
        return 0, (), ()
    strides = [_strides(tensor) for tensor in (q, k, v, out)]
    if not config["tma"] and max(stride[2] for stride in strides[:3]) >= MAX_ROW_STRIDE:
        raise ValueError(f"a row stride is {MAX_ROW_STRIDE} or more, but must be less without tma")
    sources: tuple[Any, ...] = (q.data_ptr(), k.data_ptr(), v.data_ptr())
    if config["tma"]:
        keys = (batch, heads_kv, seqlen_k, headdim)
        shapes = ((batch, heads, seqlen_q, headdim), keys, keys)
        sources = sum(
            (kernel.descriptor(i, sources[i], shapes[i], strides[i]) for i in range(3)), ()
        )
    scale = max(sm_scale * _LOG2_E, _MIN_SCALE) if sm_scale == sm_scale else sm_scale
    coarse = math.ldexp(1.0, math.frexp(scale)[1]) if math.isfinite(scale) else scale
    after = (
        *(stride for of in strides for stride in of[:3]),
        heads, heads // heads_kv, seqlen_q, seqlen_k, causal_offset if causal else 0,
        scale, coarse, *(None,) * _CONSTEXPRS,
    )  # fmt: skip
    return blocks, sources, after


def _strides(tensor: Tensor) -> tuple[int, int, int, int]:
    """The strides, with a valid one where a dimension of size 1 may have any."""
    batch, heads, rows, headdim = tensor.shape
    batch_stride, head_stride, row_stride, _ = tensor.stride()
    return (
        batch_stride if batch > 1 else headdim,
        head_stride if heads > 1 else headdim,
        row_stride if rows > 1 else headdim,
        1,
    )


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
