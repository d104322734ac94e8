"""What templates share in launching: binaries loaded per device, and launches worked out once.

What depends on shapes, strides and scale alone is worked out once for each of them; what depends on
addresses too, the tensor descriptors, once for each set of addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from kernels.attention import compiler
from kernels.attention.template import Binary

if TYPE_CHECKING:
    from torch import Tensor

_KEPT = 1024  # launches per loaded binary
# Sets of addresses over all launches, each of which is a kilobyte and more with its descriptors: a
# model that decodes token by token meets one a layer with each launch, and new launches all along.
_KEPT_ADDRESSES = 16384


class Work(NamedTuple):
    """What a launch is to do, but for the addresses.

    Attributes:
        after: the kernel's arguments after lse, constexprs as None.
        shapes, strides: of q, k and v, if they are read through descriptors; else empty.
    """

    blocks: int
    after: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    strides: tuple[tuple[int, ...], ...] = ()


class DirectLaunch:
    """See template.Launch: hands a kernel q, k and v (as addresses, or as descriptors), out, lse,
    and the rest of its arguments."""

    __slots__ = ("_after", "_blocks", "_descriptors", "_kernel")

    def __init__(self, kernel: compiler.Loaded, work: Work) -> None:
        self._kernel = kernel
        self._blocks = work.blocks
        self._after = work.after
        self._descriptors = tuple(map(kernel.descriptor, range(3), work.shapes, work.strides))

    def __call__(self, q: int, k: int, v: int, out: int, lse: int | None, stream: int) -> None:
        inputs: tuple[Any, ...] = (q, k, v)
        if self._descriptors:
            inputs = _described.get((self, q, k, v)) or self._describe(q, k, v)
        self._kernel(self._blocks, stream, inputs, out, lse, self._after)

    def _describe(self, q: int, k: int, v: int) -> tuple[Any, ...]:
        if len(_described) >= _KEPT_ADDRESSES:
            _described.clear()
        of_q, of_k, of_v = self._descriptors
        described = _described[self, q, k, v] = (*of_q(q), *of_k(k), *of_v(v))
        return described


# A kernel's arguments before out, by the launch and the addresses of q, k and v.
_described: dict[tuple[DirectLaunch, int, int, int], tuple[Any, ...]] = {}


# Of a config, whether the mask is causal, q, k, v, out, sm_scale and the mask's offset; None where
# there is nothing to do.
WorkOut = Callable[
    [Mapping[str, Any], bool, "Tensor", "Tensor", "Tensor", "Tensor", float, int], Work | None
]


class _Loaded:
    """A binary on one device, with the launches prepared for it."""

    __slots__ = ("kernel", "launches")

    def __init__(self, kernel: compiler.Loaded) -> None:
        self.kernel = kernel
        self.launches: dict[Any, DirectLaunch | None] = {}  # by shapes, strides, scale and offset


# CompiledKernel -> device index -> loaded.
_loaded: WeakKeyDictionary[Any, dict[int, _Loaded]] = WeakKeyDictionary()


def prepare(
    work_out: WorkOut,
    binary: Binary,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sm_scale: float,
    causal_offset: int,
) -> DirectLaunch | None:
    """As Template.prepare; what is not known yet is asked of `work_out`."""
    device = q.device.index
    kernels = _loaded.get(binary.kernel)
    if kernels is None:
        kernels = _loaded.setdefault(binary.kernel, {})
    loaded = kernels.get(device)
    if loaded is None:
        loaded = kernels[device] = _Loaded(compiler.Loaded(binary.kernel))
    key = (
        q.shape, k.shape, q.stride(), k.stride(), v.stride(), out.stride(),
        sm_scale, causal_offset,
    )  # fmt: skip
    try:
        return loaded.launches[key]
    except KeyError:
        if len(loaded.launches) >= _KEPT:
            loaded.launches.clear()
        causal = binary.specialization.causal
        work = work_out(binary.config, causal, q, k, v, out, sm_scale, causal_offset)
        launch = None if work is None else DirectLaunch(loaded.kernel, work)
        loaded.launches[key] = launch
        return launch


def strides_of(tensor: Tensor) -> tuple[int, int, int, int]:
    """The strides of a 4-d tensor, with a valid one where a dimension of size 1 may have any."""
    batch, heads, rows, headdim = tensor.shape
    batch_stride, head_stride, row_stride, _ = tensor.stride()
    return (
        batch_stride if batch > 1 else headdim,
        head_stride if heads > 1 else headdim,
        row_stride if rows > 1 else headdim,
        1,
    )


def visible(seqlen_q: int, seqlen_k: int, causal_offset: int) -> tuple[int, int]:
    """How many keys a causal mask leaves to some row, and the offset as far as it matters: beyond
    these bounds nothing changes, and kernels' integers are 32-bit."""
    causal_offset = min(causal_offset, seqlen_k)
    return min(seqlen_k, seqlen_q + causal_offset), causal_offset
