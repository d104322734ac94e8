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
from kernels.attention.config import Config
from kernels.attention.problem import DTYPES, HEADDIMS, Problem, Specialization
from kernels.attention.template import Binary, Space, Template
from kernels.attention.version import version_hash

if TYPE_CHECKING:
    from torch import Tensor

_LOG2_E = math.log2(math.e)
_ALIGNMENT = 8  # elements of 2 bytes in 16 bytes
_MAX_ROW_STRIDE = 2**23  # offsets within a block of 256 rows are 32-bit
_MIN_SCALE = 2.0**-126  # stands for 0, whose product with a masked score of −∞ would be NaN

# Loaded kernels: CompiledKernel -> device index -> Loaded.
_loaded: WeakKeyDictionary[Any, dict[int, compiler.Loaded]] = WeakKeyDictionary()


def aligned(tensor: Tensor) -> bool:
    """Whether the template reads or writes `tensor` (batch, heads, seqlen, headdim) as it lies.

    It does if rows are contiguous and everything starts at a multiple of 16 bytes; callers copy
    what is not. Strides are otherwise free: transposed views and parts of a packed tensor are fine.
    """
    strides, shape = tensor.stride(), tensor.shape
    return (
        strides[3] == 1
        and tensor.data_ptr() % 16 == 0
        and all(stride % _ALIGNMENT == 0 or size <= 1 for stride, size in zip(strides, shape[:3]))
        and (strides[2] < _MAX_ROW_STRIDE or shape[2] <= 1)
    )


class PortableTemplate(Template):
    """See the module and Template."""

    name = "portable"

    @cached_property
    def version(self) -> str:
        return version_hash(Path(__file__).with_name("portable_kernel.py"), ["attention_forward"])

    def space(self, specialization: Specialization) -> Space:
        return {
            "BLOCK_M": (64, 128, 256),
            "BLOCK_N": (32, 64, 128),
            "num_warps": (4, 8),
            "num_stages": (1, 2, 3, 4),
            "maxnreg": (0, 128),
            "defer_rescale": (False, True),
            "tma": (False, True),
            "diagonal_first": (False, True),
        }

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
            if not any(value is choice or (value == choice and type(value) is type(choice))
                       for choice in space[name]):  # fmt: skip
                return f"{name} is {value!r}, but must be one of {space[name]}"
        block_m, block_n = int(config["BLOCK_M"]), int(config["BLOCK_N"])
        warps, stages, maxnreg = (
            int(config[name]) for name in ("num_warps", "num_stages", "maxnreg")
        )
        headdim, have = specialization.headdim, limits(capability)
        if block_m < 16 * warps:
            return f"{warps} warps have fewer than 16 of {block_m} rows each"
        if config["tma"] and capability < 90:
            return f"sm_{capability} has no TMA"
        if config["diagonal_first"] and not specialization.causal:
            return "without causality there is no diagonal"
        threads = 32 * warps
        needed = block_m * (headdim + block_n) // threads
        if needed > have.registers_thread - 40:
            return f"acc and s alone take {needed} registers a thread"
        shared = 2 * headdim * (block_m + 2 * stages * block_n)
        if shared > have.shared_memory:
            return f"q, k and v take {shared} bytes of {have.shared_memory} of shared memory"
        if maxnreg and needed > maxnreg - 24:
            return f"acc and s alone take {needed} of maxnreg={maxnreg} registers"
        return None

    def default(self, problem: Problem, capability: int) -> Config:
        hopper = capability >= 90 and capability < 120
        tile = {64: (128, 64, 4, 3), 128: (128, 128, 8, 3), 256: (128, 64, 8, 2)}
        if not hopper:
            tile = {64: (128, 64, 4, 3), 128: (128, 64, 8, 2), 256: (128, 32, 8, 1)}
        block_m, block_n, warps, stages = tile[problem.headdim]
        return Config(
            BLOCK_M=block_m, BLOCK_N=block_n, num_warps=warps, num_stages=stages, maxnreg=0,
            defer_rescale=capability == 90, tma=hopper, diagonal_first=False,
        )  # fmt: skip

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
            q, k, v, out: each `aligned`.
            lse: contiguous.
        """
        import torch

        batch, heads, seqlen_q, headdim = q.shape
        _, heads_kv, seqlen_k, _ = k.shape
        if batch * heads * seqlen_q == 0:
            return
        if binary.specialization.causal:
            causal_offset = min(causal_offset, seqlen_k)
            seqlen_k = min(seqlen_k, seqlen_q + causal_offset)
        if seqlen_k <= 0:
            out.zero_()
            if lse is not None:
                lse.fill_(-math.inf)
            return
        if sm_scale < 0:
            q, sm_scale = q.neg(), -sm_scale
        scale = sm_scale * _LOG2_E
        if scale < _MIN_SCALE:
            scale = _MIN_SCALE
        coarse = math.ldexp(1.0, math.frexp(scale)[1]) if math.isfinite(scale) else scale

        device = q.device.index
        kernels = _loaded.get(binary.kernel)
        if kernels is None:
            kernels = _loaded.setdefault(binary.kernel, {})
        kernel = kernels.get(device)
        if kernel is None:
            kernel = kernels[device] = compiler.Loaded(binary.kernel)

        if binary.config["tma"]:
            sources = (
                *kernel.descriptor(0, q.data_ptr(), q.shape, _strides(q)),
                *kernel.descriptor(
                    1, k.data_ptr(), (batch, heads_kv, seqlen_k, headdim), _strides(k)
                ),
                *kernel.descriptor(
                    2, v.data_ptr(), (batch, heads_kv, seqlen_k, headdim), _strides(v)
                ),
            )
        else:
            sources = (q.data_ptr(), k.data_ptr(), v.data_ptr())
        tiles = -(-seqlen_q // int(binary.config["BLOCK_M"]))
        kernel(
            tiles * batch * heads,
            torch._C._cuda_getCurrentRawStream(device),
            (
                *sources, out.data_ptr(), None if lse is None else lse.data_ptr(),
                *_strides(q)[:3], *_strides(k)[:3], *_strides(v)[:3], *_strides(out)[:3],
                heads, heads // heads_kv, seqlen_q, seqlen_k, causal_offset, scale, coarse,
                *_NO_CONSTEXPRS,
            ),
        )  # fmt: skip


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
        for dimension, type in (("batch", "i64"), ("head", "i64"), ("row", "i32")):
            if config["tma"] and name != "out":
                arguments.append(Argument(f"{name}_{dimension}", "constexpr", 0))
            else:
                arguments.append(Argument(f"{name}_{dimension}", type, divisible_by=_ALIGNMENT))
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
        "TMA": config["tma"],
        "DEFER": int(config["defer_rescale"]),
        "DIAGONAL_FIRST": config["diagonal_first"],
        "STAGES": config["num_stages"],
        "CLEAN": False,
        "GUARD": True,
        "UNROLL": 1,
        "HEADS_TOGETHER": 1,
    }
    return arguments + [Argument(name, "constexpr", value) for name, value in constants.items()]


_NO_CONSTEXPRS = (None,) * 13
