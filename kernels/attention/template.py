"""The contract between a parametric kernel and all that search, store and run it.

A template declares its space, the static rules that reject a config (each with its reason), how it
compiles for a target without a GPU, and how it launches. Nothing here imports Triton or torch: the
command line lists spaces on machines that have neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from kernels.attention.config import Config, Value
from kernels.attention.printable import shown
from kernels.attention.problem import Problem, Specialization

if TYPE_CHECKING:
    from torch import Tensor

Space = Mapping[str, tuple[Value, ...]]


class CompileError(Exception):
    """The compiler refused a config; the message is its first meaningful line."""


class OutOfResources(CompileError):  # noqa: N818 (as Triton calls it)
    """A config needs more shared memory or registers than there is; names it and the bytes."""


@dataclass(frozen=True)
class Resources:
    """What a binary uses, read from the binary itself."""

    registers: int  # per thread
    spills: int  # bytes of local memory per thread that hold spilled registers
    shared_memory: int  # bytes per block


@dataclass(frozen=True)
class Binary:
    """One config compiled for one specialization and compute capability."""

    kernel: Any  # Triton's CompiledKernel; its module is loaded at the first launch
    config: Config
    specialization: Specialization
    read_resources: Callable[[Any], Resources]

    @cached_property
    def resources(self) -> Resources:
        """Read when asked for: the search needs it, a forward does not."""
        return self.read_resources(self.kernel)


class Launch(Protocol):
    """A launch for tensors of given shapes and strides, wherever they lie."""

    def __call__(self, q: int, k: int, v: int, out: int, lse: int | None, stream: int) -> None:
        """Enqueue on the raw `stream`.

        Args:
            q, k, v, out: addresses of the first elements, multiples of 16.
            lse: likewise, of 4; None if the binary stores none.
        """


class Template(ABC):
    """A parametric attention-forward kernel."""

    name: str

    added: ClassVar[Mapping[str, Value]] = {}
    """Parameters that the space has got since configs of it were stored, each with the choice that
    a config without it stands for."""

    @cached_property
    @abstractmethod
    def version(self) -> str:
        """Twelve hex digits over the AST of the kernel functions and those they call."""

    @abstractmethod
    def space(self, specialization: Specialization) -> Space:
        """Every parameter with its choices, in a fixed order; before any static rule."""

    @abstractmethod
    def reject(self, specialization: Specialization, config: Config, capability: int) -> str | None:
        """The reason why `config` cannot run or cannot be fast, by rule alone; None if it may.

        Also the guard for configs that come from a database or a file: one that is not in the space
        is rejected here, before any launch.
        """

    def unfit(self, specialization: Specialization, config: Config, capability: int) -> str | None:
        """The first part of `reject`: the reason why nothing is served here, or why `config` is
        none of the space; else None."""
        reason = self.supports(specialization, capability)
        if reason is not None:
            return reason
        space = self.space(specialization)
        if set(config) != set(space):
            return f"parameters are {shown(sorted(config), 300)}, but must be {sorted(space)}"
        for name, value in config.items():
            # True == 1, but not in a config.
            if (type(value), value) not in [(type(choice), choice) for choice in space[name]]:
                return f"{name} is {shown(value)}, but must be one of {space[name]}"
        return None

    def grown(self, config: Config) -> Config:
        """`config`, which may be older than some parameters, as it would be spelt now."""
        missing = {name: value for name, value in self.added.items() if name not in config}
        return Config(config, **missing) if missing else config

    @abstractmethod
    def default(self, problem: Problem, capability: int) -> Config:
        """The config that serves an untuned problem; always feasible, never slow."""

    @abstractmethod
    def supports(self, specialization: Specialization, capability: int) -> str | None:
        """None if the template serves this specialization on this capability (90 for sm_90);
        else the reason."""

    @abstractmethod
    def compile(self, specialization: Specialization, config: Config, capability: int) -> Binary:
        """Compile without needing a GPU. Triton's disk cache makes a second call cheap, also from
        another process.

        Raises:
            OutOfResources, CompileError: typed refusals of the compiler.
        """

    @abstractmethod
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
        """Work out a launch for tensors shaped and laid out as these, and load the binary on their
        device, which the caller has made current.

        Args:
            q, k, v, out, causal_offset: as for `launch`.
            sm_scale: at least 0.

        Returns:
            None where no row sees a key, so that there is nothing to compute.
        """

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
        """Enqueue `out = softmax(sm_scale·q·kᵀ + mask)·v` on the current stream of q's device,
        which the caller has made current. Never synchronises.

        Args:
            q, out: (batch, heads, seqlen_q, headdim), fp16 or bf16, `layout.aligned`; views are
                fine, also a stride of 0.
            k, v: (batch, heads_kv, seqlen_k, headdim), same dtype; heads_kv divides heads.
            lse: (batch, heads, seqlen_q) fp32, contiguous, natural logarithm, if the binary stores
                it. Rows that see no key get −∞, and zeros in `out`.
            sm_scale: factor on q·kᵀ before the softmax; a negative one costs a negated copy of q.
            causal_offset: query row i sees keys j ≤ i + causal_offset; 0 is SDPA's top-left
                alignment, seqlen_k − seqlen_q flash-attention's bottom-right.
        """
        if sm_scale < 0:
            q, sm_scale = q.neg(), -sm_scale
        prepared = self.prepare(binary, q, k, v, out, sm_scale, causal_offset)
        if prepared is None:
            out.zero_()
            if lse is not None:
                lse.fill_(float("-inf"))
            return
        from torch._C import _cuda_getCurrentRawStream

        prepared(
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            out.data_ptr(),
            None if lse is None else lse.data_ptr(),
            _cuda_getCurrentRawStream(q.device.index),
        )

    def block_warps(self, config: Config) -> int:
        """Warps of a block that runs `config`."""
        return int(config["num_warps"])

    def block_rows(self, config: Config) -> int:
        """Rows of queries that a block takes at once."""
        return int(config["BLOCK_M"])

    def estimate(
        self,
        specialization: Specialization,  # noqa: ARG002
        config: Config,  # noqa: ARG002
        capability: int,  # noqa: ARG002
    ) -> Resources | None:
        """What a binary of `config` will use, roughly and by rule alone, for a search to tell
        configs apart before it has compiled any; None where the rules do not say."""
        return None

    def feasible(self, specialization: Specialization, capability: int) -> Iterator[Config]:
        """Every config of the space that no static rule rejects, in a fixed order."""
        space = self.space(specialization)
        for values in product(*space.values()):
            config = Config(dict(zip(space, values)))
            if self.reject(specialization, config, capability) is None:
                yield config
