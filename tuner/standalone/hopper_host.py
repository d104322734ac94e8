"""What a standalone file does to launch the Hopper kernel.

Nobody imports this module: see portable_host.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

from kernels.attention.hopper import _CONSTEXPRS, _REGISTERS, _ROWS, work_out
from kernels.attention.hopper_kernel import attention_forward as _custom_attn_fwd
from kernels.attention.template import Launch
from tuner.standalone.direct import direct

# Of a block of queries, keys or values in shared memory.
LAYOUT = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)


class Hopper(NamedTuple):
    """One way to run the Hopper kernel."""

    block_n: int
    consumers: int
    stages: int
    q_buffers: int
    ping_pong: bool
    defer_rescale: bool
    whole_loop: bool
    early_halves: int
    q_held: int

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
        work = work_out({"consumers": self.consumers}, causal, q, k, v, out, scale, 0)
        assert work is not None
        headdim = q.shape[3]
        sources = [
            GluonDescriptor(tensor, list(shape), list(steps), [1, 1, rows, headdim], LAYOUT)
            for tensor, shape, steps, rows in zip(
                (q, k, v), work.shapes, work.strides, (_ROWS, self.block_n, self.block_n)
            )
        ]
        consumer_registers, producer_registers = _REGISTERS[self.consumers]
        kernel = _custom_attn_fwd[(work.blocks,)](
            *sources,
            out,
            None,
            *work.after[:-_CONSTEXPRS],
            HEADDIM=headdim,
            CAUSAL=causal,
            LSE=False,
            BLOCK_N=self.block_n,
            CONSUMERS=self.consumers,
            STAGES=self.stages,
            Q_BUFFERS=self.q_buffers,
            PING_PONG=self.ping_pong,
            DEFER=self.defer_rescale,
            WHOLE_LOOP=self.whole_loop,
            HALVES=self.early_halves,
            Q_HELD=self.q_held,
            CONSUMER_REGISTERS=consumer_registers,
            PRODUCER_REGISTERS=producer_registers,
            num_warps=4,  # of the first consumer; Triton adds those of the others
            enable_fp_fusion=True,
        )
        return direct(kernel, work, q.device.index)
