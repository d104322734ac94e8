"""Measure what a call of ours costs the host, beside SDPA's backends and an empty Triton launch.

    python scripts/measure_host_time.py [--hdim N ...] [--json]

Each figure is the host's time for one call, from a loop that starts with an idle GPU and keeps it
less than busy: the median and the least over blocks of calls, which take turns with those of all
other figures, since a host is not always as fast. "seen" calls with tensors used
before, as a captured or steady loop does; "new" with addresses that no call has seen. On a machine
without a GPU a stand-in takes the launches, and what is left is Python's share of ours.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

# This folder for its modules: a package called `scripts` may be installed, and hides it.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # isort: skip  (before `kernels`, whose name it may share)

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention import hopper, registry
from kernels.attention.launching import DirectLaunch
from kernels.attention.problem import HEADDIMS, Problem
from kernels.attention.template import Launch
from tuner import repetition, runtime

if TYPE_CHECKING:
    from scripts import refusals
else:
    import refusals

BLOCKS = 21
CALLS = 100
BATCH, HEADS, SEQLEN = 1, 8, 128  # so small that the GPU waits for the host

Tensors = tuple[Tensor, Tensor, Tensor]
Call = Callable[[Tensor, Tensor, Tensor], object]


@dataclass(frozen=True)
class Figure:
    """The host's time for one call."""

    name: str
    headdim: int
    addresses: str  # "seen" or "new"
    median_us: float  # over blocks
    least_us: float


@dataclass(frozen=True)
class Case:
    """What a figure is of."""

    name: str
    headdim: int
    addresses: str
    call: Call
    tensors: Iterator[Tensors]
    within: Callable[[], AbstractContextManager[object]] = nullcontext

    def block(self) -> float:
        """µs of a call, among as many as make a block."""
        given = list(islice(self.tensors, CALLS))
        with self.within():
            _synchronize()
            began = time.perf_counter_ns()
            for q, k, v in given:
                self.call(q, k, v)
            ended = time.perf_counter_ns()
        _synchronize()
        return (ended - began) / len(given) / 1000


def measure(headdims: Sequence[int] = HEADDIMS) -> list[Figure]:
    """All figures for this machine."""
    if torch.cuda.is_available():
        return _measured([case for headdim in headdims for case in _on_gpu(headdim)])
    with _stand_in():
        return _measured([case for headdim in headdims for case in _on_cpu(headdim)])


def _measured(cases: Sequence[Case]) -> list[Figure]:
    for case in cases:
        case.block()  # warm up
    turns = [[case.block() for case in cases] for _ in range(BLOCKS)]
    return [
        Figure(case.name, case.headdim, case.addresses, median(blocks), min(blocks))
        for case, blocks in zip(cases, zip(*turns))
    ]


def _on_gpu(headdim: int) -> Iterator[Case]:
    backends = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "FlashAttention-2": SDPBackend.FLASH_ATTENTION}
    for name, call in _ours().items():
        yield from _cases(name, headdim, call)
    for name, backend in backends.items():
        yield from _cases(f"SDPA, {name}", headdim, _sdpa, partial(sdpa_kernel, backend))
    empty = _empty_triton_launch()
    yield Case("an empty Triton launch", headdim, "seen", lambda *_: empty(), _again(headdim))
    yield Case("torch.empty_like", headdim, "seen", lambda q, *_: torch.empty_like(q),
               _again(headdim))  # fmt: skip


def _on_cpu(headdim: int) -> Iterator[Case]:
    q, k, v = _tensors(headdim)
    bhsd = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # as flash_attn_func takes them
    entries: dict[str, tuple[Tensors, object, tuple[int, ...] | None]] = {
        "custom_attention_forward": ((q, k, v), None, None),
        "attention": ((q, k, v), runtime._SDPA, None),
        "flash_attn_func": (bhsd, runtime._FLASH, None),
        "flash_attn_func, lse": (bhsd, runtime._FLASH_LSE, tuple(bhsd[0].shape[:3])),
    }
    for name, call in _ours().items():
        given, entry, lse_shape = entries[name]
        prepare = partial(_prepared, *given)
        repetition.remember(q, k, v, True, None, prepare, entry, lse_shape)
        yield from _cases(name, headdim, call)


