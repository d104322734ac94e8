"""The file's own launch compiles for sm_90 without a GPU, to what the repository compiles."""

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
from tests.tuner.standalone.exported import exported  # noqa: E402


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


@pytest.mark.parametrize("tma", [True, False])
@pytest.mark.parametrize(
    ("headdim", "causal", "dtype"), [(64, True, "fp16"), (128, False, "bf16"), (256, True, "fp16")]
)
def test_compiles_to_what_the_template_compiles(
    headdim: int, causal: bool, dtype: str, tma: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    module = exported(tmp_path)
    stand_in = Compiled(module._custom_attn_fwd)
    monkeypatch.setattr(module, "_custom_attn_fwd", stand_in)
    problem = Problem.on_grid(headdim, 2048, causal, dtype)
    config = Config({**registry.get("portable").default(problem, 90), "tma": tma})
    theirs = module.Config(
        config["BLOCK_M"], config["BLOCK_N"], config["num_warps"], config["num_stages"],
        config["maxnreg"], tma, config["defer_rescale"], config["diagonal_first"],
        config.get("sum_late", False), config["heads_together"],
    )  # fmt: skip
    torch_dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    monkeypatch.setattr(driver, "_active", NoGpu())
    for seqlen, heads in ((300, 4), (1, 1), (1024, 16)):
        q = torch.zeros(2, heads, seqlen, headdim, dtype=torch_dtype)
        module.launch(theirs, q, q, q, torch.empty_like(q), causal, 0.125)
    assert len({id(binary) for binary in stand_in.binaries}) == 1  # of all seqlens
    binary = stand_in.binaries[0]
    assert binary.metadata.name == "_custom_attn_fwd"
    ours = registry.get("portable").compile(problem.specialization, config, 90)
    used = compiler.resources(binary)
    assert used.shared_memory == ours.resources.shared_memory
    if tma:  # else Triton is told 32-bit strides, where the template says 64
        assert used == ours.resources
