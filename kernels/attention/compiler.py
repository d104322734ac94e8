"""Compiling for a target without a GPU, reading a binary's resources, and launching it directly.

One path for search and run time: `compile_kernel` hands Triton a source with our own signature and
attributes, so that a compile farm on a machine without a GPU and the process that launches find the
same entry of Triton's disk cache. Works for `tl` (ASTSource) and Gluon (GluonASTSource) alike.

What differs between Triton 3.6 and 3.9 in launching a CompiledKernel is in `Loaded`, and only
there: 3.6 generates one C launcher per signature, which takes the kernel's arguments spread; since
3.7 one C launcher takes them as a tuple after a description of their types. Importing this module
loads neither Triton nor torch.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy as shallow_copy  # a standalone file has hopper_pipeline.copy, too
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.attention.capability import limits
from kernels.attention.template import CompileError, OutOfResources, Resources

CACHE_VARIABLE = "TRITON_CACHE_DIR"
"""The environment variable that tells Triton in which folder to keep what it compiles."""


def cache_folder() -> Path:
    """The folder that Triton keeps what it compiles in."""
    if told := os.environ.get(CACHE_VARIABLE):
        return Path(told)
    return Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"


@dataclass(frozen=True)
class Argument:
    """One parameter of a kernel.

    Attributes:
        name: as in the kernel's signature, in its order.
        type: Triton's spelling, `*fp16`, `i32`, `fp32`, `tensordesc<fp16[1,1,128,64]>`, or
            `constexpr`.
        value: of a constexpr.
        divisible_by: what the launch guarantees to divide the value (bytes for a pointer).
    """

    name: str
    type: str
    value: Any = None
    divisible_by: int = 1


def source(function: Any, arguments: Sequence[Argument], gluon: bool = False) -> Any:
    """The source of `function`, a JITFunction, for `compile_kernel`.

    Raises:
        ValueError: the arguments' names are not the function's.
    """
    names = [argument.name for argument in arguments]
    if names != list(function.arg_names):
        raise ValueError(f"arguments are {names}, but the kernel has {function.arg_names}")
    signature = {argument.name: argument.type for argument in arguments}
    constants = {a.name: a.value for a in arguments if a.type == "constexpr"}
    attributes = {
        (index,): [["tt.divisibility", argument.divisible_by]]
        for index, argument in enumerate(arguments)
        if argument.divisible_by > 1
    }
    if gluon:
        from triton.experimental.gluon._runtime import GluonASTSource as Source
    else:
        from triton.compiler import ASTSource as Source
    return Source(function, signature, constants, attributes)


def compile_kernel(source: Any, capability: int, options: Mapping[str, Any]) -> Any:
    """Triton's CompiledKernel of `source` for `capability`; needs no GPU, hits the disk cache.

    Args:
        source: from `source`.
        capability: 90 for sm_90.
        options: num_warps, num_stages, maxnreg, …

    Raises:
        OutOfResources: more shared memory than a block of the target may have.
        CompileError: any other refusal of the compiler or of ptxas.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    try:
        kernel = triton.compile(
            source,
            target=GPUTarget("cuda", capability, 32),
            options={"enable_fp_fusion": True, **options},  # no longer the default from 3.10 on
        )
    except Exception as error:
        if type(error).__name__ == "OutOfResources":
            raise OutOfResources(_first_line(error)) from error
        raise CompileError(_first_line(error)) from error
    check_shared_memory(kernel.metadata.shared, capability)
    return kernel


def check_shared_memory(needed: int, capability: int) -> None:
    """Raises OutOfResources for more bytes than a block of `capability` may have."""
    available = limits(capability).shared_memory
    if needed > available:
        raise OutOfResources(
            f"needs {needed} bytes of shared memory, but a block of sm_{capability} has {available}"
        )


