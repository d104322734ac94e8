"""scripts/measure_host_time.py, where there is no GPU: Python's share of a call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime is torch's")

from kernels.attention import hopper  # noqa: E402
from kernels.attention.problem import Problem, Specialization  # noqa: E402
from scripts import measure_host_time  # noqa: E402
from tests.patience import in_one_of  # noqa: E402

SCRIPT = Path(measure_host_time.__file__)


def measured() -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--hdim", "64", "--json"],
        capture_output=True,
        text=True,
        timeout=250,
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    figures: list[dict[str, Any]] = json.loads(done.stdout)
    return figures


def within_budget(figure: dict[str, Any]) -> bool:
    """That of a whole call, which the driver has a share in too."""
    return 0.5 < figure["least_us"] < {"seen": 20, "new": 30}[figure["addresses"]]


def test_pythons_share_is_measured_with_seen_and_new_addresses() -> None:
    def cheap() -> bool:
        figures = measured()
        names = {figure["name"] for figure in figures}
        assert {"custom_attention_forward", "attention", "flash_attn_func"} <= names
        assert {(figure["name"], figure["addresses"]) for figure in figures} >= {
            (name, addresses) for name in names for addresses in ("seen", "new")
        }
        return all(map(within_budget, figures))

    assert in_one_of(3, cheap)


@pytest.mark.skipif("torch.cuda.is_available()", reason="then nothing stands in")
@pytest.mark.parametrize("headdim", [64, 128, 256])
def test_what_stands_in_for_the_kernel_gets_all_its_arguments(
    headdim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[tuple] = []
    monkeypatch.setattr(measure_host_time, "BLOCKS", 1)
    monkeypatch.setattr(measure_host_time, "CALLS", 2)
    monkeypatch.setattr(
        measure_host_time._Nothing, "__call__", lambda _, *given: launched.append(given)
    )
    before = {name for name in dir(torch._C) if name.startswith("_cuda_get")}
    figures = measure_host_time.measure([headdim])
    assert {name for name in dir(torch._C) if name.startswith("_cuda_get")} == before
    assert len(launched) == 4 * len(figures)  # none took the long way
    taken = hopper._arguments(
        Specialization(headdim, True, "fp16"),
        hopper.HopperTemplate().default(Problem.on_grid(headdim, 128, True), 90),
    )
    descriptors = 3 * (9 - 1)  # of q, k and v, each flattened into 9 words
    counts = {len(inputs) + 2 + len(after) for _, _, inputs, _, _, after in launched}
    assert counts == {len(taken) + descriptors}
