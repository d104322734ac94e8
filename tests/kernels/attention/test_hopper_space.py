"""The Hopper template's space, rules, defaults and schedule; needs neither Triton nor torch."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kernels.attention.config import Config
from kernels.attention.hopper import HopperTemplate, divisor, schedule
from kernels.attention.problem import DTYPES, GRID_SEQLENS, HEADDIMS, Problem, Specialization

ROOT = Path(__file__).parents[3]
TEMPLATE = HopperTemplate()
CAUSAL = Specialization(128, True, "fp16")
GOOD = TEMPLATE.default(Problem.on_grid(128, 4096, True), 90)


def test_importing_it_loads_neither_triton_nor_torch():
    code = (
        "import sys; from kernels.attention.hopper import HopperTemplate as T;"
        "from kernels.attention.problem import Specialization as S;"
        "list(T().feasible(S(64, True, 'fp16'), 90)); T().version;"
        "assert not {'torch', 'triton', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_defaults_are_feasible(headdim, causal, dtype):
    specialization = Specialization(headdim, causal, dtype)
    for seqlen in (1, *GRID_SEQLENS):
        config = TEMPLATE.default(Problem.on_grid(headdim, seqlen, causal, dtype), 90)
        assert TEMPLATE.reject(specialization, config, 90) is None


@pytest.mark.parametrize("capability", [80, 89, 100, 120])
def test_it_serves_hopper_alone(capability):
    assert "has no wgmma" in (TEMPLATE.supports(CAUSAL, capability) or "")
    assert "has no wgmma" in (TEMPLATE.reject(CAUSAL, GOOD, capability) or "")
    assert not list(TEMPLATE.feasible(CAUSAL, capability))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"BLOCK_N": 96}, "BLOCK_N is 96, but must be one of"),
        ({"ping_pong": 1}, "ping_pong is 1, but must be one of"),
        ({"consumers": 3}, "acc, s, p and q alone take 160 of 160 registers"),
        ({"stages": 4}, "of 232448 of shared memory"),
        ({"extra": 1}, "parameters are"),
    ],
)
def test_every_rejection_has_a_reason(changes, reason):
    assert reason in (TEMPLATE.reject(CAUSAL, Config(GOOD, **changes), 90) or "")


def test_halves_need_a_loop_of_their_own():
    config = Config(GOOD, whole_loop=False, early_halves=1)
    assert TEMPLATE.reject(CAUSAL, config, 90) == "early_halves 1 is part of whole_loop"


def test_two_loops_that_spill_are_refused():
    """As compiled with Triton 3.6: 8 to 24 bytes a thread, with deferral."""
    tall = Config(GOOD, BLOCK_N=128, consumers=3, stages=3, whole_loop=True, q_held=0)
    full, causal = Specialization(64, False, "fp16"), Specialization(64, True, "fp16")
    for specialization, most in ((causal, 0), (full, 1)):
        for halves in (0, 1, 2):
            reason = TEMPLATE.reject(specialization, Config(tall, early_halves=halves), 90)
            assert (reason is None) == (halves <= most)
            assert reason is None or "spill" in reason
    for headdim in (64, 128):
        narrow = Config(GOOD, BLOCK_N=64, consumers=3, stages=3, q_buffers=1, q_held=0)
        specialization = Specialization(headdim, True, "fp16")
        assert TEMPLATE.reject(specialization, narrow, 90) is None
        reason = TEMPLATE.reject(specialization, Config(narrow, q_held=64), 90)
        assert reason == "160 registers are too few for q_held"


def test_no_more_hardware_barriers_than_there_are():
    config = Config(GOOD, BLOCK_N=64, consumers=3, stages=4, whole_loop=False, early_halves=2)
    config = Config(config, q_held=0)
    reason = TEMPLATE.reject(Specialization(64, True, "fp16"), config, 90) or ""
    assert reason == "13 barriers and Triton's 4 exceed 16"


# The kernel's own arithmetic (hopper_schedule.Plan), in Python.


def item(turn, program, programs):
    return turn * programs + (programs - 1 - program if turn % 2 else program)


def turns(items, program, programs):
    whole = items // programs
    return whole + (item(whole, program, programs) < items)


def tiles_of(program, programs, tiles, all_heads, head_pairs, causal):
    """(head, tile) of each of a program's tiles, in order."""
    units = head_pairs * tiles
    single_heads = all_heads - 2 * head_pairs
    paired = turns(units, program, programs)
    count = paired + turns(units + single_heads * tiles, program, programs)
    for index in range(count):
        if index < 2 * paired:
            unit = item(index // 2, program, programs)
            second, i = index % 2, unit % tiles
            yield unit // tiles * 2 + second, i if second else tiles - 1 - i
        else:
            single = item(index - paired, program, programs) - units
            if causal:
                head, from_end = 2 * head_pairs + single % single_heads, single // single_heads
            else:
                head, from_end = single // tiles, single % tiles
            yield head, tiles - 1 - from_end


SHAPES = [(1, 1), (1, 2), (2, 3), (3, 1024), (4, 512), (22, 128), (64, 32), (128, 8), (7, 133),
          (1, 5000), (2, 66), (43, 64), (5, 27)]  # fmt: skip


@pytest.mark.parametrize(("tiles", "all_heads"), SHAPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("multiprocessors", [132, 114, 1])
def test_every_tile_is_computed_once_and_no_program_is_idle(
    tiles, all_heads, causal, multiprocessors
):
    programs, head_pairs = schedule(tiles, all_heads, multiprocessors, causal)
    assert 1 <= programs <= multiprocessors
    seen = Counter()
    for program in range(programs):
        mine = list(tiles_of(program, programs, tiles, all_heads, head_pairs, causal))
        assert mine
        seen.update(mine)
    assert seen == Counter({(h, t): 1 for h in range(all_heads) for t in range(tiles)})


@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("seqlen", [1024, 2048, 4096, 8192, 16384])
def test_the_causal_grid_is_shared_out_evenly(headdim, seqlen):
    """The busiest of 132 programs has at most 2.5 % more to do than the average."""
    problem = Problem.on_grid(headdim, seqlen, True)
    rows = 64 * int(TEMPLATE.default(problem, 90)["consumers"])
    tiles, all_heads = -(-seqlen // rows), problem.batch * problem.heads
    plan = schedule(tiles, all_heads, 132, True)
    times = []
    for program in range(plan[0]):
        mine = tiles_of(program, plan[0], tiles, all_heads, plan[1], True)
        times.append(sum(tile + 1.6 for _, tile in mine))
    assert max(times) <= 1.025 * sum(times) / len(times)


def test_no_pairs_without_a_mask():
    assert schedule(64, 32, 132, False) == (132, 0)
    assert schedule(4, 8, 132, False) == (32, 0)


@pytest.mark.parametrize("number", [1, 2, 3, 5, 7, 8, 60, 64, 127, 128, 129, 8191, 2**30 + 1])
def test_a_divisor_divides(number):
    by = divisor(number)
    factor, shift = by & 0xFFFFFFFF, by >> 32
    around = {n for k in (0, 1, 2, 1000, (2**31 - 1) // number) for n in
              (k * number - 1, k * number, k * number + 1)}  # fmt: skip
    for n in (*(n for n in around if 0 <= n < 2**31), 2**31 - 1):
        assert n * factor >> shift == n // number
        assert n * factor < 2**63  # the kernel's product is signed


def test_configs_from_before_q_held_are_those_without_it():
    older = Config({name: value for name, value in GOOD.items() if name != "q_held"})
    assert TEMPLATE.grown(older) == Config(GOOD, q_held=0)
    assert TEMPLATE.grown(GOOD) is GOOD
    assert "parameters are" in (TEMPLATE.reject(CAUSAL, older, 90) or "")
