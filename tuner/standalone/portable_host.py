"""What a standalone file does to launch the portable kernel.

Nobody imports this module: `document` takes its source and what it imports from our modules. It is
a module so that linters, type checkers and readers see code, not a string.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.attention.portable import _CONSTEXPRS, work_out
from kernels.attention.portable_kernel import attention_forward as _custom_attn_fwd_portable
from kernels.attention.template import Launch
from tuner.standalone.direct import direct


class Portable(NamedTuple):
    """One way to run the portable kernel."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    maxnreg: int  # 0 for as many as the compiler likes
    tma: bool
    defer_rescale: bool
    diagonal_first: bool
    sum_late: bool
    heads_together: int

    def launch(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, causal: bool, scale: float
    ) -> Launch | None:
        """Enqueue the kernel on the current stream of the current device.

        Args:
            q, k, v, out: none of them empty, rows dense and aligned to 16 bytes.
            scale: at least 0.

        Returns:
            What launches it for others like them, if anything but this does.
        """
        tiling = {"BLOCK_M": self.block_m, "tma": self.tma}
        work = work_out(tiling, causal, q, k, v, out, scale, 0)
        assert work is not None
        headdim = q.shape[3]
        sources = [q, k, v]
        if self.tma:
            blocks = (self.block_m, self.block_n, self.block_n)
            sources = [
                TensorDescriptor(tensor, list(shape), list(steps), [1, 1, block, headdim])
                for tensor, shape, steps, block in zip(sources, work.shapes, work.strides, blocks)
            ]
        kernel = _custom_attn_fwd_portable[(work.blocks,)](
            *sources,
            out,
            None,
            *work.after[:-_CONSTEXPRS],
            HEADDIM=headdim,
            CAUSAL=causal,
            LSE=False,
            BLOCK_M=self.block_m,
            BLOCK_N=self.block_n,
            STAGES=self.num_stages,
            TMA=self.tma,
            DEFER=self.defer_rescale,
            SUM_LATE=self.sum_late,
            DIAGONAL_FIRST=self.diagonal_first,
            HEADS_TOGETHER=self.heads_together,
            num_warps=self.num_warps,
            num_stages=self.num_stages,
            maxnreg=self.maxnreg or None,
            enable_fp_fusion=True,
        )
        return direct(kernel, work, q.device.index)