def _first_line(error: BaseException) -> str:
    """The first line that says what is wrong; Triton puts source excerpts and carets around it."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines()]
    for line in lines:
        if re.search(r"error|fail|exceed|out of|too ", line, re.IGNORECASE):
            return f"{type(cause).__name__}: {line}"
    told = [line for line in lines if line and not line.startswith(("at ", "^"))]
    return f"{type(cause).__name__}: {told[-1] if told else 'no message'}"


def resources(kernel: Any) -> Resources:
    """Registers and spills of a CompiledKernel, read from its binary by cuobjdump (which Triton
    bundles), and its shared memory.

    The spills are the stack frame: these kernels keep nothing else in local memory.

    Raises:
        CompileError: cuobjdump does not understand the binary.
    """
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    usage = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    if usage is None:
        raise CompileError(f"cuobjdump: {(done.stderr or done.stdout).strip() or 'no output'}")
    return Resources(
        registers=int(usage[1]), spills=int(usage[2]), shared_memory=kernel.metadata.shared
    )


class Loaded:
    """A CompiledKernel loaded on one device: calling it enqueues one launch.

    Bypasses the argument binder and the per-launch encoding of tensor descriptors. Load it while
    its device is current.

    Args:
        kernel: from `compile_kernel`; not changed, so that it can be loaded on several devices.
    """

    __slots__ = ("_head", "_hooks", "_kernel", "_launch", "_metadata", "_types")

    def __init__(self, kernel: Any) -> None:
        from triton import knobs

        # Triton keeps one module per CompiledKernel; ours is a second handle on the same binary.
        self._kernel = shallow_copy(kernel)
        self._kernel.module = self._kernel.function = self._kernel._run = None
        with _relaxed_capture():
            self._kernel._init_handles()
        launcher = self._kernel.run
        if launcher.global_scratch_size or launcher.profile_scratch_size:
            raise NotImplementedError("kernels with global scratch memory are not launched here")
        launch = launcher.launch
        if getattr(launch, "__name__", "") == "inner":  # wraps the encoding of descriptors
            launch = inspect.getclosurevars(launch).nonlocals["launcher"]
        self._launch: Callable[..., Any] = launch
        self._hooks = knobs.runtime
        cooperative, dependent = launcher.launch_cooperative_grid, launcher.launch_pdl
        self._head = (self._kernel.function, cooperative, dependent)
        self._metadata = self._kernel.packed_metadata
        self._types = None
        if hasattr(launcher, "arg_annotations"):  # Triton ≥ 3.7
            self._types = (launcher.arg_annotations, launcher.kernel_signature)

    def __call__(
        self,
        blocks: int,
        stream: int,
        inputs: tuple[Any, ...],
        out: int,
        lse: int | None,
        after: tuple[Any, ...],
    ) -> None:
        """Enqueue `blocks` blocks on the raw `stream`.

        `inputs`, `out`, `lse` and `after` are all of the kernel's arguments, constexprs included
        (any value), pointers as addresses, each tensor descriptor replaced by the values that its
        `descriptor` gives.
        """
        hooks = self._hooks
        enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
        told = None
        if enter.calls or leave.calls:  # a profiler listens
            told = self._kernel.launch_metadata((blocks, 1, 1), stream)
        else:
            enter = leave = None
        if self._types is None:
            self._launch(
                blocks, 1, 1, stream, *self._head, None, None,
                self._metadata, told, enter, leave, *inputs, out, lse, *after,
            )  # fmt: skip
        else:
            self._launch(
                blocks, 1, 1, stream, *self._head, self._metadata, told, enter, leave,
                None, None, *self._types, (*inputs, out, lse, *after),
            )  # fmt: skip

    def descriptor(
        self, index: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Callable[[int], tuple[Any, ...]]:
        """What makes, of the address of a first element, which is 16-byte aligned, the arguments
        that stand for the kernel's tensor descriptor number `index`.

        Args:
            shape: none of it 0.
            strides: in elements; the last is 1, the others multiples of 16 bytes.
        """
        from triton.backends.nvidia import driver as nvidia
        from triton.runtime import driver

        meta = self._kernel.metadata.tensordesc_meta[index]
        utils = driver.active.utils
        fill = getattr(utils, "fill_tma_descriptor_tiled", None) or utils.fill_tma_descriptor
        known = (
            meta["swizzle"],
            meta["elem_size"],
            nvidia.TMA_DTYPE_DEVICE_TO_HOST[meta["elem_type"]],
            meta["block_size"],
            list(shape),
            list(strides),
            0,  # reads out of bounds give zeros
        )
        return lambda address: (fill(address, *known), *shape, *strides)


@contextmanager
def _relaxed_capture() -> Iterator[None]:
    """Let this thread load a module while it captures a CUDA graph.

    Loading allocates, which the default capture mode forbids although it does not touch the
    capturing stream (cuThreadExchangeStreamCaptureMode, CUDA driver API).
    """
    exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    mode = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
    exchanged = exchange(ctypes.byref(mode)) == 0
    try:
        yield
    finally:
        if exchanged:
            exchange(ctypes.byref(mode))
