"""Check that every registered template compiles for every target it claims, without a GPU.

Compiles the default configs over the benchmark grid, causal and full, in every dtype, and fails on
whatever the compiler refuses, and on spills where the target is sm_90. Needs Triton, but no torch:

    python scripts/check_compiles.py [--jobs N] [CAPABILITY ...]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (lets Hugging Face's `kernels`, if installed, share its name with ours)
from kernels.attention import registry
from kernels.attention.config import Config
from kernels.attention.problem import DTYPES, GRID_SEQLENS, HEADDIMS, Problem, Specialization
from kernels.attention.template import CompileError

CAPABILITIES = (80, 89, 90, 100, 120)
NO_SPILLS = 90  # the target that the templates are made for

Job = tuple[str, Specialization, Config, int]


def jobs(capabilities: tuple[int, ...]) -> Iterator[Job]:
    """Every distinct default config of every template for every target it claims."""
    seen = set()
    for name in registry.names():
        template = registry.get(name)
        for capability in capabilities:
            for problem in _grid():
                specialization = problem.specialization
                if template.supports(specialization, capability) is None:
                    config = template.default(problem, capability)
                    job = (name, specialization, config, capability)
                    if job not in seen:
                        seen.add(job)
                        yield job


def check(job: Job) -> str | None:
    """What is wrong with a job, in one line; None if nothing."""
    name, specialization, config, capability = job
    try:
        used = registry.get(name).compile(specialization, config, capability).resources
    except CompileError as error:
        return f"sm_{capability} {specialization} {name}({config}): {error}"
    if used.spills and capability == NO_SPILLS:
        return f"sm_{capability} {specialization} {name}({config}): spills {used.spills} bytes"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("capabilities", nargs="*", type=int, default=CAPABILITIES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()

    import triton

    todo = list(jobs(tuple(options.capabilities)))
    with ProcessPoolExecutor(options.jobs) as pool:
        wrong = [line for line in pool.map(check, todo) if line]
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"Triton {triton.__version__}: {len(todo) - len(wrong)} of {len(todo)} compile")
    return 1 if wrong or not todo else 0


def _grid() -> Iterator[Problem]:
    for headdim in HEADDIMS:
        for seqlen in GRID_SEQLENS:
            for causal in (True, False):
                for dtype in DTYPES:
                    yield Problem.on_grid(headdim, seqlen, causal, dtype)


if __name__ == "__main__":
    sys.exit(main())
