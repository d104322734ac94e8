"""What a standalone file does around its kernels: check, choose a config, and have it launched.

Nobody imports this module: `document` takes its source, what it imports from our modules, and fills
in RECORDS, DEFAULTS and CAPABILITY. See portable_host.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from kernels.attention.layout import readable
from kernels.attention.problem import ratio
from kernels.attention.template import Launch
from tuner.repetition import remember, repeat
from tuner.resolve import MAX_BATCH_HEADS_RATIO, MAX_SEQLEN_RATIO
from tuner.validation import refuse_tangents, validate


class Config(Protocol):
    """One way to run one kernel."""

    def launch(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, causal: bool, scale: float
    ) -> Launch | None: ...


class Record(NamedTuple):
    """The config that was the fastest for one problem."""

    # 1: on the hardware that this file was exported for; 2: there, but by another Triton, or by a
    # kernel that may be older; 3: on other hardware of the same compute capability.
    rank: int
    seqlen: int
    batch: int
    heads: int
    config: Config


class Default(NamedTuple):
    """The config that serves what no record is near to."""

    most: int | None  # the last seqlen that it serves; None for no limit
    config: Config


# The compute capability of the records.
CAPABILITY: int = 0

# (headdim, causal, dtype): records, of which the first wins where two are equally near.
RECORDS: dict[tuple[int, bool, str], list[Record]] = {}

# By compute capabilities, then (headdim, causal), in the order of seqlens.
DEFAULTS: dict[tuple[int, ...], dict[tuple[int, bool], list[Default]]] = {}

DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


def custom_attention_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = True, sm_scale: float | None = None
) -> Tensor:
    """softmax(sm_scale·q·kᵀ + mask)·v.

    Args:
        q: (batch, nheads, seqlen, headdim), fp16 or bf16, on a CUDA device.
        k, v: the same, or with fewer heads (a divisor) and another seqlen.
        causal: query i sees keys j ≤ i (top-left alignment, as SDPA).
        sm_scale: factor on q·kᵀ; None is 1/√headdim.

    Returns:
        (batch, nheads, seqlen, headdim) in q's dtype and layout. Inputs that the kernel cannot read
        in place (last stride not 1, rows not aligned to 16 bytes) are copied.

    Raises:
        TypeError, ValueError: an argument is wrong; one sentence names it.
        NotImplementedError: a gradient or tangent would have to be recorded, or torch.jit.trace
            runs, which takes shapes for tensors.
        RuntimeError: this file has no config for the device.
    """
    compiling = torch.compiler.is_compiling()
    if not compiling:
        known = repeat(q, k, v, causal, sm_scale)
        if known is not None:
            return known  # type: ignore[return-value]
        if torch._C._is_tracing():
            raise NotImplementedError("torch.jit.trace is not served: use torch.compile")
    scale = validate(q, k, v, causal, sm_scale)
    if q.dtype not in DTYPES:
        raise TypeError(f"q is {q.dtype}, but must be torch.float16 or torch.bfloat16")
    if v.shape[3] != q.shape[3]:
        raise ValueError(f"v has headdim {v.shape[3]}, but must have q's headdim {q.shape[3]}")
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise NotImplementedError("there are no gradients here: call it under torch.no_grad()")
    refuse_tangents(q, k, v)
    batch, heads, seqlen_q, headdim = q.shape
    major, minor = torch.cuda.get_device_capability(q.device)
    config = choose(
        10 * major + minor,
        headdim,
        causal,
        DTYPES[q.dtype],
        max(seqlen_q, k.shape[2], 1),
        max(batch, 1),
        max(heads, 1),
    )
    out = torch.empty_like(q)
    if out.numel() == 0:
        return out
    if k.shape[2] == 0:
        return out.zero_()
    target = readable(out)
    theirs = readable(q.neg() if scale < 0 else q), readable(k), readable(v)
    with torch.cuda.device(q.device):
        launch = config.launch(*theirs, target, causal, abs(scale))
    if target is not out:
        return out.copy_(target)
    in_place = theirs[0] is q and theirs[1] is k and theirs[2] is v
    if launch is not None and in_place and not compiling and type(q) is Tensor:
        remember(q, k, v, causal, sm_scale, lambda: launch)
    return out


@lru_cache(maxsize=4096)
def choose(
    capability: int, headdim: int, causal: bool, dtype: str, seqlen: int, batch: int, heads: int
) -> Config:
    """The config of the record of this problem, else of the nearest one within bounds, else the
    default.

    Raises:
        ValueError: the kernel does not serve this headdim.
        RuntimeError: it does not serve this capability.
    """
    near = []
    for record in RECORDS.get((headdim, causal, dtype), ()) if capability == CAPABILITY else ():
        here = (record.seqlen, record.batch, record.heads) == (seqlen, batch, heads)
        seqlens = ratio(record.seqlen, seqlen)
        batch_heads = ratio(record.batch * record.heads, batch * heads)
        if seqlens <= MAX_SEQLEN_RATIO and batch_heads <= MAX_BATCH_HEADS_RATIO:
            rank = 0 if here and record.rank == 1 else record.rank
            near.append((rank, seqlens, batch_heads, record.config))
    if near:
        return min(near, key=lambda found: found[:3])[3]
    for capabilities, table in DEFAULTS.items():
        if capability in capabilities:
            for default in table.get((headdim, causal), ()):
                if default.most is None or seqlen <= default.most:
                    return default.config
            served = sorted({served for served, _ in table})
            raise ValueError(f"q has headdim {headdim}, but must have one of {served}")
    known = ", ".join(f"sm_{one}" for capabilities in DEFAULTS for one in capabilities)
    raise RuntimeError(f"q is on a device of sm_{capability}, but must be on one of {known}")
