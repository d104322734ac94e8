"""The contract between a parametric kernel and all that search, store and run it.

A template declares its space, the static rules that reject a config (each with its reason), how it
compiles for a target without a GPU, and how it launches. Nothing here imports Triton or torch: the
command line lists spaces on machines that have neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

from kernels.attention.config import Config, Value
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

    resources: Resources
    kernel: Any  # Triton's CompiledKernel; its module is loaded at the first launch
    config: Config
    specialization: Specialization


class Template(ABC):
    """A parametric attention-forward kernel."""

    name: str

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
        """Enqueue `out = softmax(sm_scale·q·kᵀ + mask)·v` on the current stream of q's device.

        Args:
            q, out: (batch, heads, seqlen_q, headdim), fp16 or bf16, last stride 1.
            k, v: (batch, heads_kv, seqlen_k, headdim), same dtype; heads_kv divides heads.
            lse: (batch, heads, seqlen_q) fp32, natural logarithm, if the binary stores it.
            sm_scale: factor on q·kᵀ before the softmax.
            causal_offset: query row i sees keys j ≤ i + causal_offset; 0 is SDPA's top-left
                alignment, seqlen_k − seqlen_q flash-attention's bottom-right.
        """

    def feasible(self, specialization: Specialization, capability: int) -> Iterator[Config]:
        """Every config of the space that no static rule rejects, in a fixed order."""
        space = self.space(specialization)
        for values in product(*space.values()):
            config = Config(dict(zip(space, values)))
            if self.reject(specialization, config, capability) is None:
                yield config
