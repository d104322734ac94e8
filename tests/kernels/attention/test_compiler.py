"""Compiling without a GPU: for every target, with typed refusals, and found again by key."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from kernels.attention import compiler
from kernels.attention.config import Config
from kernels.attention.portable import PortableTemplate, _arguments
from kernels.attention.problem import HEADDIMS, Problem, Specialization
from kernels.attention.template import CompileError, OutOfResources
from tests.kernels.attention.ptx import exponents

ROOT = Path(__file__).parents[3]
TEMPLATE = PortableTemplate()


@pytest.fixture(autouse=True, scope="module")
def own_cache(triton_cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(triton_cache))
        yield


def default(headdim, causal, capability, seqlen=4096, **options):
    specialization = Specialization(headdim, causal, **{"dtype": "fp16", **options})
    config = TEMPLATE.default(Problem.on_grid(headdim, seqlen, causal), capability)
    return TEMPLATE.compile(specialization, config, capability)


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("lse", [False, True])  # without a mask: scripts/check_compiles.py
@pytest.mark.parametrize("seqlen", [512, 8192])
def test_defaults_do_not_spill_on_hopper(headdim, lse, seqlen):
    binary = default(headdim, True, 90, seqlen, lse=lse, dtype="bf16" if lse else "fp16")
    assert binary.resources.spills == 0
    assert 0 < binary.resources.registers <= 255
    assert 0 < binary.resources.shared_memory <= 232448


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("defer", [False, True])
def test_an_unchanged_maximum_scales_by_exactly_one(headdim, defer, capability):
    """alpha is 2^(difference of two rounded shifts), masked or not: no product is fused into it."""
    problem = Problem.on_grid(headdim, 4096, True)
    config = Config(TEMPLATE.default(problem, capability), defer_rescale=defer)
    binary = TEMPLATE.compile(problem.specialization, config, capability)
    made_by = exponents(binary.kernel.asm["ptx"])
    weights = config["BLOCK_M"] * config["BLOCK_N"] // (32 * config["num_warps"])
    loops = 2  # the masked and the other
    assert made_by["fma"] == loops * weights
    assert made_by["sub"] > 0
    assert made_by["other"] == 0


@pytest.mark.parametrize("capability", [80, 89, 100, 120])  # all: scripts/check_compiles.py
def test_compiles_for_other_targets(capability):
    assert default(128, True, capability).resources.registers > 0


@pytest.mark.parametrize("headdim", HEADDIMS)
def test_what_the_rules_let_through_fits(headdim):
    specialization = Specialization(headdim, True, "fp16")
    configs = list(TEMPLATE.feasible(specialization, 90))
    for config in random.Random(headdim).sample(configs, 3):
        TEMPLATE.compile(specialization, config, 90)


def test_hopper_code_uses_wgmma_and_tma_and_no_mask_in_the_hot_loop():
    ptx = default(128, True, 90).kernel.asm["ptx"]
    assert "wgmma.mma_async" in ptx
    assert "cp.async.bulk.tensor.4d" in ptx
    ttgir = default(128, True, 90).kernel.asm["ttgir"]
    loops = [rest.partition("scf.yield")[0] for rest in ttgir.split("scf.for")[1:]]
    assert len(loops) == 2
    masked = ["tensor<64x128xi1" in loop for loop in loops]
    assert sorted(masked) == [False, True]


def test_pointers_are_loaded_sixteen_bytes_at_a_time():
    specialization = Specialization(128, True, "fp16")
    config = Config(TEMPLATE.default(Problem.on_grid(128, 4096, True), 80))
    ptx = TEMPLATE.compile(specialization, config, 80).kernel.asm["ptx"]
    copies = [line for line in ptx.splitlines() if "cp.async.cg" in line]
    assert copies
    assert all("0x10" in line for line in copies)


def test_too_much_shared_memory_is_named():
    specialization = Specialization(128, True, "fp16")
    config = Config(TEMPLATE.default(Problem.on_grid(128, 4096, True), 90), num_stages=5, maxnreg=0)
    with pytest.raises(OutOfResources, match=r"needs \d+ bytes of shared memory, .* has 232448"):
        TEMPLATE.compile(specialization, config, 90)


def test_a_refusal_of_the_compiler_is_typed():
    specialization = Specialization(128, True, "fp16")
    config = Config(TEMPLATE.default(Problem.on_grid(128, 4096, True), 90), BLOCK_N=96)
    with pytest.raises(CompileError, match="power of 2"):
        TEMPLATE.compile(specialization, config, 90)


def test_arguments_must_be_the_kernels():
    from kernels.attention.portable_kernel import attention_forward

    config = TEMPLATE.default(Problem.on_grid(128, 4096, True), 90)
    arguments = _arguments(Specialization(128, True, "fp16"), config)
    with pytest.raises(ValueError, match="arguments are"):
        compiler.source(attention_forward, arguments[1:])


def test_no_shape_or_stride_is_part_of_the_binary():
    config = TEMPLATE.default(Problem.on_grid(128, 4096, True), 90)
    run_time = {"heads", "group", "seqlen_q", "seqlen_k", "causal_offset", "out_row", "out_head"}
    arguments = _arguments(Specialization(128, True, "fp16"), config)
    for argument in arguments:
        if argument.name in run_time:
            assert argument.type in ("i32", "i64")
            assert argument.divisible_by == (8 if argument.name.startswith("out_") else 1)


def test_a_second_process_finds_the_binary():
    first = default(64, True, 90).kernel
    code = (
        "from kernels.attention.portable import PortableTemplate as T;"
        "from kernels.attention.problem import *; t = T();"
        "import triton; triton.knobs.compilation.listener = "
        "lambda *, cache_hit, **_: print('hit' if cache_hit else 'miss');"
        "b = t.compile(Specialization(64, True, 'fp16'),"
        " t.default(Problem.on_grid(64, 4096, True), 90), 90); print(b.kernel.hash)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["hit", first.hash]
