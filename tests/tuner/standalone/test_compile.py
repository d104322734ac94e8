"""The file's own launches compile for sm_90 without a GPU, to what the repository compiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime import driver  # noqa: E402

from kernels.attention import compiler, registry  # noqa: E402
from kernels.attention.config import Config  # noqa: E402
from kernels.attention.problem import Problem  # noqa: E402
from scripts.check_compiles import allowed_spills  # noqa: E402
from tests.tuner.standalone import exported  # noqa: E402
from tuner.standalone.document import standalone_file  # noqa: E402
from tuner.store.layers import Layers  # noqa: E402

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class NoGpu:
    """A driver that knows of an H100 and has none."""

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiled:
    """Stands for the kernel: compiles what it would launch."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.binaries: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **options: Any) -> None:
            self.binaries.append(self.kernel.warmup(*arguments, grid=grid, **options))

        return launch


def only_binary(
    module: Any, kernel: str, written: Any, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """The one that serves all seqlens, batches, heads, groups, strides and scales."""
    stand_in = Compiled(getattr(module, kernel))
    monkeypatch.setattr(module, kernel, stand_in)
    monkeypatch.setattr(module, "_multiprocessors", lambda device: 132)
    monkeypatch.setattr(driver, "_active", NoGpu())
    for seqlen, heads, group, scale in ((300, 4, 2, 0.125), (1, 1, 1, 1.0), (1024, 16, 1, 0.0)):
        of, headdim = DTYPES[problem.dtype], problem.headdim
        q = torch.zeros(2, seqlen, heads, headdim, dtype=of).transpose(1, 2)
        k = torch.zeros(2, heads // group, seqlen + 16, headdim, dtype=of)
        written.launch(q, k, k, torch.empty_like(q), problem.causal, scale)
    assert len({id(binary) for binary in stand_in.binaries}) == 1
    binary = stand_in.binaries[0]
    assert binary.metadata.name == kernel
    return binary


@pytest.mark.parametrize(
    ("headdim", "causal", "dtype", "tma"),
    [(64, True, "fp16", False), (128, False, "bf16", True), (256, True, "fp16", True)],
)
def test_the_portable_kernel_compiles_to_what_the_template_compiles(
    headdim: int, causal: bool, dtype: str, tma: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    module = exported.exported(tmp_path)
    problem = Problem.on_grid(headdim, 2048, causal, dtype)
    config = Config({**registry.get("portable").default(problem, 90), "tma": tma})
    written = module.Portable(
        config["BLOCK_M"], config["BLOCK_N"], config["num_warps"], config["num_stages"],
        config["maxnreg"], tma, config["defer_rescale"], config["diagonal_first"],
        config.get("sum_late", False), config["heads_together"],
    )  # fmt: skip
    binary = only_binary(module, "_custom_attn_fwd_portable", written, problem, monkeypatch)
    ours = registry.get("portable").compile(problem.specialization, config, 90)
    used = compiler.resources(binary)
    assert used.shared_memory == ours.resources.shared_memory
    if tma:  # else Triton is told 32-bit strides, where the template says 64
        assert used == ours.resources


def instructions(kernel: Any) -> list[str]:
    """Those of the PTX, without the labels of debug information and the kernel's name."""
    lines = (line.partition("//")[0].strip() for line in kernel.asm["ptx"].splitlines())
    noise = ("$L__tmp", "$L__debug", "$L__info", "$L__func", ".loc", ".file", ".section", ".b")
    return [
        line.replace("_custom_attn_fwd", "attention_forward")
        for line in lines
        if line and not line.startswith(noise)
    ]


@pytest.mark.parametrize(
    ("dtype", "batch", "heads", "seqlen", "headdim", "causal"),
    [
        ("fp16", 4, 32, 4096, 64, True),
        ("fp16", 2, 16, 8192, 128, True),
        ("fp16", 1, 8, 16384, 256, True),
        ("bf16", 4, 32, 4096, 64, False),
        ("bf16", 2, 16, 8192, 128, False),
    ],
)
def test_the_hopper_kernel_compiles_to_what_the_template_compiles(
    dtype: str, batch: int, heads: int, seqlen: int, headdim: int, causal: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    text = standalone_file(Layers.load().standing(), exported.TARGET)
    module = exported.load(text, tmp_path)
    problem = Problem(headdim, seqlen, causal, dtype, batch, heads)
    written = module.choose(90, headdim, causal, dtype, seqlen, batch, heads)
    candidate = exported.candidate_of(written, headdim)
    assert candidate.template == "hopper"
    binary = only_binary(module, "_custom_attn_fwd", written, problem, monkeypatch)
    ours = registry.get("hopper").compile(problem.specialization, candidate.config, 90)
    used = compiler.resources(binary)
    assert used == ours.resources
    assert used.spills <= allowed_spills()
    listed = instructions(binary)
    assert any(line.startswith("wgmma.mma_async") for line in listed)
    assert listed == instructions(ours.kernel)
