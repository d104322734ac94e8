"""The portable template's space, rules and defaults, which need neither Triton nor torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernels.attention import capability as capabilities
from kernels.attention.config import Config
from kernels.attention.portable import PortableTemplate
from kernels.attention.problem import GRID_SEQLENS, HEADDIMS, Problem, Specialization

ROOT = Path(__file__).parents[3]
TEMPLATE = PortableTemplate()
CAUSAL = Specialization(128, True, "fp16")


def test_importing_it_loads_neither_triton_nor_torch():
    code = (
        "import sys; from kernels.attention.portable import PortableTemplate as T;"
        "from kernels.attention.problem import Specialization as S;"
        "list(T().feasible(S(64, True, 'fp16'), 90)); T().version;"
        "assert not {'torch', 'triton', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("headdim", HEADDIMS)
def test_the_space_on_hopper_is_worth_searching_and_small_enough_to_record(headdim):
    causal = list(TEMPLATE.feasible(Specialization(headdim, True, "fp16"), 90))
    assert 400 <= len(causal) <= 900
    assert len(set(causal)) == len(causal)
    full = list(TEMPLATE.feasible(Specialization(headdim, False, "fp16"), 90))
    assert {config["diagonal_first"] for config in full} == {False}


@pytest.mark.parametrize("capability", capabilities.supported())
@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("causal", [True, False])
def test_defaults_are_feasible_everywhere(capability, headdim, causal):
    specialization = Specialization(headdim, causal, "bf16")
    for seqlen in (1, *GRID_SEQLENS):
        config = TEMPLATE.default(Problem.on_grid(headdim, seqlen, causal), capability)
        assert TEMPLATE.reject(specialization, config, capability) is None
    assert any(True for _ in TEMPLATE.feasible(specialization, capability))


GOOD = TEMPLATE.default(Problem.on_grid(128, 4096, True), 90)


@pytest.mark.parametrize(
    ("changes", "capability", "reason"),
    [
        ({"BLOCK_M": 96}, 90, "BLOCK_M is 96, but must be one of"),
        ({"tma": 1}, 90, "tma is 1, but must be one of"),
        ({"tma": True}, 80, "sm_80 has no TMA"),
        ({"num_warps": 8}, 90, "8 warps have fewer than 16 of 64 rows each"),
        ({"BLOCK_M": 128}, 90, "acc and s alone take 256 registers a thread"),
        ({"maxnreg": 128}, 90, "acc and s alone take 128 of maxnreg=128 registers"),
        ({"num_stages": 2}, 90, "no room for the 3 blocks of maxnreg=168"),
        ({"BLOCK_M": 128, "num_warps": 8, "BLOCK_N": 64}, 90, "lets no further block"),
        (
            {"num_stages": 3, "maxnreg": 0, "tma": False},
            89,
            "q, k and v take 212992 bytes of 101376",
        ),
        ({"extra": 1}, 90, "parameters are"),
        ({}, 75, "capability is sm_75, but must be one of"),
    ],
)
def test_every_rejection_has_a_reason(changes, capability, reason):
    assert reason in (TEMPLATE.reject(CAUSAL, Config(GOOD, **changes), capability) or "")


def test_a_missing_parameter_is_rejected():
    config = Config({name: value for name, value in GOOD.items() if name != "tma"})
    assert "parameters are" in (TEMPLATE.reject(CAUSAL, config, 90) or "")


def test_what_it_does_not_serve_is_said():
    assert "headdim is 80" in (TEMPLATE.supports(Specialization(80, True, "fp16"), 90) or "")
    assert "dtype is fp32" in (TEMPLATE.supports(Specialization(64, True, "fp32"), 90) or "")
    assert TEMPLATE.supports(CAUSAL, 120) is None


def test_unknown_capabilities_are_refused_by_name():
    with pytest.raises(KeyError, match="capability is sm_75, but must be one of sm_80"):
        capabilities.limits(75)
    assert capabilities.limits(90).shared_memory == 232448
