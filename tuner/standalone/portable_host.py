"""What a standalone file does to launch the portable kernel.

Nobody imports this module: `document` takes its source and what it imports from our modules. It is
a module so that linters, type checkers and readers see code, not a string.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.attention.base_2 import in_base_2
from kernels.attention.launching import strides_of
from kernels.attention.portable_kernel import attention_forward as _custom_attn_fwd_portable


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
    ) -> None:
        """Enqueue the kernel on the current stream of the current device.

        Args:
            q, k, v, out: none of them empty, rows dense and aligned to 16 bytes.
            scale: at least 0.
        """
        batch, heads, seqlen_q, headdim = q.shape
        heads_kv, seqlen_k = k.shape[1], k.shape[2]
        if causal:
            seqlen_k = min(seqlen_k, seqlen_q)  # no row sees a later key
        strides = [strides_of(tensor) for tensor in (q, k, v, out)]
        sources = [q, k, v]
        if self.tma:
            keys = [batch, heads_kv, seqlen_k, headdim]
            shapes = ([batch, heads, seqlen_q, headdim], keys, keys)
            blocks = (self.block_m, self.block_n, self.block_n)
            sources = [
                TensorDescriptor(tensor, shape, list(steps), [1, 1, block, headdim])
                for tensor, shape, steps, block in zip(sources, shapes, strides, blocks)
            ]
        blocks_in_all = -(-seqlen_q // self.block_m) * batch * heads
        _custom_attn_fwd_portable[(blocks_in_all,)](
            *sources,
            out,
            None,
            *(stride for of_one in strides for stride in of_one[:3]),
            heads,
            heads // heads_kv,
            seqlen_q,
            seqlen_k,
            0,
            *in_base_2(scale),
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