def _prepared(q: Tensor, k: Tensor, v: Tensor) -> Launch:
    """The Hopper template's launch of a causal call, whose kernel is a stand-in."""
    batch, heads, seqlen, headdim = q.shape
    problem = Problem(headdim, seqlen, True, "fp16", batch, heads)
    config = registry.get("hopper").default(problem, 90)
    work = hopper.work_out(config, True, q, k, v, torch.empty_like(q), headdim**-0.5, 0)
    assert work is not None
    kernel: Any = _Nothing()
    return DirectLaunch(kernel, work)


def _ours() -> dict[str, Call]:
    return {
        "custom_attention_forward": lambda q, k, v: tuner.custom_attention_forward(q, k, v, True),
        "attention": lambda q, k, v: tuner.attention(q, k, v, is_causal=True),
        "flash_attn_func": lambda q, k, v: tuner.flash_attn_func(q, k, v, causal=True),
        "flash_attn_func, lse": lambda q, k, v: tuner.flash_attn_func(
            q, k, v, causal=True, return_lse=True
        ),
    }


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def _cases(
    name: str,
    headdim: int,
    call: Call,
    within: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[Case]:
    yield Case(name, headdim, "seen", call, _again(headdim), within)
    yield Case(name, headdim, "new", call, _anew(headdim), within)


def _again(headdim: int) -> Iterator[Tensors]:
    tensors = _tensors(headdim)
    while True:
        yield tensors


def _anew(headdim: int) -> Iterator[Tensors]:
    """Tensors that overlap, each at an address of its own."""
    size, step = BATCH * HEADS * SEQLEN * headdim, 64
    needed = size + 3 * step * CALLS * (BLOCKS + 1)
    arena = torch.randn(needed, dtype=torch.float16, device=_device())
    for start in range(0, needed - size - 2 * step, 3 * step):
        q, k, v = (
            arena[start + i * step :][:size].view(BATCH, HEADS, SEQLEN, headdim) for i in range(3)
        )
        yield q, k, v


def _tensors(headdim: int) -> Tensors:
    shape = (BATCH, HEADS, SEQLEN, headdim)
    q, k, v = (torch.randn(shape, dtype=torch.float16, device=_device()) for _ in range(3))
    return q, k, v


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _empty_triton_launch() -> Callable[[], object]:
    import triton

    def empty() -> None:
        pass

    kernel: Any = triton.jit(empty)
    return lambda: kernel[(1,)]()


class _Nothing:
    """In place of a loaded kernel and of the driver that encodes descriptors."""

    def __call__(self, *_: object) -> None:
        pass

    def descriptor(self, *_: object) -> Callable[[int], tuple[int, ...]]:
        return lambda address: (address,) * 9


@contextmanager
def _stand_in() -> Iterator[None]:
    """Let repetition take the CPU for its device, and the Hopper template for an H100."""
    repetition.forget()
    device: dict[str, Any] = {
        "_cuda_getDevice": lambda: -1,
        "_cuda_getCurrentRawStream": lambda _: 0,
    }
    with (
        patch.multiple(torch._C, create=True, **device),
        patch.object(hopper, "_multiprocessors", lambda _: 132),
    ):
        yield
    repetition.forget()


def main(words: Sequence[str] | None = None) -> None:
    parser = refusals.Parser(__doc__)
    parser.add_argument("--hdim", type=int, nargs="+", default=HEADDIMS)
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    options = parser.parse_args(words)
    for headdim in options.hdim:
        if headdim not in HEADDIMS:
            parser.error(f"--hdim is {headdim}, but must be one of {', '.join(map(str, HEADDIMS))}")
    warnings.simplefilter("ignore", tuner.UntunedWarning)
    figures = measure(options.hdim)
    if options.json:
        print(json.dumps([asdict(figure) for figure in figures]))
        return
    if torch.cuda.is_available():
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, µs of the host's a call")
    else:
        print(f"no GPU: Python's share alone, torch {torch.__version__}, µs a call")
    print(f"{'':<28}{'headdim':>8}{'addresses':>11}{'median':>9}{'least':>9}")
    for figure in figures:
        print(
            f"{figure.name:<28}{figure.headdim:>8}{figure.addresses:>11}"
            f"{figure.median_us:>9.1f}{figure.least_us:>9.1f}"
        )


if __name__ == "__main__":
    main()
