"""The Hopper template compiled without a GPU: the right instructions, no wrong ones."""

from __future__ import annotations

import random
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("triton")

from kernels.attention.config import Config
from kernels.attention.hopper import HopperTemplate
from kernels.attention.problem import HEADDIMS, Problem, Specialization
from scripts.check_compiles import allowed_spills
from tests.kernels.attention.ptx import exponents

TEMPLATE = HopperTemplate()


@pytest.fixture(autouse=True, scope="module")
def own_cache(triton_cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(triton_cache))
        yield


def compiled(headdim, causal=True, dtype="fp16", lse=False, **changes):
    config = TEMPLATE.default(Problem.on_grid(headdim, 4096, causal, dtype), 90)
    specialization = Specialization(headdim, causal, dtype, lse)
    return TEMPLATE.compile(specialization, Config(config, **changes), 90)


def assembled(binary):
    """What ptxas says about a binary's PTX, and the machine code it makes of it."""
    from triton import knobs
    from triton.backends.nvidia.compiler import get_ptxas

    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        ptx.write_text(binary.kernel.asm["ptx"])
        said = subprocess.run(
            [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", ptx, "-o", cubin],
            capture_output=True, text=True, check=True,
        ).stderr  # fmt: skip
        code = subprocess.run(
            [knobs.nvidia.nvdisasm.path, "-c", cubin], capture_output=True, text=True, check=True
        ).stdout
    return said, code


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("lse", [False, True])  # without a mask: scripts/check_compiles.py
def test_defaults_fit_and_do_not_spill_in_loops(headdim, lse):
    binary = compiled(headdim, True, "bf16" if lse else "fp16", lse)
    # With lse, four words that are read once a tile, not in the loop of whole blocks.
    assert binary.resources.spills <= max(allowed_spills(), 16 if lse else 0)
    assert 0 < binary.resources.shared_memory <= 232448
    assert "wgmma.mma_async" in binary.kernel.asm["ptx"]
    assert "cp.async.bulk.tensor.4d" in binary.kernel.asm["ptx"]


@pytest.mark.parametrize("headdim", HEADDIMS)
def test_matmuls_are_not_serialised_and_the_softmax_overlaps_them(headdim):
    said, code = assembled(compiled(headdim))
    assert not re.search(r"C75\d\d", said), said  # wgmma serialised, setmaxnreg ignored
    # In a loop: between the waits for the scores and for p·v come the maxima and as many halves of
    # the exponentials as `early_halves` says.
    config = compiled(headdim).config
    scores = {64: 64, 128: 64, 256: 32}[headdim]  # of a thread
    waits = [(m.start(), m[1]) for m in re.finditer(r"DEPBAR\.LE gsb0, 0x(\d)", code)]
    overlapped = 0
    for (start, left), (end, next_left) in zip(waits, waits[1:]):
        if left == "1" and next_left == "0":
            powers, maxima = (code.count(name, start, end) for name in ("MUFU.EX2", "FMNMX"))
            early = powers >= scores * int(config["early_halves"]) // 2
            overlapped += maxima >= scores and early
    assert overlapped >= int(config["consumers"])


@pytest.mark.parametrize(
    ("headdim", "changes"),
    [
        (64, {"whole_loop": False, "early_halves": 0}),
        (64, {"whole_loop": True, "early_halves": 1}),
        (128, {"whole_loop": True, "early_halves": 0}),
        (128, {"whole_loop": True, "early_halves": 2}),
        (256, {"early_halves": 2}),
    ],
)
def test_the_wait_for_the_product_may_be_anywhere_in_the_softmax(headdim, changes):
    binary = compiled(headdim, causal=False, **changes)
    assert binary.resources.spills <= allowed_spills()
    said, _ = assembled(binary)
    assert not re.search(r"C75\d\d", said), said


@pytest.mark.parametrize(("headdim", "q_held"), [(64, 64), (128, 0), (128, 64)])
def test_queries_in_registers_are_the_left_operands_of_scores(headdim, q_held):
    binary = compiled(headdim, consumers=2, q_held=q_held)
    assert binary.resources.spills <= allowed_spills()
    said, code = assembled(binary)
    assert not re.search(r"C75\d\d", said), said
    # A matmul of scores is as wide as a block has keys, one of values as headdim; only the latter
    # transposes. Its left operand is a register, or within the first brackets.
    scores = re.findall(rf"HGMMA\.64x{binary.config['BLOCK_N']}x16\S* R\d+, (\S+), (.*)", code)
    left = [first.startswith("R") for first, rest in scores if "tnspB" not in rest]
    assert sum(left) / len(left) == q_held / headdim


@pytest.mark.parametrize("headdim", HEADDIMS)
def test_an_unchanged_maximum_scales_by_exactly_one(headdim):
    """alpha is 2^(difference of two rounded shifts) in every loop: no product is fused into it."""
    binary = compiled(headdim)
    config = binary.config
    loops = 2 if config["whole_loop"] else 1
    rows = 2  # of a thread
    made_by = exponents(binary.kernel.asm["ptx"])
    assert made_by["sub"] == rows * loops * config["consumers"]


@pytest.mark.parametrize("headdim", HEADDIMS)
def test_our_hardware_barriers_are_not_tritons(headdim):
    binary = compiled(headdim)
    ptx, config = binary.kernel.asm["ptx"], binary.config
    literal = r"\b(?:bar|barrier)\.(?:cta\.)?(?:sync|arrive)(?:\.aligned)?\s+(\d+)"
    theirs = {int(barrier) for barrier in re.findall(literal, ptx)}
    ours = config["consumers"] + config["q_buffers"] + 2 * config["stages"]
    assert theirs
    assert max(theirs) < 16 - ours


@pytest.mark.parametrize("headdim", HEADDIMS)
def test_what_the_rules_let_through_fits(headdim):
    specialization = Specialization(headdim, True, "bf16")
    configs = list(TEMPLATE.feasible(specialization, 90))
    for config in random.Random(headdim).sample(configs, 2):
        TEMPLATE.compile(specialization, config, 90)
