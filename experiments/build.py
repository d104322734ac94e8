"""Compile the Hopper kernel for clusters of two blocks, by Triton 3.9, without a GPU.

    python experiments/build.py FOLDER

Writes a cubin and what a launch has to know of it for each variant. `probe.py` launches them by
Triton 3.6's launcher, whose parameters are the same.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tuner  # noqa: F401
from kernels.attention import compiler, hopper, registry
from kernels.attention.hopper_kernel import attention_forward
from kernels.attention.problem import Problem

LAYOUT = "rank=4)"


def arguments(specialization, config, ctas):
    found = []
    for a in hopper._arguments(specialization, config):
        kind = a.type
        if ctas == 2 and a.name == "q":
            kind = kind.replace("[1,1,64,", "[1,1,128,")
            kind = kind.replace(LAYOUT, "rank=4, cga_layout=[[0, 0, 1, 0]])")
        elif ctas == 2 and a.name in ("k", "v"):
            kind = kind.replace(LAYOUT, "rank=4, cga_layout=[[0, 0, 0, 0]])")
        found.append(type(a)(a.name, kind, a.value, a.divisible_by))
    return found


def build(folder, name, problem, config, ctas):
    source = compiler.source(
        attention_forward, arguments(problem.specialization, config, ctas), True
    )
    options = {"num_warps": 4} | ({"num_ctas": 2} if ctas == 2 else {})
    kernel = compiler.compile_kernel(source, 90, options)
    spills = compiler.resources(kernel).spills
    (folder / f"{name}.cubin").write_bytes(kernel.asm["cubin"])
    meta = {
        "problem": [problem.headdim, problem.causal, problem.dtype],
        "config": dict(config),
        "ctas": ctas,
        "num_warps": kernel.metadata.num_warps,
        "shared": kernel.metadata.shared,
        "spills": spills,
    }
    (folder / f"{name}.json").write_text(json.dumps(meta))
    print(name, meta["shared"], spills, flush=True)


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True, parents=True)
    template = registry.get("hopper")
    for headdim, seqlen in ((256, 16384), (128, 8192), (64, 4096)):
        for causal in (True, False):
            for dtype in ("fp16", "bf16"):
                problem = Problem.on_grid(headdim, seqlen, causal, dtype)
                config = template.default(problem, 90)
                for ctas in (1, 2):
                    kind = "causal" if causal else "full"
                    name = f"D{headdim}-{kind}-{dtype}-{ctas}"
                    build(folder, name, problem, config, ctas)


main()
