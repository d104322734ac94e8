"""Check that every registered template compiles for every target it claims, without a GPU.

Compiles the default configs over the benchmark grid, causal and full, in every dtype, and those of
the shipped records. Fails on whatever the compiler refuses, such as for more shared memory than a
block can have; where the target is sm_90, also on matmuls that are not wgmma, and on spills: any
under the oldest Triton, with which the kernels were tuned, and more than a few words, which lie
outside the loops, under others. Needs Triton, but no torch:

    python scripts/check_compiles.py [--jobs N] [CAPABILITY ...]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

# This folder for its modules: a package called `scripts` may be installed, and hides it.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401  (lets Hugging Face's `kernels`, if installed, share its name with ours)
from kernels.attention import registry
from kernels.attention.capability import supported
from kernels.attention.config import Config
from kernels.attention.problem import DTYPES, Specialization
from kernels.attention.template import CompileError
from tuner.liveness import revived
from tuner.search.plan import plan
from tuner.standing import standing
from tuner.store.database import Store
from tuner.store.locations import shipped_database

if TYPE_CHECKING:
    from scripts import refusals
else:
    import refusals

CAPABILITIES = (80, 89, 90, 100, 120)
HOPPER = 90  # the target that the templates are made for
OLDEST = "3.6."  # Triton
SPILLS = 64  # bytes a thread, under a newer one

Job = tuple[str, Specialization, Config, int]


def jobs(capabilities: tuple[int, ...]) -> list[Job]:
    """Each once: the default configs of every template for every target it claims, and all that
    the shipped records serve."""
    found: dict[Job, None] = {}
    for name in registry.names():
        template = registry.get(name)
        for capability in capabilities:
            for problem in plan(dtypes=DTYPES):
                specialization = problem.specialization
                if template.supports(specialization, capability) is None:
                    config = template.default(problem, capability)
                    found[name, specialization, config, capability] = None
    shipped = shipped_database()
    assert shipped is not None  # a checkout has it
    with Store.read_only(shipped) as store:
        for record in standing(store.records()).values():
            capability = record.target.hardware.capability
            if capability in capabilities:
                candidate = revived(record.candidate)
                specialization = record.problem.specialization
                found[candidate.template, specialization, candidate.config, capability] = None
    return list(found)


def allowed_spills() -> int:
    """Bytes a thread that a kernel for Hopper may spill under the installed Triton."""
    import triton

    return 0 if triton.__version__.startswith(OLDEST) else SPILLS


def check(job: Job) -> str | None:
    """What is wrong with a job, in one line; None if nothing."""
    name, specialization, config, capability = job
    what = f"sm_{capability} {specialization} {name}({config})"
    try:
        binary = registry.get(name).compile(specialization, config, capability)
    except CompileError as error:
        return f"{what}: {error}"
    if capability != HOPPER:
        return None
    if "wgmma.mma_async" not in binary.kernel.asm["ptx"]:
        return f"{what}: no wgmma"
    allowed = allowed_spills()
    if binary.resources.spills > allowed:
        return f"{what}: spills {binary.resources.spills} bytes, more than {allowed}"
    return None


def main(words: Sequence[str] | None = None) -> int:
    parser = refusals.Parser(__doc__)
    parser.add_argument("capabilities", nargs="*", type=int, default=CAPABILITIES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(words)
    refusals.at_least(parser, 1, jobs=options.jobs)
    for capability in options.capabilities:
        if capability not in supported():
            known = ", ".join(map(str, supported()))
            parser.error(f"CAPABILITY is {capability}, but must be one of {known}")

    import triton

    todo = jobs(tuple(options.capabilities))
    workers = max(1, min(options.jobs, len(todo), os.cpu_count() or 1))
    with ProcessPoolExecutor(workers) as pool:
        wrong = [line for line in pool.map(check, todo) if line]
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"Triton {triton.__version__}: {len(todo) - len(wrong)} of {len(todo)} compile")
    return 1 if wrong or not todo else 0


if __name__ == "__main__":
    sys.exit(main())
